"""Rules: what one is about, and whether it speaks of a question.

Doubt tightens: an argument that cannot be read counts against the call, and what a server says of its own tools counts
for it only if the user trusts that server.
"""

import inspect
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeAlias, cast

from dovetail.errors import clip
from dovetail.host.coercion import normalize
from dovetail.host.conditions import Condition, parse_condition
from dovetail.host.globs import matches_permissive, matches_restrictive
from dovetail.host.kinds import CONFIGURED_KINDS, SERVER_REQUESTED_KINDS, check_kind_glob
from dovetail.host.names import make_full_name
from dovetail.wire.shape import Struct, replace
from dovetail.wire.tools import ToolAnnotations

Verdict: TypeAlias = Literal["allow", "ask", "deny", "hide"]

STRICTNESS: Final[Mapping[str, int]] = {"allow": 0, "ask": 1, "deny": 2, "hide": 3}
NAME_MISMATCH: Final = "another name"

_URI_KINDS: Final = frozenset({"resource.read", "complete"})

_HINT_BY_SPELLING: Final[Mapping[str, str]] = {
    spelling: fact
    for fact in ("read_only", "destructive", "idempotent", "open_world")
    for camel in [fact.split("_")[0] + "".join(word.title() for word in fact.split("_")[1:])]
    for spelling in (fact, camel, f"{camel}Hint", f"{fact}_hint")
}


class Question(Struct, frozen=True, kw_only=True):
    """What a policy is asked about. Without `arguments` it is about the tool itself, not about one call of it."""

    server: str
    tool: str = ""  # or the URI of a resource, or the name of a prompt
    kind: str = "tool.call"
    arguments: Mapping[str, Any] | None = None
    schema: Mapping[str, Any] | None = None  # of the arguments; without it they may be of any type to the server
    annotations: ToolAnnotations | None = None
    trusted: bool = False
    foreign: bool = False  # the server comes from a project, not from the user
    identity: str = ""  # which command or URL the server is; its name alone proves nothing
    caller: str = ""  # whom a gateway asks for; what one of them agreed to is nobody else's
    project: str = ""  # for grants that hold in one project only

    @property
    def full(self) -> str:
        """The name as the host spells it."""
        return make_full_name(self.server, self.tool) if self.tool else self.server

    def with_arguments(self, arguments: Mapping[str, Any]) -> "Question":
        """The question about a call with these arguments, decoded by the schema: judge and send these."""
        return replace(self, arguments=normalize(self.schema, arguments))

    def fact(self, name: str) -> bool:
        """One of the four hints as it counts here: of a server that is not trusted, the worst is believed."""
        annotations = self.annotations if self.trusted and self.annotations is not None else ToolAnnotations()
        match name:
            case "read_only":
                return annotations.read_only_hint is True
            case "destructive":
                return annotations.read_only_hint is not True and annotations.destructive_hint is not False
            case "idempotent":
                return annotations.idempotent_hint is True
            case _:
                return annotations.open_world_hint is not False


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
        if not self._matches_name(question):
            return NAME_MISMATCH
        if mismatch := self._explain_kind_mismatch(question):
            return mismatch
        for name, expected in self.facts.items():
            if question.fact(name) is not expected:
                trust = "" if question.trusted else ", and the server is not trusted to say so"
                return f"{name} is not {str(expected).lower()}{trust}"
        return self._explain_argument_mismatch(question.arguments, question.schema) if self.conditional else None

    def _matches_name(self, request: Question) -> bool:
        if self.server and not any(fnmatchcase(request.server, glob) for glob in self.server):
            return False
        return not self.tool or any(self._matches_tool(glob, request) for glob in self.tool)

    def _matches_tool(self, glob: str, request: Question) -> bool:
        if self.verdict == "allow":
            is_uri = request.kind in _URI_KINDS
            return matches_permissive(
                glob, request.server, request.tool, has_server_rule=bool(self.server), is_certain_uri=is_uri
            )
        return matches_restrictive(glob, request.server, request.tool)

    def _explain_kind_mismatch(self, request: Question) -> str | None:
        kind = request.kind
        if self.facts and not kind.startswith("tool."):
            return "only tools say such things of themselves"
        if self.kind:
            return None if any(fnmatchcase(kind, glob) for glob in self.kind) else "another kind"
        if kind == "definition.changed" or (kind in CONFIGURED_KINDS and not self._is_forbidding(request)):
            return f"it covers {kind} only if it names the kind"
        if kind in SERVER_REQUESTED_KINDS and self.verdict == "allow":
            return f"an allow covers {kind} only if it names the kind"
        return None

    def _is_forbidding(self, request: Question) -> bool:
        """Whether it wants nothing to do with a server, or with this of it."""
        return self.verdict in ("deny", "hide") and bool(request.tool or not self.tool)

    def _explain_argument_mismatch(
        self, arguments: Mapping[str, Any] | None, schema: Mapping[str, Any] | None
    ) -> str | None:
        if arguments is None:
            return "it depends on the arguments"
        match_if_unclear = self.verdict != "allow"
        for condition in self.when:
            if not condition.evaluate(arguments, if_unclear=match_if_unclear, schema=schema):
                return f"needs {condition}, got {condition.describe_value(arguments)}"
        if self.unless and all(
            condition.evaluate(arguments, if_unclear=not match_if_unclear, schema=schema) for condition in self.unless
        ):
            return f"not if {' and '.join(map(str, self.unless))}"
        return None

    def __str__(self) -> str:
        parts: list[str] = [self.verdict]
        for name, globs in (("server", self.server), ("tool", self.tool), ("kind", self.kind)):
            parts += [f"{name} {' or '.join(map(clip, globs))}"] if globs else []
        parts += [name if expected else f"not {name}" for name, expected in self.facts.items()]
        parts += [f"when {' and '.join(map(str, self.when))}"] if self.when else []
        parts += [f"unless {' and '.join(map(str, self.unless))}"] if self.unless else []
        return ", ".join(parts) + (f" ({clip(self.reason)})" if self.reason else "")


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
    if verdict not in STRICTNESS:
        raise ValueError(f"a verdict is allow, ask, deny or hide, not {verdict!r}")
    hints = {"read_only": read_only, "destructive": destructive}
    for name, value in (annotation or {}).items():
        if name not in _HINT_BY_SPELLING:
            raise ValueError(
                f"no hint is called {name!r}; there are {', '.join(dict.fromkeys(_HINT_BY_SPELLING.values()))}"
            )
        hints[_HINT_BY_SPELLING[name]] = value
    for name, value in hints.items():
        if value is not None and type(value) is not bool:
            raise ValueError(f"{name} is true or false, not {value!r}")
    new_rule = Rule(
        verdict=verdict,
        server=_as_globs(server),
        tool=_as_globs(tool),
        kind=tuple(map(check_kind_glob, _as_globs(kind))),
        facts={name: value for name, value in hints.items() if value is not None},
        when=_as_conditions(when),
        unless=_as_conditions(unless),
        reason=reason,
    )
    if new_rule.verdict == "hide" and new_rule.conditional:
        raise ValueError("a tool is hidden or it is not: hide cannot depend on arguments")
    return new_rule


