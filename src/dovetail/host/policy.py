"""Policy: what a host allows, asks about, denies or hides, as rules that are data.

Pure: the same question gives the same decision, and what is explained is what happens.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

from dovetail.errors import clip
from dovetail.host.conditions import arg, shown
from dovetail.host.globs import tightly
from dovetail.host.kinds import DEMANDED, GIVEN, PERSONAL
from dovetail.host.quotas import Quota, quota
from dovetail.host.rules import OTHER_NAME, STRICTNESS, Question, Rule, Verdict, read_rule, rule
from dovetail.wire.shape import Struct, replace
from dovetail.wire.tools import ToolAnnotations

__all__ = ["Decision", "Policy", "Question", "Quota", "Rule", "arg", "rule"]

Tier: TypeAlias = Literal["admin", "user", "project", "built-in"]


class Decision(Struct, frozen=True, kw_only=True):
    """What a policy says, and why."""

    verdict: Verdict
    reason: str
    tier: Tier = "built-in"
    rule: Rule | None = None


class _Part(Struct, frozen=True, kw_only=True):
    """The rules of one tier."""

    tier: Tier
    default: Verdict | None
    rules: tuple[Rule, ...]
    limits: tuple[tuple[str, Quota], ...]
    headless: Literal["allow", "deny"] | None

    def strictest(self, question: Question) -> Rule | None:
        matching = [one for one in self.rules if one.applies(question)]
        return max(matching, key=lambda one: STRICTNESS[one.verdict], default=None)


class Policy:
    """Rules for what a host does; without any, it asks.

    The strictest rule that applies decides: hide before deny before ask before allow. `default` is for what no rule
    speaks of. `headless` is what "ask" means where nobody can be asked. `limits` are globs of names with
    `timeout`, `result_bytes`, `concurrency`, `rate` ("60/min"); of several that match, the strictest counts.
    """

    def __init__(
        self,
        default: Verdict | None = None,
        rules: Iterable[Rule | Mapping[str, Any]] = (),
        limits: Mapping[str, str | Mapping[str, Any]] | None = None,
        headless: Literal["allow", "deny"] | None = None,
    ) -> None:
        if default is not None and default not in STRICTNESS:
            raise ValueError(f"default is allow, ask, deny or hide, not {default!r}")
        if headless is not None and str(headless) not in ("allow", "deny"):
            raise ValueError(f'headless is "deny" or "allow", not {headless!r}')
        part = _Part(
            tier="user",
            default=default,
            rules=tuple(map(read_rule, rules)),
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
                rules.append(read_rule(given))
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
        decided = self._decided(question)
        if decided.verdict == "allow" or question.trusted or question.annotations is None:
            return decided
        if _stricter(decided, self._decided(replace(question, trusted=True))):
            return replace(decided, reason=f"{decided.reason}; {_unbelieved(question.annotations)}")
        return decided

    def _decided(self, question: Question) -> Decision:
        decided: Decision | None = None
        ruled = False
        for part in self._parts:
            found = part.strictest(question)
            if found is not None:
                said = Decision(verdict=found.verdict, reason=_because(found), tier=part.tier, rule=found)
            elif part.default is not None and not ruled and _open(question):  # a default speaks where no rule did
                said = _by_default(part.default, part.tier, question)
            else:
                continue
            before = decided or (_unruled(question) if part.tier == "project" else None)
            decided = said if before is None or _stricter(said, before) else before
            ruled = ruled or found is not None
        decided = decided or _unruled(question)
        if decided.verdict == "allow" and question.kind in PERSONAL:
            return replace(decided, verdict="ask", reason=f"{decided.reason}; {question.kind} is always for a person")
        return decided

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
                if tightly(glob, server, tool):
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
            enumerate(part.rules), key=lambda pair: (-STRICTNESS[pair[1].verdict], pair[0])
        )
        for number, one in order:
            yield f"  rules[{number}] {one}"
            missed = OTHER_NAME if question is None else one.misses(question)
            if missed != OTHER_NAME:
                yield "      applies" if missed is None else f"      no: {missed}"
        if part.default is not None:
            yield f"  default {part.default}"
        for glob, given in part.limits:
            yield f"  limit {clip(glob)}: {given}"


def read_policy(given: Any) -> Policy:
    """A policy as it may be given: itself, or the file of one; nothing is one without rules."""
    if given is None:
        return Policy()
    if isinstance(given, str) and given in STRICTNESS:
        raise ValueError(f'policy="{given}" would be a file of rules; for that verdict give Policy("{given}")')
    if isinstance(given, str | Path):
        return Policy.load(given)
    if isinstance(given, Policy):
        return given
    raise TypeError(f"policy is a Policy or the path of a file of rules, not {given!r}")


_BUILT_IN: Final = Decision(verdict="ask", reason="no rule applies; unless something else is said, the user is asked")


_CONFIGURED: Final = Decision(verdict="allow", reason="configured by the user")


def _given(question: Question) -> bool:
    """Whether the user has said yes by configuring it, which a project cannot do for them."""
    return question.kind in GIVEN and not (question.foreign and question.kind == "server.start")


def _open(question: Question) -> bool:
    """Whether a default speaks of it."""
    return not _given(question) and question.kind != "definition.changed"


def _unruled(question: Question) -> Decision:
    return _CONFIGURED if _given(question) else _BUILT_IN


def _by_default(default: Verdict, tier: Tier, question: Question) -> Decision:
    reason = f"no rule applies; the default is {default}"
    if default == "allow" and (question.kind in DEMANDED or (question.foreign and question.kind == "server.start")):
        return Decision(verdict="ask", reason=f"{reason}, which covers no {question.kind}", tier=tier)
    return Decision(verdict=default, reason=reason, tier=tier)


def _unbelieved(said: ToolAnnotations) -> str:
    hints = (
        ("read-only", said.read_only_hint is True),
        ("not destructive", said.destructive_hint is False),
        ("idempotent", said.idempotent_hint is True),
        ("closed to the world", said.open_world_hint is False),
    )
    claims = " and ".join(name for name, claimed in hints if claimed)
    return f"it says it is {claims}, but the server is not trusted: trust=True, or trust under x-dovetail in its file"


def _because(found: Rule) -> str:
    return f"{found.reason} — {_plain(found)}" if found.reason else _plain(found)


def _plain(found: Rule) -> str:
    return str(found).removesuffix(f" ({clip(found.reason)})") if found.reason else str(found)


def _stricter(one: Decision, other: Decision) -> bool:
    return STRICTNESS[one.verdict] > STRICTNESS[other.verdict]
