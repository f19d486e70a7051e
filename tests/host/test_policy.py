"""Test policies: decisions, tiers that only tighten, trust in annotations, limits, files and explanations."""

import itertools
import re
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Policy, ToolAnnotations, rule
from dovetail.host import argument
from dovetail.host.policy.policy import PolicyRequest, Rule, apply_non_interactive, find_limits
from dovetail.host.policy.rules import evaluate_hint

Verdict = Literal["allow", "ask", "deny", "hide"]
ORDER: dict[str, int] = {"allow": 0, "ask": 1, "deny": 2, "hide": 3}
VERDICTS: tuple[Verdict, ...] = ("allow", "ask", "deny", "hide")

RULES = [
    rule("deny", tool="*.delete_*", reason="no deletions"),
    rule("allow", server="docs", read_only=True),
    rule("allow", tool="github.create_issue", when=argument("/repo").in_(["octo/app"])),
    rule("ask", tool="browser.navigate", unless=argument("/url").host_in("localhost")),
    rule("allow", server="browser"),
    rule("hide", server="github", tool=["fork_*", "star_*"]),
    rule("allow", server="model", kind="sampling.*"),
    rule("deny", server="shell", when=argument("/paths").under("/etc")),
    rule("allow", server="shell", when=argument("/paths").under("/srv/scratch", "/etc")),
]
POLICY = Policy(rules=RULES)
READING = ToolAnnotations(read_only_hint=True)


def verdict(policy: Policy, server: str, tool: str = "x", arguments: Any = None, **more: Any) -> str:
    return policy.decide(PolicyRequest(server=server, tool=tool, arguments=arguments, **more)).action


@pytest.mark.parametrize(
    ("server", "tool", "arguments", "more", "expected"),
    [
        ("github", "delete_repo", {}, {}, "deny"),
        ("github", "repo.delete_all", {}, {}, "deny"),  # a dot in its name does not help it
        ("github", "undelete", {}, {}, "ask"),
        ("docs", "search", {}, {"annotations": READING, "trusted": True}, "allow"),
        ("docs", "search", {}, {"annotations": READING}, "ask"),
        ("docs", "search", {}, {"trusted": True}, "ask"),
        ("github", "create_issue", {"repo": "octo/app"}, {}, "allow"),
        ("github", "create_issue", {"repo": "evil/x"}, {}, "ask"),
        ("github", "create_issue", {"repo": ["octo/app", "evil/x"]}, {}, "ask"),
        ("github", "create_issue", {}, {}, "ask"),
        ("github", "create_issue", None, {}, "ask"),
        ("evil", "github.create_issue", {"repo": "octo/app"}, {}, "ask"),
        ("browser", "navigate", {"url": "http://localhost/"}, {}, "allow"),
        ("browser", "navigate", {"url": "http://localhost@evil.example/"}, {}, "ask"),
        ("browser", "navigate", {"url": "http://evil.example/"}, {}, "ask"),
        ("browser", "navigate", {}, {}, "ask"),
        ("browser", "click", {}, {}, "allow"),
        ("github", "fork_repo", {}, {}, "hide"),
        ("gitlab", "fork_repo", {}, {}, "ask"),
        ("model", "", None, {"kind": "sampling.request"}, "allow"),
        ("model", "x", {}, {}, "ask"),
        ("browser", "", None, {"kind": "sampling.request"}, "ask"),  # an allow without a kind does not reach so far
        ("shell", "rm", {"paths": ["/srv/scratch/x"]}, {}, "allow"),
        ("shell", "rm", {"paths": ["/srv/scratch/x", "/etc/passwd"]}, {}, "deny"),
        ("shell", "rm", {"paths": ["/srv/scratch/x", 7]}, {}, "deny"),
        ("shell", "rm", {"paths": ["/srv/scratch/x", "/home"]}, {}, "ask"),
    ],
)
def test_decisions(server: str, tool: str, arguments: Any, more: dict[str, Any], expected: str) -> None:
    assert verdict(POLICY, server, tool, arguments, **more) == expected


def test_the_order_of_rules_does_not_matter() -> None:
    question = PolicyRequest(server="s", tool="t", arguments={})
    for rules in itertools.permutations([rule(one, server="s") for one in VERDICTS]):
        assert Policy(rules=rules).decide(question).action == "hide"
        assert Policy(rules=rules[1:]).decide(question).action == max(
            (r.action for r in rules[1:]), key=ORDER.__getitem__
        )


