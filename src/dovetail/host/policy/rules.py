"""The rules of a policy. A rule decides whether it applies to a request.

Rules fail closed. An argument that cannot be evaluated makes the decision stricter. The annotations of a tool make a
decision less strict only if the user trusts the server.
"""

import inspect
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias, cast, get_args
from urllib.parse import unquote

from dovetail.error_context import clip, suggest_match
from dovetail.host.policy.argument_coercion import StepBudget, normalize
from dovetail.host.policy.conditions import Condition, evaluate_condition, parse_condition
from dovetail.host.qualified_names import SEPARATOR, make_full_name, make_model_name
from dovetail.protocol.uri_key import MAX_URI_CHARS, split_authority
from dovetail.protocol.uri_readings import is_ambiguous, is_uri, nfc, uri_readings
from dovetail.wire.base import Struct, replace
from dovetail.wire.tools import ToolAnnotations

# This matches the server part of a glob such as "server.tool".
_SERVER_GLOB: Final = re.compile(r"[A-Za-z0-9_*?\[\]!-]+")

# This matches a character class or an escaped wildcard. Wildcards inside a character class are plain characters.
_CLASS_OR_ESCAPED_WILDCARD: Final = re.compile(r"\[!?\]?[^\]]*\]|%(5b|5d|2a|3f)")
# Matches the opening bracket of an IPv6 address, as in http://[::1]/, which does not start a character class.
_IPV6_START: Final = re.compile(r"(?<=//)\[(?=[0-9a-f.]*:[0-9a-f.]*:)")
_LITERAL_WILDCARDS: Final = {"5b": "[[]", "5d": "[]]", "2a": "[*]", "3f": "[?]"}


def matches_restrictive(glob: str, server: str, tool: str) -> bool:
    """Return whether the glob of a strict rule may match a tool or URI.

    A strict rule asks, denies or hides.
    """
    if fnmatchcase(tool, glob) or fnmatchcase(make_full_name(server, tool), glob):
        return True
    if SEPARATOR in glob and fnmatchcase(make_model_name(server, tool), glob):
        return True
    return is_uri(tool) and _matches_uri(glob.lower(), server.lower(), tool)


def _matches_uri(glob: str, server: str, uri: str) -> bool:
    """Return whether a glob matches a URI. Ignore case and percent-encoding. A very long URI matches every glob."""
    if len(uri) > MAX_URI_CHARS:
        return True
    names = _list_names(server, uri)
    return any(fnmatchcase(name, spelling) for spelling in _expand_glob(glob) for name in names)


@lru_cache(1)
def _list_names(server: str, uri: str) -> frozenset[str]:
    readings = uri_readings(uri)
    if "?" in uri or "%" in uri:  # Many servers ignore the query, so the URI is also compared without it.
        readings |= {reading.partition("?")[0] for reading in readings}
    return frozenset(name for reading in readings for name in _build_names(reading.lower(), server))


@lru_cache(256)
def _expand_glob(glob: str) -> frozenset[str]:
    """Return the glob itself and its percent-decoded form. Encoded wildcards become literal characters."""
    literal = _IPV6_START.sub("[[]", glob)
    literal = _CLASS_OR_ESCAPED_WILDCARD.sub(lambda match: _LITERAL_WILDCARDS.get(match[1], match[0]), literal)
    return frozenset({glob, nfc(glob), nfc(unquote(literal))})


def _build_names(reading: str, server: str) -> list[str]:
    decoded = unquote(reading)
    return [reading, decoded, make_full_name(server, reading), make_full_name(server, decoded)]


