"""Test the closed list of consent kinds, and the default decision of each."""

import re
from typing import Any

import pytest

from dovetail import Policy, rule
from dovetail.host.policy.policy import PolicyRequest
from dovetail.host.policy.rules import CONSENT_KINDS, check_consent_kind


@pytest.mark.parametrize(
    ("given", "meant"), [("tools.call", "tool.call"), ("tools/call", "tool.call"), ("sampling", "sampling"), ("x*", "")]
)
def test_a_kind_there_is_not_is_refused_with_what_may_be_meant(given: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"{re.escape(repr(given))}.*{meant}"):
        rule("deny", kind=given)


@pytest.mark.parametrize("given", ["tool.call", "tool.*", "*", "*.call", "elicitation.[fu]*"])
def test_a_kind_or_a_glob_that_matches_one_is_taken(given: str) -> None:
    assert rule("deny", kind=given).kind == (given,)


def test_a_kind_is_not_a_pattern() -> None:
    assert {check_consent_kind(kind) for kind in CONSENT_KINDS} == set(CONSENT_KINDS)
    with pytest.raises(ValueError, match=r"'tool_call'.*'tool\.call'"):
        check_consent_kind("tool_call")


def verdict(policy: Policy, kind: str, **more: Any) -> str:
    return policy.decide(PolicyRequest(server="m", kind=kind, **more)).action


@pytest.mark.parametrize("default", [None, "ask", "deny", "hide"])
@pytest.mark.parametrize("kind", ["server.start", "tool.result", "sampling.response", "roots.list", "completion"])
def test_what_the_user_configured_is_not_asked_about_unless_a_rule_names_it(default: Any, kind: str) -> None:
    assert verdict(Policy(default), kind) == "allow"
    assert verdict(Policy(default, [rule("ask", kind=kind)]), kind) == "ask"
    assert verdict(Policy(default, [rule("ask", server="m")]), kind) == "allow"
    assert verdict(Policy(default, [rule("deny", server="m")]), kind) == "deny"


@pytest.mark.parametrize("more", [rule("ask", server="m"), rule("deny", tool="m.*"), rule("deny", destructive=True)])
@pytest.mark.parametrize("kind", ["server.start", "roots.list"])
def test_no_other_rule_switches_off_one_that_names_the_kind(more: Any, kind: str) -> None:
    for rules in ([more, rule("ask", kind=kind)], [rule("ask", kind=kind), more]):
        assert verdict(Policy("allow", rules), kind) == "ask"
    tiers = Policy.combine(user=Policy("allow", [more]), project=Policy(rules=[rule("ask", kind=kind)]))
    assert verdict(tiers, kind) == "ask"


def test_what_tools_say_of_themselves_is_about_tools() -> None:
    for kind in CONSENT_KINDS:
        expected = "deny" if kind in ("tool.call", "tool.result") else verdict(Policy("allow"), kind)
        assert verdict(Policy("allow", [rule("deny", destructive=True)]), kind, tool="t") == expected


@pytest.mark.parametrize("kind", ["sampling.request", "login", "elicitation.form", "elicitation.url"])
def test_what_a_server_asks_for_is_not_given_by_a_default(kind: str) -> None:
    assert verdict(Policy("allow"), kind) == "ask"
    assert verdict(Policy("allow", [rule("allow", server="m")]), kind) == "ask"
    assert verdict(Policy("deny"), kind) == "deny"
    named = verdict(Policy(rules=[rule("allow", kind=kind)]), kind)
    assert named == ("ask" if kind.startswith("elicitation.") else "allow")  # a form is for a person, whoever allows it


def test_a_projects_server_is_started_only_if_a_rule_names_that() -> None:
    start: dict[str, Any] = {"kind": "server.start", "from_project": True}
    assert verdict(Policy("allow"), **start) == "ask"
    assert verdict(Policy("allow", [rule("allow", server="m")]), **start) == "ask"
    assert verdict(Policy("deny"), **start) == "deny"
    assert verdict(Policy("ask", [rule("allow", kind="server.start", server="m")]), **start) == "allow"
    project = Policy(rules=[rule("allow", kind="server.start")])
    assert verdict(Policy.combine(user=Policy("allow"), project=project), **start) == "ask"


def test_a_changed_definition_is_shown_whatever_the_rules_allow() -> None:
    assert verdict(Policy("allow", [rule("allow", kind="*")]), "definition.changed", tool="t") == "ask"
    assert verdict(Policy("deny", [rule("allow", tool="m.t")]), "definition.changed", tool="t") == "ask"
    assert verdict(Policy("allow", [rule("deny", kind="definition.changed")]), "definition.changed") == "deny"
