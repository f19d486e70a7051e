"""A policy decides which requests a host allows, asks about, denies or hides.

A decision depends only on the rules and the request. `Policy.explain` shows how it was made.
"""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

from dovetail.error_context import clip
from dovetail.host.policy.argument_coercion import StepBudget
from dovetail.host.policy.conditions import argument, format_value
from dovetail.host.policy.quotas import ToolLimits, combine_limits, parse_limits
from dovetail.host.policy.rules import (
    ALWAYS_ASK_KINDS,
    CONFIGURED_KINDS,
    NAME_MISMATCH,
    SERVER_REQUESTED_KINDS,
    STRICTNESS,
    PolicyRequest,
    Rule,
    Verdict,
    as_rule,
    depends_on_arguments,
    explain_mismatch,
    matches_restrictive,
    rule,
    rule_matches,
)
from dovetail.protocol.uri_key import MAX_URI_CHARS
from dovetail.wire.base import Struct, replace
from dovetail.wire.tools import ToolAnnotations

__all__ = ["Decision", "Policy", "PolicyRequest", "Rule", "ToolLimits", "argument", "rule"]

PolicyLevel: TypeAlias = Literal["admin", "user", "project", "built-in"]

_MAX_CACHED_DECISIONS: Final = 1024


class Decision(Struct, frozen=True, kw_only=True):
    """The decision of a policy."""

    action: Verdict  # "allow", "ask", "deny" or "hide"
    reason: str  # the reason for the decision
    level: PolicyLevel = "built-in"  # the level of the rule or default that decided
    rule: Rule | None = None  # the rule that decided, or None if a default decided


class _LevelRules(Struct, frozen=True, kw_only=True):
    level: PolicyLevel
    default: Verdict | None
    rules: tuple[Rule, ...]
    limits: tuple[tuple[str, ToolLimits], ...]
    non_interactive: Literal["allow", "deny"] | None

    def find_strictest_rule(
        self, request: PolicyRequest, steps: StepBudget, is_ignored: Callable[[Rule], bool] | None = None
    ) -> Rule | None:
        if not self.rules:
            return None
        matching_rules = [
            candidate
            for candidate in self.rules
            if rule_matches(candidate, request, steps) and (is_ignored is None or not is_ignored(candidate))
        ]
        return max(matching_rules, key=lambda candidate: STRICTNESS[candidate.action], default=None)