def matches_permissive(
    glob: str, server: str, tool: str, *, has_server_rule: bool = False, is_certain_uri: bool = False
) -> bool:
    """Return whether the glob of an "allow" rule certainly matches a tool or URI.

    Args:
        has_server_rule: True if the rule has globs for the server, too.
        is_certain_uri: True if `tool` is certainly a URI.
    """
    if SEPARATOR in glob and glob == make_model_name(server, tool):
        return True
    is_address = "://" in tool or (is_certain_uri and is_uri(tool))
    if is_address and is_ambiguous(tool):
        return False
    matches = _matches_exactly if is_address else fnmatchcase
    # Compare the server and the tool separately. The tool "a.b" of another server must not match the glob "a.b".
    server_glob, dot, tool_glob = glob.partition(".")
    if has_server_rule or not dot or not _SERVER_GLOB.fullmatch(server_glob):
        return matches(tool, glob)
    return fnmatchcase(server, server_glob) and matches(tool, tool_glob)


def _matches_exactly(uri: str, glob: str) -> bool:
    """Return whether a glob matches a URI. A `*` in the host part matches a path only at the end of the glob."""
    authority, remainder = split_authority(glob)
    if "://" not in glob or (not remainder and authority.endswith("*")):
        return fnmatchcase(uri, glob)
    uri_authority, uri_remainder = split_authority(uri)
    return fnmatchcase(uri_authority, authority) and fnmatchcase(uri_remainder, remainder)


# The action that needs consent.
ConsentKind: TypeAlias = Literal[
    "server.start",
    "tool.call",
    "tool.result",
    "resource.read",
    "skill.tools",
    "prompt.get",
    "completion",
    "definition.changed",
    "sampling.request",
    "sampling.response",
    "elicitation.form",
    "elicitation.url",
    "roots.list",
    "login",
]

CONSENT_KINDS: Final[tuple[str, ...]] = get_args(ConsentKind)

# The user allows requests of these kinds by adding the server.
# An "allow" or "ask" rule matches a request of these kinds only if the rule names the kind.
CONFIGURED_KINDS: Final = frozenset({"server.start", "tool.result", "sampling.response", "roots.list", "completion"})
# The kinds of requests that servers send. A rule can allow such a request only if the rule names the kind.
SERVER_REQUESTED_KINDS: Final = frozenset({"sampling.request", "elicitation.form", "elicitation.url", "login"})
# The kinds of requests that are about one item. The values are placeholders for the name of the item.
ITEM_NAME_BY_KIND: Final[Mapping[str, str]] = {
    "tool.call": "TOOL",
    "tool.result": "TOOL",
    "resource.read": "URI",
    "skill.tools": "URI",
    "prompt.get": "PROMPT",
    "completion": "PROMPT",
}
# The user must always answer requests of these kinds, even if a rule allows them.
ALWAYS_ASK_KINDS: Final = frozenset({"elicitation.form", "elicitation.url", "definition.changed", "skill.tools"})


def check_consent_kind(kind: str) -> str:
    """Raise ValueError if a kind of request is unknown. Otherwise return the kind."""
    if kind not in CONSENT_KINDS:
        raise _unknown_kind_error(kind)
    return kind


def check_kind_glob(glob: str) -> str:
    """Return the glob unchanged. Raise ValueError if it matches no known kind of request."""
    if not any(fnmatchcase(kind, glob) for kind in CONSENT_KINDS):
        raise _unknown_kind_error(glob)
    return glob


def _unknown_kind_error(name: str) -> ValueError:
    suggestion = suggest_match(name.replace("/", ".").replace("_", "."), CONSENT_KINDS)
    return ValueError(f"unknown kind {name!r}{suggestion or '.'} Known kinds: {', '.join(CONSENT_KINDS)}")


Verdict: TypeAlias = Literal["allow", "ask", "deny", "hide"]

STRICTNESS: Final[Mapping[str, int]] = {"allow": 0, "ask": 1, "deny": 2, "hide": 3}
NAME_MISMATCH: Final = "another name"

_URI_KINDS: Final = frozenset({"resource.read", "skill.tools", "completion"})

