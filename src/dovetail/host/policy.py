"""Policy: what a host allows, asks about, denies or hides, as rules that are data.

Pure: the same question gives the same decision. Doubt tightens: an argument that cannot be read counts against the
call, and what a server says of its own tools counts for it only if the user trusts that server.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias, cast

from dovetail.errors import clip
from dovetail.host.conditions import Condition, arg, condition, shown
from dovetail.host.names import full
from dovetail.host.quotas import Quota, quota
from dovetail.wire.shape import Struct
from dovetail.wire.tools import ToolAnnotations

__all__ = ["Decision", "Policy", "Question", "Quota", "Rule", "arg", "rule"]

Verdict: TypeAlias = Literal["allow", "ask", "deny", "hide"]
Tier: TypeAlias = Literal["admin", "user", "project", "built-in"]

_STRICTNESS: Final[Mapping[str, int]] = {"allow": 0, "ask": 1, "deny": 2, "hide": 3}

# What the host itself begins. The rest a server asks for, and an allow covers it only if it says so.
ASKED_BY_HOST: Final = frozenset(("tool.call", "tool.result", "resource.read", "prompt.get", "complete"))

_HINTS: Final[Mapping[str, str]] = {
    spelling: fact
    for fact in ("read_only", "destructive", "idempotent", "open_world")
    for camel in [fact.split("_")[0] + "".join(word.title() for word in fact.split("_")[1:])]
    for spelling in (fact, camel, f"{camel}Hint", f"{fact}_hint")
}


_OTHER_NAME: Final = "another name"


class Question(Struct, frozen=True, kw_only=True):
    """What a policy is asked about. Without `arguments` it is about the tool itself, not about one call of it."""

    server: str
    tool: str = ""  # or the URI of a resource, or the name of a prompt
    kind: str = "tool.call"
    arguments: Mapping[str, Any] | None = None
    annotations: ToolAnnotations | None = None
    trusted: bool = False
    identity: str = ""  # which command or URL the server is; its name alone proves nothing
    project: str = ""  # for grants that hold in one project only

    @property
    def full(self) -> str:
        """The name as the host spells it."""
        return full(self.server, self.tool) if self.tool else self.server

    def fact(self, name: str) -> bool:
        """One of the four hints as it counts here: of a server that is not trusted, the worst is believed."""
        said = self.annotations if self.trusted and self.annotations is not None else ToolAnnotations()
        match name:
            case "read_only":
                return said.read_only_hint is True
            case "destructive":
                return said.read_only_hint is not True and said.destructive_hint is not False
            case "idempotent":
                return said.idempotent_hint is True
            case _:
                return said.open_world_hint is not False


class Rule(Struct, frozen=True, kw_only=True):
    """One rule: a verdict, and what it is about. What is left out matches everything."""

    verdict: Verdict
    server: tuple[str, ...] = ()
    tool: tuple[str, ...] = ()
    kind: tuple[str, ...] = ()
    facts: Mapping[str, bool] = {}
    when: tuple[Condition, ...] = ()
    unless: tuple[Condition, ...] = ()
    reason: str = ""

    @property
    def conditional(self) -> bool:
        """Whether it looks at arguments."""
        return bool(self.when or self.unless)

    def applies(self, question: Question) -> bool:
        """Whether this rule speaks about the question."""
        return self.misses(question) is None

    def misses(self, question: Question) -> str | None:
        """Why it does not speak about the question; None if it does."""
        if not self._names(question):
            return _OTHER_NAME
        if self.kind and not any(fnmatchcase(question.kind, glob) for glob in self.kind):
            return "another kind"
        if not self.kind and self.verdict == "allow" and question.kind not in ASKED_BY_HOST:
            return f"an allow covers {question.kind} only if it names the kind"
        for name, wanted in self.facts.items():
            if question.fact(name) is not wanted:
                trust = "" if question.trusted else ", and the server is not trusted to say so"
                return f"{name} is not {str(wanted).lower()}{trust}"
        return self._arguments(question.arguments) if self.conditional else None

    def _names(self, question: Question) -> bool:
        if self.server and not any(fnmatchcase(question.server, glob) for glob in self.server):
            return False
        return not self.tool or any(self._tool(glob, question) for glob in self.tool)

    def _tool(self, glob: str, question: Question) -> bool:
        server, dot, inner = glob.partition(".")
        if self.server or not dot:
            return fnmatchcase(question.tool, glob)
        # Part by part, so that no server can pass for another by a dot in a tool's name; what tightens may reach wider.
        apart = fnmatchcase(question.server, server) and fnmatchcase(question.tool, inner)
        return apart or (self.verdict != "allow" and fnmatchcase(question.full, glob))

    def _arguments(self, arguments: Mapping[str, Any] | None) -> str | None:
        if arguments is None:
            return "it depends on the arguments"
        loose = self.verdict != "allow"
        for one in self.when:
            if not one.holds(arguments, doubt=loose):
                return f"needs {one}, got {one.found(arguments)}"
        if self.unless and all(one.holds(arguments, doubt=not loose) for one in self.unless):
            return f"not if {' and '.join(map(str, self.unless))}"
        return None

    def __str__(self) -> str:
        words: list[str] = [self.verdict]
        for name, globs in (("server", self.server), ("tool", self.tool), ("kind", self.kind)):
            words += [f"{name} {' or '.join(map(clip, globs))}"] if globs else []
        words += [name if wanted else f"not {name}" for name, wanted in self.facts.items()]
        words += [f"when {' and '.join(map(str, self.when))}"] if self.when else []
        words += [f"unless {' and '.join(map(str, self.unless))}"] if self.unless else []
        return ", ".join(words) + (f" ({clip(self.reason)})" if self.reason else "")


class Decision(Struct, frozen=True, kw_only=True):
    """What a policy says, and why."""

    verdict: Verdict
    reason: str
    tier: Tier = "built-in"
    rule: Rule | None = None


Globs: TypeAlias = "str | Iterable[str]"
Conditions: TypeAlias = "Condition | Mapping[str, Any] | Iterable[Condition | Mapping[str, Any]]"


def rule(
    verdict: Verdict,
    *,
    server: Globs = (),
    tool: Globs = (),
    kind: Globs = (),
    read_only: bool | None = None,
    destructive: bool | None = None,
    annotation: Mapping[str, bool] | None = None,
    when: Conditions = (),
    unless: Conditions = (),
    reason: str = "",
) -> Rule:
    """One rule of a policy. Names are globs; a tool is named alone or as `server.tool`; conditions hold all at once."""
    if verdict not in _STRICTNESS:
        raise ValueError(f"a verdict is allow, ask, deny or hide, not {verdict!r}")
    facts = {"read_only": read_only, "destructive": destructive}
    for name, value in (annotation or {}).items():
        if name not in _HINTS:
            raise ValueError(f"no hint is called {name!r}; there are {', '.join(dict.fromkeys(_HINTS.values()))}")
        facts[_HINTS[name]] = value
    for name, value in facts.items():
        if value is not None and type(value) is not bool:
            raise ValueError(f"{name} is true or false, not {value!r}")
    made = Rule(
        verdict=verdict,
        server=_several(server),
        tool=_several(tool),
        kind=_several(kind),
        facts={name: value for name, value in facts.items() if value is not None},
        when=_conditions(when),
        unless=_conditions(unless),
        reason=reason,
    )
    if made.verdict == "hide" and made.conditional:
        raise ValueError("a tool is hidden or it is not: hide cannot depend on arguments")
    return made


def _several(given: Globs) -> tuple[str, ...]:
    found = (given,) if isinstance(given, str) else tuple(given)
    for one in found:
        if not isinstance(one, str) or not one:  # pyright: ignore[reportUnnecessaryIsInstance] - TOML says anything
            raise ValueError(f"a name or a glob is a text, not {one!r}")
    return found


def _conditions(given: Conditions) -> tuple[Condition, ...]:
    one = isinstance(given, Condition | Mapping)
    found = cast("Iterable[Condition | Mapping[str, Any]]", (given,) if one else given)
    return tuple(each if isinstance(each, Condition) else condition(each) for each in found)


class _Part(Struct, frozen=True, kw_only=True):
    """The rules of one tier."""

    tier: Tier
    default: Verdict | None
    rules: tuple[Rule, ...]
    limits: tuple[tuple[str, Quota], ...]
    headless: Literal["allow", "deny"] | None

    def strictest(self, question: Question) -> Rule | None:
        matching = [one for one in self.rules if one.applies(question)]
        return max(matching, key=lambda one: _STRICTNESS[one.verdict], default=None)


class Policy:
    """Rules for what a host does; without any, it asks.

    The strictest rule that applies decides: hide before deny before ask before allow. `default` is for what no rule
    speaks of. `headless` is what "ask" means where nobody can be asked. `limits` are globs of `server.tool` with
    `timeout`, `result_bytes`, `concurrency`, `rate` ("60/min"); of several that match, the strictest counts.
    """

    def __init__(
        self,
        default: Verdict | None = None,
        rules: Iterable[Rule] = (),
        limits: Mapping[str, str | Mapping[str, Any]] | None = None,
        headless: Literal["allow", "deny"] | None = None,
    ) -> None:
        if default is not None and default not in _STRICTNESS:
            raise ValueError(f"default is allow, ask, deny or hide, not {default!r}")
        if headless is not None and str(headless) not in ("allow", "deny"):
            raise ValueError(f'headless is "deny" or "allow", not {headless!r}')
        part = _Part(
            tier="user",
            default=default,
            rules=tuple(rules),
            limits=tuple((glob, quota(given)) for glob, given in (limits or {}).items()),
            headless=headless,
        )
        self._parts: tuple[_Part, ...] = (part,)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The policy of a TOML file; ValueError names what is wrong in it."""
        try:
            return cls.read(tomllib.loads(Path(path).read_text(encoding="utf-8")))
        except ValueError as exc:
            raise ValueError(f"{path}: {exc}") from None

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """The policy of a document, as a TOML file or a JSON object has it."""
        if unknown := document.keys() - {"default", "headless", "rules", "limits"}:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
        rules: list[Rule] = []
        for number, given in enumerate(document.get("rules", ())):
            try:
                rules.append(rule(**given))
            except (TypeError, ValueError) as exc:
                raise ValueError(f"rules[{number}]: {exc}") from None
        return cls(document.get("default"), rules, document.get("limits"), document.get("headless"))

    @classmethod
    def tiered(
        cls, *, admin: "Policy | None" = None, user: "Policy | None" = None, project: "Policy | None" = None
    ) -> Self:
        """Policies of three owners. What a higher one rules, a lower one can tighten, never loosen.

        A project can only tighten, whatever the others left to it: its `allow` takes back what its own default or
        rules forbid and nothing else.
        """
        made = cls()
        tiers: tuple[tuple[Tier, Policy | None], ...] = (("admin", admin), ("user", user), ("project", project))
        made._parts = tuple(
            _Part(
                tier=tier,
                default=part.default,
                rules=part.rules,
                limits=part.limits,
                # Nobody but the owner of the machine may say that silence is consent.
                headless="deny" if tier == "project" and part.headless else part.headless,
            )
            for tier, policy in tiers
            if policy is not None
            for part in policy._parts
        )
        return made

    @property
    def headless(self) -> Literal["allow", "deny"]:
        """What "ask" means where nobody can be asked."""
        said = [part.headless for part in self._parts if part.headless is not None]
        return "allow" if said and "deny" not in said else "deny"

    def decide(self, question: Question) -> Decision:
        """What is to happen."""
        decided: Decision | None = None
        ruled = False
        for part in self._parts:
            found = part.strictest(question)
            if found is not None:
                said = Decision(verdict=found.verdict, reason=_because(found), tier=part.tier, rule=found)
            elif part.default is not None and not ruled:  # a default speaks where no rule did
                said = Decision(
                    verdict=part.default, reason=f"no rule applies; the default is {part.default}", tier=part.tier
                )
            else:
                continue
            before = decided or (_BUILT_IN if part.tier == "project" else None)
            decided = said if before is None or _stricter(said, before) else before
            ruled = ruled or found is not None
        return decided or _BUILT_IN

    def unattended(self, decision: Decision) -> Decision:
        """The decision where nobody can be asked."""
        if decision.verdict != "ask":
            return decision
        reason = f"{decision.reason}; nobody is there to be asked, which means {self.headless}"
        return Decision(verdict=self.headless, reason=reason, tier=decision.tier, rule=decision.rule)

    def quota(self, server: str, tool: str) -> Quota:
        """The limits of one tool: of all that match, the strictest of each kind."""
        found = Quota()
        for part in self._parts:
            for glob, given in part.limits:
                if fnmatchcase(full(server, tool), glob):
                    found = found.tightened(given)
        return found

    def explain(self, question: Question | None = None) -> str:
        """The rules in the order they count; with a question, its decision and what each rule made of it."""
        lines = [] if question is None else self._verdict(question)
        for part in self._parts:
            lines += [f"{part.tier}:", *self._explained(part, question)]
        return "\n".join([*lines, "built-in:", "  default ask", f"  nobody there: {self.headless}"])

    def _verdict(self, question: Question) -> list[str]:
        decision = self.decide(question)
        return [
            f"{decision.verdict}  {question.kind} {clip(question.full)}: {decision.reason} [{decision.tier}]",
            *([f"  arguments {shown(question.arguments)}"] if question.arguments is not None else []),
        ]

    def _explained(self, part: _Part, question: Question | None) -> Iterator[str]:
        order: Sequence[tuple[int, Rule]] = sorted(
            enumerate(part.rules), key=lambda pair: (-_STRICTNESS[pair[1].verdict], pair[0])
        )
        for number, one in order:
            yield f"  rules[{number}] {one}"
            missed = _OTHER_NAME if question is None else one.misses(question)
            if missed != _OTHER_NAME:
                yield "      applies" if missed is None else f"      no: {missed}"
        if part.default is not None:
            yield f"  default {part.default}"
        for glob, given in part.limits:
            yield f"  limit {clip(glob)}: {given}"


_BUILT_IN: Final = Decision(verdict="ask", reason="no rule applies; unless something else is said, the user is asked")


def _because(found: Rule) -> str:
    return f"{found.reason} — {_plain(found)}" if found.reason else _plain(found)


def _plain(found: Rule) -> str:
    return str(found).removesuffix(f" ({clip(found.reason)})") if found.reason else str(found)


def _stricter(one: Decision, other: Decision) -> bool:
    return _STRICTNESS[one.verdict] > _STRICTNESS[other.verdict]
