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
from dovetail.host.conditions import Condition, condition
from dovetail.host.globs import loosely, tightly
from dovetail.host.kinds import DEMANDED, GIVEN, read_kinds
from dovetail.host.names import full
from dovetail.wire.shape import Struct, replace
from dovetail.wire.tools import ToolAnnotations

Verdict: TypeAlias = Literal["allow", "ask", "deny", "hide"]

STRICTNESS: Final[Mapping[str, int]] = {"allow": 0, "ask": 1, "deny": 2, "hide": 3}
OTHER_NAME: Final = "another name"

_ABOUT_URIS: Final = frozenset({"resource.read", "complete"})

_HINTS: Final[Mapping[str, str]] = {
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
        return full(self.server, self.tool) if self.tool else self.server

    def with_arguments(self, arguments: Mapping[str, Any]) -> "Question":
        """The question about a call with these arguments, decoded by the schema: judge and send these."""
        return replace(self, arguments=normalize(self.schema, arguments))

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
            return OTHER_NAME
        if other := self._kind(question):
            return other
        for name, wanted in self.facts.items():
            if question.fact(name) is not wanted:
                trust = "" if question.trusted else ", and the server is not trusted to say so"
                return f"{name} is not {str(wanted).lower()}{trust}"
        return self._arguments(question.arguments, question.schema) if self.conditional else None

    def _names(self, question: Question) -> bool:
        if self.server and not any(fnmatchcase(question.server, glob) for glob in self.server):
            return False
        return not self.tool or any(self._tool(glob, question) for glob in self.tool)

    def _tool(self, glob: str, question: Question) -> bool:
        if self.verdict == "allow":
            uri = question.kind in _ABOUT_URIS
            return loosely(glob, question.server, question.tool, named=bool(self.server), uri=uri)
        return tightly(glob, question.server, question.tool)

    def _kind(self, question: Question) -> str | None:
        kind = question.kind
        if self.facts and not kind.startswith("tool."):
            return "only tools say such things of themselves"
        if self.kind:
            return None if any(fnmatchcase(kind, glob) for glob in self.kind) else "another kind"
        if kind == "definition.changed" or (kind in GIVEN and not self._forbids(question)):
            return f"it covers {kind} only if it names the kind"
        if kind in DEMANDED and self.verdict == "allow":
            return f"an allow covers {kind} only if it names the kind"
        return None

    def _forbids(self, question: Question) -> bool:
        """Whether it wants nothing to do with a server, or with this of it."""
        return self.verdict in ("deny", "hide") and bool(question.tool or not self.tool)

    def _arguments(self, arguments: Mapping[str, Any] | None, schema: Mapping[str, Any] | None) -> str | None:
        if arguments is None:
            return "it depends on the arguments"
        loose = self.verdict != "allow"
        for one in self.when:
            if not one.holds(arguments, doubt=loose, schema=schema):
                return f"needs {one}, got {one.found(arguments)}"
        if self.unless and all(one.holds(arguments, doubt=not loose, schema=schema) for one in self.unless):
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
        kind=tuple(map(read_kinds, _several(kind))),
        facts={name: value for name, value in facts.items() if value is not None},
        when=_conditions(when),
        unless=_conditions(unless),
        reason=reason,
    )
    if made.verdict == "hide" and made.conditional:
        raise ValueError("a tool is hidden or it is not: hide cannot depend on arguments")
    return made


def read_rule(given: Any) -> Rule:
    """A rule, or the table that makes one."""
    if isinstance(given, Rule):
        return given
    if not isinstance(given, Mapping):
        raise TypeError(f"a rule is made by rule(), or a table of what that takes, not {given!r}")
    table = cast("Mapping[str, Any]", given)
    for name in table:
        if name not in _MEMBERS:
            near = get_close_matches(name, _MEMBERS, n=1, cutoff=0.5)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"a rule has no {name!r}{meant} There are {', '.join(_MEMBERS)}")
    if "verdict" not in table:
        raise ValueError("a rule needs a verdict: allow, ask, deny or hide")
    return rule(**table)


_MEMBERS: Final = tuple(inspect.signature(rule).parameters)


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