_HINT_BY_SPELLING: Final[Mapping[str, str]] = {
    spelling: fact
    for fact in ("read_only", "destructive", "idempotent", "open_world")
    for camel in [fact.split("_")[0] + "".join(word.title() for word in fact.split("_")[1:])]
    for spelling in (fact, camel, f"{camel}Hint", f"{fact}_hint")
}


class PolicyRequest(Struct, frozen=True, kw_only=True):
    """A request that a policy allows or denies. If `arguments` is None, the decision is about the tool in general."""

    server: str  # the name of the server
    tool: str = ""  # the name of the tool or prompt, or the URI of the resource
    kind: str = "tool.call"  # the kind of request, such as "tool.call"
    arguments: Mapping[str, Any] | None = None  # the arguments of the call
    # The input schema of the tool. Without a schema, a server may read each argument as any type.
    schema: Mapping[str, Any] | None = None
    annotations: ToolAnnotations | None = None  # the annotations of the tool, which count only if the server is trusted
    trusted: bool = False  # True if the user trusts the server
    from_project: bool = False  # True if a project file defines the server
    server_identity: str = ""  # a digest of the server's command or URL
    caller: str = ""  # the ID of the gateway caller, or "" for the user of the host
    project: str = ""  # the folder of the project, which limits project grants

    @property
    def full_name(self) -> str:
        """Return the full name, such as "server.tool"."""
        return make_full_name(self.server, self.tool) if self.tool else self.server

    def with_arguments(self, arguments: Mapping[str, Any]) -> "PolicyRequest":
        """Return a copy of this request with new arguments. Strings are decoded if the schema expects another type.

        Send the decoded arguments to the server.
        """
        return replace(self, arguments=normalize(self.schema, arguments))