def test_a_decision_names_its_rule_and_reason() -> None:
    decision = POLICY.decide(PolicyRequest(server="github", tool="delete_repo", arguments={}))
    assert decision.rule is RULES[0]
    assert "no deletions" in decision.reason
    assert "*.delete_*" in decision.reason
    assert decision.level == "user"
    assert Policy().decide(PolicyRequest(server="x")).level == "built-in"


def test_a_server_cannot_pass_for_another_by_a_dot_in_a_name() -> None:
    policy = Policy(rules=[rule("allow", tool="a*b.c"), rule("allow", tool="github.*")])
    assert verdict(policy, "axb", "c", {}) == "allow"
    assert verdict(policy, "a", "xb.c", {}) == "ask"
    assert verdict(policy, "evil", "github.push", {}) == "ask"


# What a server says of its own tools.

hints = st.builds(
    ToolAnnotations,
    read_only_hint=st.sampled_from([None, True, False]),
    destructive_hint=st.sampled_from([None, True, False]),
    idempotent_hint=st.sampled_from([None, True, False]),
    open_world_hint=st.sampled_from([None, True, False]),
)
facts = st.dictionaries(st.sampled_from(["readOnly", "destructive", "idempotentHint", "open_world"]), st.booleans())
rules = st.builds(rule, st.sampled_from(VERDICTS), server=st.sampled_from(["a", "b", "*"]), annotations=facts)
policies = st.builds(Policy, st.none() | st.sampled_from(VERDICTS), st.lists(rules, max_size=5))


@given(policies, hints)
def test_no_word_of_a_server_that_is_not_trusted_changes_a_decision(policy: Policy, said: ToolAnnotations) -> None:
    assert verdict(policy, "a", annotations=said) == verdict(policy, "a")


def test_hints_of_a_trusted_server_count_as_the_specification_reads_them() -> None:
    def facts(said: ToolAnnotations | None, trusted: bool = True) -> list[bool]:
        question = PolicyRequest(server="a", annotations=said, trusted=trusted)
        return [evaluate_hint(question, name) for name in ("read_only", "destructive", "idempotent", "open_world")]

    worst = [False, True, False, True]
    assert facts(None) == facts(ToolAnnotations()) == worst
    assert facts(READING) == [True, False, False, True]
    assert facts(ToolAnnotations(destructive_hint=False, idempotent_hint=True, open_world_hint=False)) == [
        False, False, True, False,
    ]  # fmt: skip
    assert facts(ToolAnnotations(read_only_hint=True, open_world_hint=False), trusted=False) == worst


# Tiers.


@given(policies, policies, policies, hints, st.booleans())
def test_a_lower_tier_never_loosens(
    admin: Policy, user: Policy, project: Policy, said: ToolAnnotations, trusted: bool
) -> None:
    for server in ("a", "b"):
        more: dict[str, Any] = {"annotations": said, "trusted": trusted}
        above = Policy.combine(admin=admin, user=user)
        whole = Policy.combine(admin=admin, user=user, project=project)
        assert ORDER[verdict(whole, server, **more)] >= ORDER[verdict(above, server, **more)]
        alone = admin.decide(PolicyRequest(server=server, tool="x", **more))
        if alone.level != "built-in":  # what the administrator said is the least
            assert ORDER[verdict(above, server, **more)] >= ORDER[alone.action]


@pytest.mark.parametrize(
    ("admin", "user", "project", "expected", "tier"),
    [
        (None, None, None, "ask", "built-in"),
        (None, None, Policy("allow", [rule("allow")]), "ask", "built-in"),
        (None, None, Policy("deny"), "deny", "project"),
        (None, Policy("allow"), Policy("deny"), "deny", "project"),
        (None, Policy(rules=[rule("allow")]), Policy("deny"), "allow", "user"),  # a default is no rule
        (None, Policy(rules=[rule("allow")]), Policy(rules=[rule("deny")]), "deny", "project"),
        (Policy(rules=[rule("deny")]), Policy(rules=[rule("allow")]), None, "deny", "admin"),
        (Policy(rules=[rule("allow")]), Policy(rules=[rule("deny")]), None, "deny", "user"),
        (Policy("deny"), Policy(rules=[rule("allow")]), None, "deny", "admin"),
        (Policy(rules=[rule("deny", server="z")]), Policy(rules=[rule("allow")]), None, "allow", "user"),
        (Policy(rules=[rule("allow")]), Policy("ask"), None, "allow", "admin"),
    ],
)
def test_tiers(admin: Policy | None, user: Policy | None, project: Policy | None, expected: str, tier: str) -> None:
    decision = Policy.combine(admin=admin, user=user, project=project).decide(PolicyRequest(server="a", tool="x"))
    assert (decision.action, decision.level) == (expected, tier)