class Policy:
    """The rules that decide what a host may do. If no rule applies, the host asks the user.

    If several rules apply, the strictest one decides. From strict to lenient, the order is hide, deny, ask, allow.

    Args:
        default: The action if no rule matches. Defaults to "ask".
        rules: The rules, in any order.
        limits: The limits of tools. Each key is a glob for tool names. Each value is a `ToolLimits`, a dict of its
            fields, or a rate such as "60/min". If several globs match, the strictest limit applies.
        non_interactive: The action that replaces "ask" if there is no user to ask. Defaults to "deny".
    """

    def __init__(
        self,
        default: Verdict | None = None,
        rules: Iterable[Rule | Mapping[str, object]] = (),
        limits: Mapping[str, ToolLimits | str | Mapping[str, object]] | None = None,
        non_interactive: Literal["allow", "deny"] | None = None,
    ) -> None:
        if default is not None and default not in STRICTNESS:
            raise ValueError(f'default must be "allow", "ask", "deny" or "hide", not {default!r}')
        if non_interactive is not None and str(non_interactive) not in ("allow", "deny"):
            raise ValueError(f'non_interactive must be "allow" or "deny", not {non_interactive!r}')
        level_rules = _LevelRules(
            level="user",
            default=default,
            rules=tuple(map(as_rule, rules)),
            limits=tuple((glob, parse_limits(raw_limits)) for glob, raw_limits in (limits or {}).items()),
            non_interactive=non_interactive,
        )
        self._levels: tuple[_LevelRules, ...] = (level_rules,)
        # Maps requests to cached decisions, or to None if the decision depends on the arguments.
        self._decisions: dict[Any, Decision | None] = {}

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a policy from a TOML file. Raise ValueError if the file is invalid."""
        try:
            return cls.from_dict(tomllib.loads(Path(path).read_text(encoding="utf-8")))
        except ValueError as exc:
            raise ValueError(f"{path}: {exc}") from None

    @classmethod
    def from_dict(cls, document: Mapping[str, object]) -> Self:
        """Create a policy from a dict, such as a parsed TOML file or a JSON object."""
        if unknown := document.keys() - {"default", "non_interactive", "rules", "limits"}:
            raise ValueError(f"unknown key in a policy: {', '.join(sorted(unknown))}")
        fields: Mapping[str, Any] = document
        rules: list[Rule] = []
        for index, raw_rule in enumerate(fields.get("rules", ())):
            try:
                rules.append(as_rule(raw_rule))
            except (TypeError, ValueError) as exc:
                raise ValueError(f"rules[{index}]: {exc}") from None
        return cls(fields.get("default"), rules, fields.get("limits"), fields.get("non_interactive"))

    @classmethod
    def combine(
        cls, *, admin: "Policy | None" = None, user: "Policy | None" = None, project: "Policy | None" = None
    ) -> Self:
        """Combine the policies of the administrator, the user and the project.

        The policy of the user can make the decisions of the administrator stricter, and the policy of the project can
        make both stricter. No policy can allow what a higher policy denies.

        Args:
            admin: The policy of the administrator, which is the highest policy.
            user: The policy of the user.
            project: The policy of a project, which is the lowest policy.
        """
        combined = cls()
        policies_by_level: tuple[tuple[PolicyLevel, Policy | None], ...] = (
            ("admin", admin),
            ("user", user),
            ("project", project),
        )
        combined._levels = tuple(
            _LevelRules(
                level=level,
                default=level_rules.default,
                rules=level_rules.rules,
                limits=level_rules.limits,
                # A project cannot allow calls without asking the user.
                non_interactive="deny"
                if level == "project" and level_rules.non_interactive
                else level_rules.non_interactive,
            )
            for level, policy in policies_by_level
            if policy is not None
            for level_rules in policy._levels
        )
        return combined

    @property
    def non_interactive(self) -> Literal["allow", "deny"]:
        """Return the action that replaces "ask" if there is no user to ask."""
        choices = [
            level_rules.non_interactive for level_rules in self._levels if level_rules.non_interactive is not None
        ]
        return "allow" if choices and "deny" not in choices else "deny"

    def decide(self, request: PolicyRequest) -> Decision:
        """Return the decision about a request."""
        if len(request.tool) > MAX_URI_CHARS:  # It would take too long to compare a longer name with the globs.
            return _TOO_LONG_DECISION
        hints = request.annotations
        key = (
            request.server,
            request.tool,
            request.kind,
            request.trusted,
            request.from_project,
            None
            if hints is None
            else (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint),
        )
        decision = self._decisions.get(key)
        if decision is not None:
            return decision
        decision = self._evaluate(request)
        if (
            hints is not None
            and not request.trusted
            and decision.action != "allow"
            and _is_stricter(decision, self._evaluate(replace(request, trusted=True)))
        ):
            decision = replace(decision, reason=f"{decision.reason}. {_explain_ignored_hints(hints)}")
        if key not in self._decisions:
            if len(self._decisions) >= _MAX_CACHED_DECISIONS:
                self._decisions.clear()
            self._decisions[key] = None if needs_arguments(self, request) else decision
        return decision

    def _evaluate(self, request: PolicyRequest, is_ignored: Callable[[Rule], bool] | None = None) -> Decision:
        decision: Decision | None = None
        has_matching_rule = False
        steps = StepBudget()  # for all rules together
        for level_rules in self._levels:
            matching_rule = level_rules.find_strictest_rule(request, steps, is_ignored)
            if matching_rule is not None:
                candidate = Decision(
                    action=matching_rule.action,
                    reason=_format_reason(matching_rule),
                    level=level_rules.level,
                    rule=matching_rule,
                )
            elif level_rules.default is not None and not has_matching_rule and _has_default(request):
                # A default applies only if no rule of a higher level matches.
                candidate = _apply_default(level_rules.default, level_rules.level, request)
            else:
                continue
            current = decision or (_get_fallback_decision(request) if level_rules.level == "project" else None)
            decision = candidate if current is None or _is_stricter(candidate, current) else current
            has_matching_rule = has_matching_rule or matching_rule is not None
        decision = decision or _get_fallback_decision(request)
        if decision.action == "allow" and request.kind in ALWAYS_ASK_KINDS:
            return replace(
                decision, action="ask", reason=f"{decision.reason}. A user must always answer {request.kind}"
            )
        return decision

    def explain(self, request: PolicyRequest | None = None) -> str:
        """Return a text that lists the rules of all levels. In each level, the strictest rules come first.

        Args:
            request: A request to explain. With it, the text includes the decision and whether each rule applies.
        """
        lines = [] if request is None else self._explain_decision(request)
        steps = StepBudget()  # As in `decide`, all rules share this limit.
        for level_rules in self._levels:
            lines += [f"{level_rules.level}:", *self._explain_level(level_rules, request, steps)]
        return "\n".join([*lines, "built-in:", "  default ask", f"  non_interactive {self.non_interactive}"])

    def _explain_decision(self, request: PolicyRequest) -> list[str]:
        decision = self.decide(request)
        return [
            f"{decision.action}  {request.kind} {clip(request.full_name)}: {decision.reason} [{decision.level}]",
            *([f"  arguments {format_value(request.arguments)}"] if request.arguments is not None else []),
        ]

    def _explain_level(
        self, level_rules: _LevelRules, request: PolicyRequest | None, steps: StepBudget
    ) -> Iterator[str]:
        # Check the rules in the same order as `decide`, because all rules share one limit of steps.
        mismatches = [
            NAME_MISMATCH if request is None else explain_mismatch(policy_rule, request, steps)
            for policy_rule in level_rules.rules
        ]
        ordered_rules: Sequence[tuple[int, Rule]] = sorted(
            enumerate(level_rules.rules), key=lambda pair: (-STRICTNESS[pair[1].action], pair[0])
        )
        for index, policy_rule in ordered_rules:
            yield f"  rules[{index}] {policy_rule}"
            mismatch = mismatches[index]
            if mismatch != NAME_MISMATCH:
                yield "      applies" if mismatch is None else f"      no: {mismatch}"
        if level_rules.default is not None:
            yield f"  default {level_rules.default}"
        for glob, limits in level_rules.limits:
            yield f"  limit {clip(glob)}: {limits}"


def needs_arguments(policy: Policy, request: PolicyRequest) -> bool:
    """Return whether the decision about a request depends on its arguments."""
    rules = (policy_rule for level_rules in policy._levels for policy_rule in level_rules.rules)  # pyright: ignore[reportPrivateUsage]
    return any(depends_on_arguments(policy_rule, request) for policy_rule in rules)


def decide_without(policy: Policy, request: PolicyRequest, is_ignored: Callable[[Rule], bool]) -> Decision:
    """Return the policy's decision about a request. Skip each rule for which `is_ignored` returns True."""
    return policy._evaluate(request, is_ignored)  # pyright: ignore[reportPrivateUsage]