def evaluate_hint(request: PolicyRequest, name: str) -> bool:
    """Return the value of an annotation such as `destructive`.

    If the server is not trusted, return the riskier value.
    """
    annotations = request.annotations if request.trusted and request.annotations is not None else ToolAnnotations()
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
    """One rule: an action, and the requests it applies to. A field that is not set matches every request."""

    action: Verdict  # "allow", "ask", "deny" or "hide"
    server: tuple[str, ...] = ()  # globs for server names
    tool: tuple[str, ...] = ()  # globs for tool names, such as "search" or "server.search"
    kind: tuple[str, ...] = ()  # globs for kinds of requests, such as "tool.call"
    annotations: Mapping[str, bool] = {}  # the annotations that the tool must have
    when: tuple[Condition, ...] = ()  # the conditions that must all be true
    unless: tuple[Condition, ...] = ()  # if all these conditions are true, the rule does not apply
    reason: str = ""  # the reason that users and models see

    def matches(self, request: PolicyRequest) -> bool:
        """Return whether this rule applies to a request."""
        return self._matches(request, StepBudget())

    def _matches(self, request: PolicyRequest, steps: StepBudget) -> bool:
        return (
            self._matches_name(request)
            and self._explain_kind_mismatch(request) is None
            and all(evaluate_hint(request, name) is expected for name, expected in self.annotations.items())
            and self._find_argument_mismatch(request, steps) is None
        )

    def _depends_on_arguments(self, request: PolicyRequest) -> bool:
        return (
            bool(self.when or self.unless)
            and self._matches_name(request)
            and self._explain_kind_mismatch(request) is None
        )

    def _explain_mismatch(self, request: PolicyRequest, steps: StepBudget) -> str | None:
        if not self._matches_name(request):
            return NAME_MISMATCH
        if mismatch := self._explain_kind_mismatch(request):
            return mismatch
        for name, expected in self.annotations.items():
            if evaluate_hint(request, name) is not expected:
                trust = "" if request.trusted else ". Annotations of servers that are not trusted are ignored"
                return f"{name} is not {str(expected).lower()}{trust}"
        match self._find_argument_mismatch(request, steps):
            case Condition() as condition:
                if steps.is_used_up:
                    return f"needs {condition}, but the arguments are too large to evaluate"
                return f"needs {condition}, got {condition.describe_value(request.arguments or {})}"
            case mismatch:
                return mismatch

    def _matches_name(self, request: PolicyRequest) -> bool:
        if self.server and not any(fnmatchcase(request.server, glob) for glob in self.server):
            return False
        return not self.tool or any(self._matches_tool(glob, request) for glob in self.tool)

    def _matches_tool(self, glob: str, request: PolicyRequest) -> bool:
        if self.action == "allow":
            is_uri = request.kind in _URI_KINDS
            return matches_permissive(
                glob, request.server, request.tool, has_server_rule=bool(self.server), is_certain_uri=is_uri
            )
        return matches_restrictive(glob, request.server, request.tool)

    def _explain_kind_mismatch(self, request: PolicyRequest) -> str | None:
        kind = request.kind
        if self.annotations and not kind.startswith("tool."):
            return "only tools have annotations"
        if self.kind:
            return None if any(fnmatchcase(kind, glob) for glob in self.kind) else "another kind"
        if kind == "definition.changed" or (kind in CONFIGURED_KINDS and not self._is_forbidding(request)):
            return f"the rule applies to the kind {kind} only if it names this kind"
        if kind in SERVER_REQUESTED_KINDS and self.action == "allow":
            return f"a rule can allow the kind {kind} only if it names this kind"
        return None

    def _is_forbidding(self, request: PolicyRequest) -> bool:
        has_conditions = bool(self.when or self.unless)
        return self.action in ("deny", "hide") and not has_conditions and bool(request.tool or not self.tool)

    def _find_argument_mismatch(self, request: PolicyRequest, steps: StepBudget) -> Condition | str | None:
        if not (self.when or self.unless):
            return None
        arguments, schema = request.arguments, request.schema
        if arguments is None:
            if request.kind != "resource.read":
                return "the rule depends on the arguments"
            arguments = {}  # A read has no arguments, so conditions are checked against an empty object.
        match_if_unclear = self.action != "allow"
        for condition in self.when:
            if not evaluate_condition(condition, arguments, steps, if_unclear=match_if_unclear, schema=schema):
                return condition
        if self.unless and all(
            evaluate_condition(condition, arguments, steps, if_unclear=not match_if_unclear, schema=schema)
            for condition in self.unless
        ):
            return f"excluded by unless: {' and '.join(map(str, self.unless))}"
        return None

    def __str__(self) -> str:
        parts: list[str] = [self.action]
        for name, globs in (("server", self.server), ("tool", self.tool), ("kind", self.kind)):
            parts += [f"{name} {' or '.join(map(clip, globs))}"] if globs else []
        parts += [name if expected else f"not {name}" for name, expected in self.annotations.items()]
        parts += [f"when {' and '.join(map(str, self.when))}"] if self.when else []
        parts += [f"unless {' and '.join(map(str, self.unless))}"] if self.unless else []
        return ", ".join(parts) + (f" ({clip(self.reason)})" if self.reason else "")


def rule_matches(rule: Rule, request: PolicyRequest, steps: StepBudget) -> bool:
    return rule._matches(request, steps)  # pyright: ignore[reportPrivateUsage]


def explain_mismatch(rule: Rule, request: PolicyRequest, steps: StepBudget) -> str | None:
    """Return the reason why a rule does not apply to a request, or None if it applies.

    `steps` limits the work for all rules together.
    """
    return rule._explain_mismatch(request, steps)  # pyright: ignore[reportPrivateUsage]


def depends_on_arguments(rule: Rule, request: PolicyRequest) -> bool:
    """Return whether a rule needs to know the arguments of a request."""
    return rule._depends_on_arguments(request)  # pyright: ignore[reportPrivateUsage]