def test_without_a_user_ask_means_deny() -> None:
    asked, allowed = PolicyRequest(server="a"), PolicyRequest(server="b")
    policy = Policy(rules=[rule("allow", server="b")])
    decision = apply_non_interactive(policy, policy.decide(asked))
    assert decision.action == "deny"
    assert decision.reason != policy.decide(asked).reason
    assert apply_non_interactive(policy, policy.decide(allowed)).action == "allow"
    assert Policy(non_interactive="allow").non_interactive == "allow"
    assert (
        Policy.combine(user=Policy(non_interactive="allow"), project=Policy(non_interactive="allow")).non_interactive
        == "deny"
    )
    assert (
        Policy.combine(admin=Policy(non_interactive="deny"), user=Policy(non_interactive="allow")).non_interactive
        == "deny"
    )


# Limits.


def test_of_several_limits_the_strictest_of_each_kind_counts() -> None:
    admin = Policy(limits={"*": {"timeout": 60, "rate": "50/s"}})
    user = Policy(limits={"github.*": "60/min", "*": {"timeout": 90, "max_result_bytes": 1000, "max_concurrency": 4}})
    found = find_limits(Policy.combine(admin=admin, user=user), "github", "x")
    assert (found.timeout, found.max_result_bytes, found.max_concurrency, found.rate) == (60, 1000, 4, "60/min")
    assert find_limits(Policy.combine(admin=admin, user=user), "docs", "x").rate == "50/s"
    assert str(found) == "timeout 60, max_result_bytes 1000, max_concurrency 4, rate 60/min"
    assert find_limits(Policy(), "a", "b").timeout is None


@pytest.mark.parametrize("glob", ["n.read", "n__read", "read", "n.*", "*"])
def test_a_limit_is_meant_by_every_spelling(glob: str) -> None:
    policy = Policy(limits={glob: {"timeout": 5}})
    assert find_limits(policy, "n", "read").timeout == 5
    assert (find_limits(policy, "m", "write").timeout is None) is (glob != "*")


@pytest.mark.parametrize(
    "given", ["often", "0/min", {"rate": 5}, {"timeout": 0}, {"timeout": True}, {"max_concurrency": 1.5}, {"speed": 1}]
)
def test_a_bad_limit_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"60/min|timeout|concurrency|speed"):
        Policy(limits={"*": given})


# Files.

FILE = """
default = "ask"
non_interactive = "deny"

[[rules]]
action = "deny"
tool = "*.delete_*"
reason = "no deletions"

[[rules]]
action = "allow"
server = ["docs", "wiki"]
read_only = true

[[rules]]
action = "allow"
tool = "github.create_issue"
when = {argument = "/repo", in = ["octo/app"]}
unless = [{argument = "/private", equals = true}]

[limits]
"github.*" = "60/min"
"*" = {timeout = 60}
"""


def test_a_file_says_the_same_as_python(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(FILE, encoding="utf-8")
    written = Policy(
        default="ask",
        rules=[
            rule("deny", tool="*.delete_*", reason="no deletions"),
            rule("allow", server=["docs", "wiki"], read_only=True),
            rule(
                "allow",
                tool="github.create_issue",
                when=argument("/repo").in_(["octo/app"]),
                unless=[argument("/private").equals(True)],
            ),
        ],
        limits={"github.*": "60/min", "*": {"timeout": 60}},
        non_interactive="deny",
    )
    assert Policy.load(path).explain() == written.explain()


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("colour = 1", "colour"),
        ('default = "maybe"', "default .*maybe"),
        ('non_interactive = "ask"', "non_interactive .*ask"),
        ('[[rules]]\naction = "perhaps"', r"rules\[0\]: .*perhaps"),
        ('[[rules]]\naction = "deny"\ntools = "x"', r"rules\[0\]: .*tools"),
        ('[[rules]]\ntool = "x"', r"rules\[0\]: .*action"),
        ('[[rules]]\naction = "deny"\ntool = 5', r"rules\[0\]"),
        ('[[rules]]\naction = "deny"\ntool = [5]', r"rules\[0\]: .*5"),
        ('[[rules]]\naction = "deny"\nread_only = "yes"', r"rules\[0\]: .*read_only"),
        ('[[rules]]\naction = "deny"\nannotations = {shiny = true}', "'shiny'.*read_only"),
        ('[[rules]]\naction = "hide"\nwhen = {argument = "/a", exists = true}', r"rules\[0\]: .*hide"),
        ("[limits]\n'*' = 'x'", "'x'.*60/min"),
        ("[[rules", "policy.toml"),
    ],
)
def test_a_bad_file_says_what_is_wrong(tmp_path: Path, text: str, about: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=about) as caught:
        Policy.load(path)
    assert str(caught.value).startswith(str(path))