def apply_non_interactive(policy: Policy, decision: Decision) -> Decision:
    """Return the decision for a host that cannot ask a user."""
    if decision.action != "ask":
        return decision
    reason = f"{decision.reason}. No user can be asked, and non_interactive is {policy.non_interactive}"
    return Decision(action=policy.non_interactive, reason=reason, level=decision.level, rule=decision.rule)


def find_limits(policy: Policy, server: str, tool: str) -> ToolLimits:
    """Return the limits of one tool. If several globs match, the strictest limits apply."""
    combined = ToolLimits()
    for level_rules in policy._levels:  # pyright: ignore[reportPrivateUsage]
        for glob, limits in level_rules.limits:
            if matches_restrictive(glob, server, tool):
                combined = combine_limits(combined, limits)
    return combined


def as_policy(policy: Any) -> Policy:
    """Return the policy for the value of `policy=`. The value is a Policy, the path of a file, or None for no rules."""
    if policy is None:
        return Policy()
    if isinstance(policy, str) and policy in STRICTNESS:
        raise ValueError(
            f'policy="{policy}" is read as the path of a file. To {policy} every request, pass Policy("{policy}")'
        )
    if isinstance(policy, str | Path):
        return Policy.load(policy)
    if isinstance(policy, Policy):
        return policy
    raise TypeError(f"policy must be a Policy or the path of a TOML file, not {policy!r}")


_DEFAULT_DECISION: Final = Decision(action="ask", reason="no rule applies, and the host asks by default")


_TOO_LONG_DECISION: Final = Decision(
    action="hide", reason=f"names and URIs of more than {MAX_URI_CHARS} characters are not allowed"
)
_CONFIGURED_DECISION: Final = Decision(action="allow", reason="configured by the user")


def _is_configured(request: PolicyRequest) -> bool:
    """Return whether the user allowed a request by configuring the server.

    The configuration file of a project cannot allow the start of a server.
    """
    return request.kind in CONFIGURED_KINDS and not (request.from_project and request.kind == "server.start")


def _has_default(request: PolicyRequest) -> bool:
    return not _is_configured(request) and request.kind != "definition.changed"


def _get_fallback_decision(request: PolicyRequest) -> Decision:
    return _CONFIGURED_DECISION if _is_configured(request) else _DEFAULT_DECISION


def _apply_default(default: Verdict, level: PolicyLevel, request: PolicyRequest) -> Decision:
    reason = f"no rule applies, and the default is {default}"
    if default == "allow" and (
        request.kind in SERVER_REQUESTED_KINDS or (request.from_project and request.kind == "server.start")
    ):
        return Decision(action="ask", reason=f"{reason}, which does not include {request.kind}", level=level)
    return Decision(action=default, reason=reason, level=level)


def _explain_ignored_hints(annotations: ToolAnnotations) -> str:
    hints = (
        ("read-only", annotations.read_only_hint is True),
        ("not destructive", annotations.destructive_hint is False),
        ("idempotent", annotations.idempotent_hint is True),
        ("closed-world", annotations.open_world_hint is False),
    )
    claims = " and ".join(name for name, is_claimed in hints if is_claimed)
    return (
        f"The tool claims to be {claims}, but the server is not trusted. Pass trusted=True to host.add, or "
        "set trusted under x-dovetail in its file"
    )


def _format_reason(matching_rule: Rule) -> str:
    return (
        f"{matching_rule.reason} — {_format_rule(matching_rule)}"
        if matching_rule.reason
        else _format_rule(matching_rule)
    )


def _format_rule(matching_rule: Rule) -> str:
    return (
        str(matching_rule).removesuffix(f" ({clip(matching_rule.reason)})")
        if matching_rule.reason
        else str(matching_rule)
    )


def _is_stricter(decision: Decision, other: Decision) -> bool:
    return STRICTNESS[decision.action] > STRICTNESS[other.action]
