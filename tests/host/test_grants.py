"""Test grants: what they cover, what invalidates them, and several processes that share them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.host.consent.grants import Grant, GrantStore, Scope, build_argument_shape, matches_shape
from dovetail.host.policy.policy import PolicyRequest
from dovetail.wire.base import replace
from dovetail.wire.codec import convert as real_convert

NOW = 1_800_000_000.0
QUESTION = PolicyRequest(
    server="github",
    tool="create_issue",
    arguments={"repo": "octo/app", "title": "x"},
    server_identity="i1",
    project="/p",
)


def set_time(monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    monkeypatch.setattr("time.time", lambda: now)


@pytest.mark.parametrize(
    ("question", "print_", "now", "found"),
    [
        (QUESTION, "f1", NOW, True),
        (QUESTION, "f1", NOW + 59, True),
        (QUESTION, "f1", NOW + 60, False),
        (QUESTION, "f2", NOW, False),
        (QUESTION, "", NOW, False),
        (replace(QUESTION, server_identity="i2"), "f1", NOW, False),
        (replace(QUESTION, server_identity=""), "f1", NOW, False),
        (replace(QUESTION, tool="delete_repo"), "f1", NOW, False),
        (replace(QUESTION, kind="tool.result"), "f1", NOW, False),
        (replace(QUESTION, server="work"), "f1", NOW, False),  # perhaps another account at the same URL
        (replace(QUESTION, arguments={"repo": "octo/app", "title": "other"}), "f1", NOW, True),
        (replace(QUESTION, arguments={"repo": "evil/x", "title": "x"}), "f1", NOW, False),
        (replace(QUESTION, arguments={"repo": "octo/app", "title": ["x"]}), "f1", NOW, False),
        (replace(QUESTION, arguments={"repo": "octo/app", "force": True}), "f1", NOW, False),
        (replace(QUESTION, arguments=None), "f1", NOW, False),
    ],
)
def test_what_a_grant_covers(
    question: PolicyRequest, print_: str, now: float, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    grants = GrantStore()
    set_time(monkeypatch, NOW)
    grants.add(Grant.from_request(QUESTION, "f1", scope="session", expires_in=60, exact_arguments=["repo"]))
    set_time(monkeypatch, now)
    assert (grants.find(question, print_) is not None) is found


def test_scopes(tmp_path: Path) -> None:
    here, other_run = GrantStore(tmp_path / "g"), GrantStore(tmp_path / "g")
    elsewhere = replace(QUESTION, project="/q")
    kinds: list[tuple[Scope, bool, bool]] = [
        ("session", False, True),
        ("project", True, False),
        ("always", True, True),
    ]
    for scope, runs, projects in kinds:
        made = here.add(Grant.from_request(QUESTION, "f", scope=scope))
        assert here.find(QUESTION, "f") == made
        assert (other_run.find(QUESTION, "f") is not None) is runs
        assert (here.find(elsewhere, "f") is not None) is projects
        assert here.revoke(made.id) == 1
        assert here.find(QUESTION, "f") is None
        assert other_run.find(QUESTION, "f") is None


def test_once_is_once() -> None:
    grants = GrantStore()
    grants.add(Grant.from_request(QUESTION, "f"))
    assert grants.find(QUESTION, "f") is not None
    assert grants.find(QUESTION, "f") is None


def test_a_grant_for_a_project_needs_one() -> None:
    grants, nowhere = GrantStore(), replace(QUESTION, project="")
    grants.add(Grant.from_request(nowhere, "f", scope="project"))
    assert grants.find(nowhere, "f") is None


def test_a_grant_without_an_identity_is_refused() -> None:
    with pytest.raises(ValueError, match="identity"):
        GrantStore().add(Grant.from_request(replace(QUESTION, server_identity=""), "f"))
    with pytest.raises(ValueError, match="nothing"):
        Grant.from_request(QUESTION, "f", exact_arguments=["nothing"])
    with pytest.raises(ValueError, match=r"id.*server.*tool"):
        GrantStore().revoke()


def test_grants_can_be_listed_and_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grants = GrantStore(tmp_path / "g")
    given: list[tuple[str, str, Scope, float | None]] = [
        ("a", "x", "always", None),
        ("a", "y", "session", None),
        ("b", "x", "always", 10.0),
    ]
    made: list[Grant] = []
    for at, (server, tool, scope, expires_in) in enumerate(given):
        set_time(monkeypatch, NOW + at)
        request = replace(QUESTION, server=server, tool=tool)
        made.append(grants.add(Grant.from_request(request, "f", scope=scope, expires_in=expires_in)))
    assert grants.list() == made
    set_time(monkeypatch, NOW + 100)
    assert grants.list() == made[:2]
    assert grants.revoke(server="a", tool="z") == 0
    assert grants.revoke(server="a") == 2
    assert grants.list() == []


def test_an_invalid_grant_in_the_file_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "g"
    grants = GrantStore(path)
    grants.add(Grant.from_request(QUESTION, "f", scope="always"))
    path.write_text(path.read_text(encoding="utf-8").replace('"always"', '"forever"'), encoding="utf-8")
    path.chmod(0o600)
    assert grants.find(QUESTION, "f") is None
    assert grants.list() == []


def test_a_stored_grant_without_an_identity_covers_nothing(tmp_path: Path) -> None:
    path, nobody = tmp_path / "g", replace(QUESTION, server_identity="")
    GrantStore(path).add(Grant.from_request(QUESTION, "f", scope="always"))
    path.write_text(path.read_text(encoding="utf-8").replace('"i1"', '""'), encoding="utf-8")
    assert GrantStore(path).find(nobody, "f") is None


TAKER = """
import sys
from dovetail.host.consent.grants import GrantStore
from dovetail.host.policy.policy import PolicyRequest
grants = GrantStore(sys.argv[1])
question = PolicyRequest(server="s", tool="t", server_identity="i")
sys.stdin.readline()
print(sum(grants.find(question, "f") is not None for _ in range(30)))
"""


def test_of_several_processes_one_gets_what_is_given_for_once(tmp_path: Path) -> None:
    path = tmp_path / "g"
    grants = GrantStore(path)
    for _ in range(25):
        grants.add(Grant.from_request(PolicyRequest(server="s", tool="t", server_identity="i"), "f"))
    command = [sys.executable, "-c", TAKER, str(path)]
    takers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    taken = [int(taker.communicate("\n", timeout=60)[0]) for taker in takers]
    assert sum(taken) == 25
    assert grants.list() == []


json = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
arguments = st.dictionaries(st.sampled_from("abcd"), json, max_size=4)


@given(arguments, arguments, st.data())
def test_a_shape_fits_what_it_was_taken_of_and_nothing_wider(
    one: dict[str, Any], other: dict[str, Any], data: st.DataObject
) -> None:
    exact = data.draw(st.sets(st.sampled_from(sorted(one)))) if one else set[str]()
    shape = build_argument_shape(one, exact)
    assert matches_shape(shape, one)
    if matches_shape(shape, other):
        assert other.keys() <= one.keys()
        assert all(type(other[name]) is type(one[name]) for name in other)
        assert all(other[name] == one[name] for name in exact)


def test_true_is_not_one() -> None:
    assert not matches_shape(build_argument_shape({"a": True}, ["a"]), {"a": 1})
    assert not matches_shape(build_argument_shape({"a": True}), {"a": 1})
    assert not matches_shape(build_argument_shape({"a": 1}), {"a": 1.5})


def test_a_grant_says_what_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    set_time(monkeypatch, NOW)
    assert Grant.from_request(QUESTION, "f", scope="project", expires_in=5, exact_arguments=["repo"]) == Grant(
        scope="project",
        server="github",
        identity="i1",
        tool="create_issue",
        fingerprint="f",
        arguments={"repo": {"const": "octo/app"}, "title": {"type": "string"}},
        project="/p",
        granted_at=NOW,
        expires_at=NOW + 5,
    )


def test_a_grant_for_exact_arguments_fixes_all_of_them() -> None:
    assert Grant.from_request(QUESTION, "f").arguments is None
    fixed = {"repo": {"const": "octo/app"}, "title": {"const": "x"}}
    assert Grant.from_request(QUESTION, "f", exact_arguments=True).arguments == fixed


# Many grants and callers


def test_a_caller_with_too_many_grants_loses_its_oldest() -> None:
    grants = GrantStore()
    ada = replace(QUESTION, caller="ada")
    grants.add(Grant.from_request(replace(QUESTION, caller="bob"), "f", scope="session"))
    for number in range(300):
        grants.add(Grant.from_request(ada, f"f{number}", scope="session"))
    assert grants.find(ada, "f0") is None
    assert grants.find(ada, "f299") is not None
    assert grants.find(replace(QUESTION, caller="bob"), "f") is not None
    assert len(grants.list()) < 300


def test_the_user_of_the_host_keeps_all_grants() -> None:
    grants = GrantStore()
    for number in range(300):
        grants.add(Grant.from_request(QUESTION, f"f{number}", scope="session"))
    assert len(grants.list()) == 300
    assert grants.find(QUESTION, "f0") is not None


def test_callers_without_end_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.host.consent.grants._MAX_CALLERS", 10)
    grants = GrantStore()
    grants.add(Grant.from_request(QUESTION, "f", scope="session"))
    for number in range(50):
        grants.add(Grant.from_request(replace(QUESTION, caller=f"caller {number}"), "f", scope="session"))
    assert len(grants.list()) == 10
    assert grants.find(QUESTION, "f") is not None
    assert grants.find(replace(QUESTION, caller="caller 49"), "f") is not None
    assert grants.find(replace(QUESTION, caller="caller 0"), "f") is None


def test_the_same_answer_twice_is_one_grant() -> None:
    grants = GrantStore()
    for _ in range(3):
        grants.add(Grant.from_request(QUESTION, "f1", scope="session"))
    grants.add(Grant.from_request(QUESTION, "f1", scope="session", exact_arguments=True))
    assert len(grants.list()) == 2


@pytest.mark.parametrize("in_file", [False, True])
def test_stored_grants_are_parsed_only_when_they_have_changed(
    tmp_path: Path, in_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[Any] = []

    def convert(*args: Any, **options: Any) -> Any:
        parsed.append(args)
        return real_convert(*args, **options)

    monkeypatch.setattr("dovetail.host.consent.grants.convert", convert)
    grants = GrantStore(tmp_path / "grants.json" if in_file else None)
    for number in range(20):
        grants.add(Grant.from_request(replace(QUESTION, caller=f"caller {number}"), "f1", scope="always"))
    for _ in range(5):
        assert grants.find(replace(QUESTION, caller="caller 7"), "f1") is not None
    assert len(parsed) == 20
    other = GrantStore(tmp_path / "grants.json") if in_file else grants
    assert other.revoke(tool="create_issue") == 20
    assert grants.find(replace(QUESTION, caller="caller 7"), "f1") is None
    grants.add(Grant.from_request(QUESTION, "f1", scope="always"))
    assert grants.find(QUESTION, "f1") is not None