# Explanations.


def test_an_explanation_shows_what_each_rule_made_of_the_question() -> None:
    tiers = Policy.combine(
        admin=Policy(rules=[rule("deny", server="prod", reason="not from here")]),
        user=Policy(
            rules=[
                rule("allow", server="prod"),
                rule("allow", tool="prod.read", read_only=True),
                rule("allow", tool="prod.read", when=argument("/table").in_(["public"])),
                rule("ask", tool="prod.read", unless=argument("/limit").exists()),
                rule("allow", server="docs"),
            ],
            limits={"prod.*": {"timeout": 5}},
        ),
        project=Policy("ask"),
    )
    question = PolicyRequest(server="prod", tool="read", arguments={"table": "users\x1b", "limit": 1})
    shown = tiers.explain(question)
    assert "\x1b" not in shown
    for pattern in (
        r"^deny +tool\.call prod\.read: .*not from here.*\[admin\]$",
        r'^ +arguments \{"table":"users\\u001b","limit":1\}$',
        r"^admin:\n +rules\[0\] deny, server prod .*not from here",
        r"^user:\n +rules\[3\] ask, tool prod\.read, unless /limit exists\n +no: .*/limit exists$",
        r"^ +rules\[1\] allow, tool prod\.read, read_only\n +no: .*read_only.*trusted",
        r'^ +rules\[2\] allow, .*\n +no: .*/table in "public".* "users\\u001b"$',
        r"^ +limit prod\.\*: timeout 5$",
        r"^project:\n +default ask$",
        r"^built-in:\n +default ask\n.* deny$",
    ):
        assert re.search(pattern, shown, re.MULTILINE), pattern
    verdicts = re.findall(r"^ +rules\[(\d)\].*\n {4,}(applies|no:)", shown, re.MULTILINE)
    assert verdicts == [("0", "applies"), ("3", "no:"), ("0", "applies"), ("1", "no:"), ("2", "no:")]


def test_rules_are_data() -> None:
    made: Rule = rule(
        "deny", server="a", tool=["b", "c"], kind="tool.call", destructive=True, annotations={"openWorld": False}
    )
    assert str(made) == "deny, server a, tool b or c, kind tool.call, destructive, not open_world"
    assert made == rule(
        "deny", server="a", tool=("b", "c"), kind=["tool.call"], annotations={"destructive": True, "open_world": False}
    )


# Names.


@pytest.mark.parametrize(
    ("glob", "server", "tool"),
    [
        ("admin.delete", "x", "admin.delete"),
        ("https://evil.com/*", "x", "https://evil.com/a"),
        ("https://evil.com/*", "x", "https://EVIL.com/a"),
        ("file:///etc/*.conf", "x", "file:///etc/a.conf"),
        ("file:///etc/*", "x", "file:///home/../etc/passwd"),
        ("file:///etc/*", "x", "file:///home/%2e%2e/etc/passwd"),
        ("n__read", "n", "read"),
        ("n.read", "n", "read"),
    ],
)
@pytest.mark.parametrize("named", [{}, {"server": "*"}])
def test_what_tightens_is_meant_by_every_spelling(glob: str, server: str, tool: str, named: dict[str, Any]) -> None:
    for one in VERDICTS[1:]:
        policy = Policy("allow", [rule(one, tool=glob, **named)])
        assert verdict(policy, server, tool, kind="resource.read") == one
        assert verdict(policy, server, "other", kind="resource.read") == "allow"


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ("file:///home/me/notes.txt", "allow"),
        ("file:///home/me/a..b/.c", "allow"),
        ("file:///home/me/100%25", "allow"),
        ("file:///home/me/../../etc/passwd", "ask"),
        ("file:///home/me/./x", "ask"),
        ("file:///home/me/%2e%2E/x", "ask"),
        ("file:///home/me/..%2f..%2fetc", "ask"),
        ("file:///home/me/%252e%252e/x", "ask"),
        ("file:///home/me/..\\x", "ask"),
        ("file:///home/me/%2525252525252e%2e/x", "ask"),
    ],
)
def test_an_address_that_can_be_read_as_another_is_not_let_in_by_its_beginning(tool: str, expected: str) -> None:
    named = Policy(rules=[rule("allow", server="fs", tool="file:///home/me/*")])
    assert verdict(named, "fs", tool, kind="resource.read") == expected
    assert verdict(Policy(rules=[rule("allow", server="fs")]), "fs", tool, kind="resource.read") == "allow"