def as_rule(value: Any) -> Rule:
    """A rule, or the table that makes one."""
    if isinstance(value, Rule):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"a rule is made by rule(), or a table of what that takes, not {value!r}")
    table = cast("Mapping[str, Any]", value)
    for name in table:
        if name not in _RULE_KEYS:
            matches = get_close_matches(name, _RULE_KEYS, n=1, cutoff=0.5)
            suggestion = f"; did you mean {matches[0]!r}?" if matches else ""
            raise ValueError(f"a rule has no {name!r}{suggestion} There are {', '.join(_RULE_KEYS)}")
    if "verdict" not in table:
        raise ValueError("a rule needs a verdict: allow, ask, deny or hide")
    return rule(**table)


_RULE_KEYS: Final = tuple(inspect.signature(rule).parameters)


def _as_globs(value: Globs) -> tuple[str, ...]:
    globs = (value,) if isinstance(value, str) else tuple(value)
    for glob in globs:
        if not isinstance(glob, str) or not glob:  # pyright: ignore[reportUnnecessaryIsInstance] - TOML says anything
            raise ValueError(f"a name or a glob is a text, not {glob!r}")
    return globs


def _as_conditions(value: Conditions) -> tuple[Condition, ...]:
    is_single = isinstance(value, Condition | Mapping)
    items = cast("Iterable[Condition | Mapping[str, Any]]", (value,) if is_single else value)
    return tuple(item if isinstance(item, Condition) else parse_condition(item) for item in items)