Globs: TypeAlias = "str | Iterable[str]"
Conditions: TypeAlias = "Condition | Mapping[str, Any] | Iterable[Condition | Mapping[str, Any]]"


def rule(
    action: Verdict,
    *,
    server: Globs = (),
    tool: Globs = (),
    kind: Globs = (),
    read_only: bool | None = None,
    destructive: bool | None = None,
    annotations: Mapping[str, bool] | None = None,
    when: Conditions = (),
    unless: Conditions = (),
    reason: str = "",
) -> Rule:
    """Create a rule for a policy. An option that you leave out matches everything.

    Args:
        action: "allow", "ask", "deny" or "hide".
        server: Globs for server names.
        tool: Globs for tool names, such as "search" or "server.search".
        kind: Globs for the kinds of requests, such as "tool.call" or "resource.read".
        read_only: True matches tools that are declared read-only. False matches all others.
        destructive: True matches tools that may be destructive. False matches tools that are declared not destructive.
        annotations: The values of other annotations that a tool must have, by name.
        when: Conditions on the arguments. All must be true.
        unless: Conditions on the arguments. The rule does not match if all are true.
        reason: The reason that users and models see.
    """
    if action not in STRICTNESS:
        raise ValueError(f'action must be "allow", "ask", "deny" or "hide", not {action!r}')
    hints = {"read_only": read_only, "destructive": destructive}
    for name, value in (annotations or {}).items():
        if name not in _HINT_BY_SPELLING:
            raise ValueError(
                f"unknown annotation {name!r}. Known annotations: "
                f"{', '.join(dict.fromkeys(_HINT_BY_SPELLING.values()))}"
            )
        hints[_HINT_BY_SPELLING[name]] = value
    for name, value in hints.items():
        if value is not None and type(value) is not bool:
            raise ValueError(f"the annotation {name} must be true or false, not {value!r}")
    new_rule = Rule(
        action=action,
        server=_as_globs(server),
        tool=_as_globs(tool),
        kind=tuple(map(check_kind_glob, _as_globs(kind))),
        annotations={name: value for name, value in hints.items() if value is not None},
        when=_as_conditions(when),
        unless=_as_conditions(unless),
        reason=reason,
    )
    if new_rule.action == "hide" and (new_rule.when or new_rule.unless):
        raise ValueError(
            "a rule with the action 'hide' cannot depend on arguments. Remove `when` and `unless`, or use 'deny'"
        )
    return new_rule


def as_rule(value: Any) -> Rule:
    """Return the rule, or create a rule from a dict of options."""
    if isinstance(value, Rule):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"a rule must be created with rule() or be a dict with the same options, not {value!r}")
    table = cast("Mapping[str, Any]", value)
    for name in table:
        if name not in _RULE_KEYS:
            suggestion = suggest_match(name, _RULE_KEYS) or "."
            raise ValueError(f"unknown key {name!r} in a rule{suggestion} Known keys: {', '.join(_RULE_KEYS)}")
    if "action" not in table:
        raise ValueError('a rule must have an action: "allow", "ask", "deny" or "hide"')
    return rule(**table)


_RULE_KEYS: Final = tuple(inspect.signature(rule).parameters)


def _as_globs(value: Globs) -> tuple[str, ...]:
    globs = (value,) if isinstance(value, str) else tuple(value)
    for glob in globs:
        if not isinstance(glob, str) or not glob:  # pyright: ignore[reportUnnecessaryIsInstance] - TOML may contain anything
            raise ValueError(f"a name or glob in a rule must be a non-empty string, not {glob!r}")
    return globs


def _as_conditions(value: Conditions) -> tuple[Condition, ...]:
    # A string is not a list of conditions. `parse_condition` raises the error for it.
    is_single = isinstance(value, Condition | Mapping | str)
    items = cast("Iterable[Condition | Mapping[str, Any]]", (value,) if is_single else value)
    return tuple(item if isinstance(item, Condition) else parse_condition(item) for item in items)