def test_an_address_with_a_dot_names_no_server() -> None:
    policy = Policy(rules=[rule("allow", tool="https://docs.example/*")])
    assert verdict(policy, "any", "https://docs.example/a", kind="resource.read") == "allow"


def test_the_name_a_model_sees_allows_this_tool_and_no_other() -> None:
    policy = Policy(rules=[rule("allow", tool=["n__read", "n__*"])])
    assert verdict(policy, "n", "read", {}) == "allow"
    assert verdict(policy, "n_", "read", {}) == "ask"
    assert verdict(policy, "n", "write", {}) == "ask"


def test_an_ignored_hint_is_reported_with_a_fix() -> None:
    policy = Policy("ask", [rule("allow", read_only=True)])
    told = policy.decide(PolicyRequest(server="a", tool="x", arguments={}, annotations=READING)).reason
    assert "trusted=True" in told
    assert "x-dovetail" in told
    assert "trust" not in policy.decide(PolicyRequest(server="a", tool="x", arguments={})).reason
    asking = Policy("allow", [rule("ask", destructive=True)])
    assert "read-only" in asking.decide(PolicyRequest(server="a", tool="x", arguments={}, annotations=READING)).reason


def test_rules_given_as_tables_are_rules_and_anything_else_is_refused_at_once() -> None:
    policy = Policy("allow", [{"action": "deny", "tool": "x"}])
    assert verdict(policy, "a", "x", {}) == "deny"
    wrong: Any = ["deny"]
    with pytest.raises(TypeError, match="rule"):
        Policy("allow", wrong)


@pytest.mark.parametrize(("member", "meant"), [("readonly", "read_only"), ("tools", "tool"), ("acton", "action")])
def test_a_misspelled_member_of_a_rule_is_reported_with_a_suggestion(member: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"rules\[0\]: .*{member}.*'{meant}'"):
        Policy.from_dict({"rules": [{"action": "deny", member: True}]})


def test_a_decision_is_remembered_only_if_arguments_do_not_matter() -> None:
    policy = Policy("allow", [rule("deny", tool="write", when=argument("/path").under("/etc"))])
    for path, action in (("/data/a", "allow"), ("/etc/passwd", "deny"), ("/data/b", "allow")):
        assert policy.decide(PolicyRequest(server="s", tool="write", arguments={"path": path})).action == action
        assert policy.decide(PolicyRequest(server="s", tool="read", arguments={"path": path})).action == "allow"
        assert policy.decide(PolicyRequest(server="s", tool="write")).action == "allow"


def test_a_decision_is_remembered_for_its_annotations_and_trust_alone() -> None:
    policy = Policy("ask", [rule("allow", read_only=True)])
    for is_trusted, is_read_only, action in ((True, True, "allow"), (False, True, "ask"), (True, False, "ask")):
        for _ in range(2):
            annotations = ToolAnnotations(read_only_hint=is_read_only)
            request = PolicyRequest(server="s", tool="t", annotations=annotations, trusted=is_trusted)
            assert policy.decide(request).action == action


@pytest.mark.parametrize("option", ["when", "unless"])
@pytest.mark.parametrize("value", ["x=1", ["x=1"], 5])
def test_a_condition_that_is_not_a_table_is_refused(option: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        rule("allow", **{option: value})
    assert "x=1" in str(caught.value) or value == 5
