"""The journal: what is written of calls and decisions, what is not, who may read it, and what becomes of a full one."""

import json
import logging
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail import Policy, rule
from dovetail.host.audit_log import AuditLog, describe_shape, read_audit_log
from dovetail.host.config.secret_lookup import SecretResolver
from dovetail.host.policy.policy import PolicyRequest
from dovetail.protocol.recording_format import Event, Frame, RecordingHeader, read_frames

CANARY = "canary-7f3a91"
QUESTION = PolicyRequest(
    server="github", tool="create_issue", arguments={"repo": "octo/app", "token": CANARY, "labels": ["a", "b"]}
)


def journal(path: Path, **more: Any) -> AuditLog:
    times = iter(range(1, 10_000))
    return AuditLog(path, clock=lambda: float(next(times)), **more)


def events(path: Path) -> list[Event]:
    return [one for one in read_audit_log(path) if isinstance(one, Event)]


def test_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log" / "journal.jsonl"
    decision = Policy(rules=[rule("allow", server="github", reason="mine")]).decide(QUESTION)
    with journal(path) as kept:
        kept.decision(QUESTION, decision)
        kept.consent(QUESTION, "allow")
        kept.call(QUESTION, "ok", 12.345, result_bytes=7)
        kept.call(QUESTION, "failed", 1, error="no such repository")
        kept.state("github", "starting", "failed", "it ended with 1")
        kept.write("reload", files=2)
    parts = [*read_audit_log(path)]
    assert isinstance(parts[0], RecordingHeader)
    looks = {"repo": "string(8)", "token": "***", "labels": ["array(2)", "string(1)"]}
    about: dict[str, Any] = {"kind": "tool.call", "tool": "create_issue"}
    reason = "mine — allow, server github"
    assert parts[1:] == [
        Event(event="decision", at=1.0, server="github", data=about | {
            "arguments": looks, "verdict": "allow", "tier": "user", "reason": reason,
        }),
        Event(event="consent", at=2.0, server="github", data=about | {"answer": "allow"}),
        Event(event="call", at=3.0, server="github", data=about | {
            "arguments": looks, "outcome": "ok", "ms": 12.3, "result_bytes": 7,
        }),
        Event(event="call", at=4.0, server="github", data=about | {
            "arguments": looks, "outcome": "failed", "ms": 1, "error": "no such repository",
        }),
        Event(event="state", at=5.0, server="github", data={
            "old": "starting", "new": "failed", "reason": "it ended with 1",
        }),
        Event(event="reload", at=6.0, data={"files": 2}),
    ]  # fmt: skip
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_values_only_if_they_are_wanted(tmp_path: Path) -> None:
    secrets = SecretResolver({"API_KEY": "looked-up-secret"})
    secrets.resolve("${API_KEY}", "env.API_KEY")
    question = PolicyRequest(server="s", tool="t", arguments={"q": "hello looked-up-secret", "password": CANARY})
    for values in (False, True):
        path = tmp_path / f"{values}.jsonl"
        with journal(path, values=values, secrets=secrets) as kept:
            kept.call(question, "ok", 1, error="Bearer abcdefghijk looked-up-secret")
        text = path.read_text(encoding="utf-8")
        assert ("hello" in text) is values
        assert "looked-up-secret" not in text
        assert "abcdefghijk" not in text
        assert CANARY not in text


def test_large_values_are_told_by_their_shape(tmp_path: Path) -> None:
    with journal(tmp_path / "j", values=True) as kept:
        kept.call(PolicyRequest(server="s", tool="t", arguments={"q": "x" * 100_000}), "ok", 1, error="e" * 100_000)
    (one,) = events(tmp_path / "j")
    assert one.data["arguments"] == {"…": {"q": "string(100000)"}}
    assert len(one.data["error"]) == 1000


def test_nothing_in_it_acts_on_a_terminal(tmp_path: Path) -> None:
    hostile = "\x1b]8;;x\x07\x7f\x9b2J\u202e\u2028\u200b\U000e0041 é"
    with journal(tmp_path / "j", values=True) as kept:
        kept.call(PolicyRequest(server="s", tool=hostile, arguments={hostile: hostile}), "ok", 1, error=hostile)
        kept.tap("s")("client", json.dumps({"x": hostile}).encode(), ())
    data = (tmp_path / "j").read_bytes()
    assert not [one for one in data if one != 0x0A and not 0x20 <= one < 0x7F]
    assert events(tmp_path / "j")[0].data["error"] == hostile


def test_messages_can_be_kept_too(tmp_path: Path) -> None:
    secrets = SecretResolver()
    secrets.remember("remembered-secret")
    with journal(tmp_path / "j", secrets=secrets) as kept:
        tap = kept.tap("docs")
        tap("server", b'{"id":1,"method":"ping"}', ((b"authorization", b"Bearer x"),))
        tap("client", b'{"id":1,"result":{"env":"remembered-secret","token":"t"}}', ())
        tap("client", b"not JSON, remembered-secret", ())
        kept.write("note")
    frames = [one for one in read_audit_log(tmp_path / "j") if isinstance(one, Frame)]
    assert [one.server for one in frames] == ["docs"] * 3
    assert frames[0].headers == {"authorization": "***"}
    assert frames[1].message == {"id": 1, "result": {"env": "***", "token": "***"}}
    assert frames[2].text == "not JSON, ***"
    whole = [*read_frames((tmp_path / "j").read_bytes().splitlines())]  # whoever replays it sees no events
    assert [type(one) for one in whole] == [RecordingHeader, Frame, Frame, Frame]


def test_a_full_one_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with journal(path, max_bytes=500, keep=2) as kept:
        for number in range(40):
            kept.write("n", number=number)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["j", "j.1", "j.2", "j.lock"]
    assert all(one.stat().st_size <= 500 for one in tmp_path.iterdir())
    numbers = [one.data["number"] for one in events(path)]
    assert numbers == [*range(numbers[0], 40)]
    assert 10 < len(numbers) < 40


def test_without_older_ones(tmp_path: Path) -> None:
    with journal(tmp_path / "j", max_bytes=300, keep=0) as kept:
        for number in range(40):
            kept.write("n", number=number)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["j", "j.lock"]
    assert events(tmp_path / "j")[-1].data["number"] == 39


def test_a_file_taken_away_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with journal(path) as kept:
        kept.write("a")
        path.rename(tmp_path / "taken")
        kept.write("b")
    assert [one.event for one in events(path)] == ["b"]


WRITER = """
import sys
from dovetail.host.audit_log import AuditLog
journal = AuditLog(sys.argv[1], max_bytes=4000, backup_count=1000)
sys.stdin.readline()
for number in range(200):
    journal.write("n", sys.argv[2], number=number)
"""


def test_several_processes_lose_and_mix_nothing(tmp_path: Path) -> None:
    path = tmp_path / "j"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(number)], stdin=subprocess.PIPE)
        for number in range(3)
    ]
    for writer in writers:
        writer.communicate(b"\n", timeout=60)
    assert [writer.returncode for writer in writers] == [0] * 3
    found = events(path)
    for number in range(3):
        assert sorted(one.data["number"] for one in found if one.server == str(number)) == [*range(200)]


def test_what_cannot_be_written_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "j").mkdir()
    caplog.set_level(logging.ERROR)
    with journal(tmp_path / "j") as kept:
        kept.write("a")
        kept.write("b")
    assert kept.dropped_count == 2
    assert len(caplog.records) == 1


def test_shapes() -> None:
    assert describe_shape({"a": 1, "b": 1.5, "c": True, "d": None, "e": [], "f": {}}) == {
        "a": "integer", "b": "number", "c": "boolean", "d": "null", "e": ["array(0)"], "f": {},
    }  # fmt: skip
    assert len(describe_shape({str(number): 1 for number in range(1000)})) == 51
    deep: Any = "x"
    for _ in range(100):
        deep = {"a": [deep]}
    assert len(json.dumps(describe_shape(deep))) < 200


def test_a_secret_where_a_text_is_cut_leaves_nothing(tmp_path: Path) -> None:
    secrets = SecretResolver({})
    secrets.remember("SECRETVALUE-0123456789abcdef")
    with AuditLog(tmp_path / "j", secrets=secrets) as journal:
        journal.write("x", "s", reason="a" * 985 + "SECRETVALUE-0123456789abcdef")
    assert "SECRET" not in (tmp_path / "j").read_text(encoding="utf-8")
