"""Test the audit log: its entries for calls and decisions, redaction, permissions and rotation."""

import gc
import json
import logging
import os
import stat
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import pytest

from dovetail import Host, Server
from dovetail.host.audit_log import AuditLog, attach_audit_log, describe_shape, read_audit_log
from dovetail.host.authorization import DecisionDetails
from dovetail.host.config.secret_lookup import SecretResolver
from dovetail.host.events import EventEmitter, HostEvent
from dovetail.host.policy.policy import Decision, PolicyRequest
from dovetail.recording.recording_format import Event, RecordingHeader
from dovetail.storage import lock_path

CANARY = "canary-7f3a91"
ARGUMENTS = {"repo": "octo/app", "token": CANARY, "labels": ["a", "b"]}


def events(path: Path) -> list[Event]:
    return [entry for entry in read_audit_log(path) if isinstance(entry, Event)]


def test_an_entry_has_the_shape_of_arguments_and_no_empty_fields(tmp_path: Path) -> None:
    path = tmp_path / "log" / "audit.jsonl"
    before = time.time()
    with AuditLog(path) as audit_log:
        audit_log.write("call", "github", arguments=ARGUMENTS, outcome="ok", error=None)
        audit_log.write("reload", files=2)
    header, call, reload = read_audit_log(path)
    assert isinstance(header, RecordingHeader)
    assert isinstance(call, Event)
    assert before - 1 <= call.at <= time.time() + 1
    shape = {"repo": "string(8)", "token": "***", "labels": ["array(2)", "string(1)"]}
    assert (call.event, call.server, call.data) == ("call", "github", {"arguments": shape, "outcome": "ok"})
    assert isinstance(reload, Event)
    assert (reload.event, reload.server, reload.data) == ("reload", "", {"files": 2})
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_host_writes_decisions_answers_calls_and_states(tmp_path: Path) -> None:
    app = Server("github")
    app.add_tool(lambda repo: repo, name="create_issue")
    async with Host(consent=lambda _: True, audit_log=tmp_path / "audit.jsonl") as host:
        host.add("github", app)
        await host.call("github.create_issue", repo="octo/app")
    entries = {(entry.event, entry.data.get("kind")): entry.data for entry in events(tmp_path / "audit.jsonl")}
    about = {"kind": "tool.call", "tool": "create_issue"}
    decision = entries["decision", "tool.call"]
    assert decision.items() >= (about | {"arguments": {"repo": "string(8)"}, "action": "allow"}).items()
    assert decision["level"] == "built-in"
    assert entries["consent", "tool.call"].items() >= (about | {"answer": "allow"}).items()
    assert entries["call", "tool.call"].items() >= (about | {"outcome": "ok"}).items()
    assert entries["server.state", None] == {"previous_state": "ready", "state": "idle"}


def test_values_only_if_they_are_wanted(tmp_path: Path) -> None:
    secrets = SecretResolver({"API_KEY": "looked-up-secret"})
    secrets.resolve("${API_KEY}")
    for include_values in (False, True):
        path = tmp_path / f"{include_values}.jsonl"
        with AuditLog(path, include_values=include_values, secrets=secrets) as audit_log:
            arguments = {"q": "hello looked-up-secret", "password": CANARY}
            audit_log.write("call", "s", arguments=arguments, error="Bearer abcdefghijk looked-up-secret")
        text = path.read_text(encoding="utf-8")
        assert ("hello" in text) is include_values
        assert "looked-up-secret" not in text
        assert "abcdefghijk" not in text
        assert CANARY not in text


def test_large_values_are_described_by_their_shape(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "j", include_values=True) as kept:
        kept.write("call", "s", arguments={"q": "x" * 100_000}, error="e" * 100_000)
    (one,) = events(tmp_path / "j")
    assert one.data["arguments"] == {"…": {"q": "string(100000)"}}
    assert len(one.data["error"]) == 1000


def test_nothing_in_it_acts_on_a_terminal(tmp_path: Path) -> None:
    hostile = "\x1b]8;;x\x07\x7f\x9b2J\u202e\u2028\u200b\U000e0041 é"
    with AuditLog(tmp_path / "j", include_values=True) as kept:
        kept.write("call", "s", tool=hostile, arguments={hostile: hostile}, error=hostile)
    data = (tmp_path / "j").read_bytes()
    assert not [one for one in data if one != 0x0A and not 0x20 <= one < 0x7F]
    assert events(tmp_path / "j")[0].data["error"] == hostile


def test_a_full_one_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with AuditLog(path, max_bytes=500, backup_count=2) as kept:
        for number in range(40):
            kept.write("n", number=number)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["j", "j.1", "j.2", "j.lock"]
    assert all(one.stat().st_size <= 500 for one in tmp_path.iterdir())
    numbers = [one.data["number"] for one in events(path)]
    assert numbers == [*range(numbers[0], 40)]
    assert 10 < len(numbers) < 40


def test_without_older_ones(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "j", max_bytes=300, backup_count=0) as kept:
        for number in range(40):
            kept.write("n", number=number)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["j", "j.lock"]
    assert events(tmp_path / "j")[-1].data["number"] == 39


def test_a_file_taken_away_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with AuditLog(path) as kept:
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
    with AuditLog(tmp_path / "j") as kept:
        kept.write("a")
        kept.write("b")
    assert kept.dropped_count == 2
    assert len(caplog.records) == 1


def test_shapes() -> None:
    assert describe_shape({"a": 1, "b": 1.5, "c": True, "d": None, "e": [], "f": {}}) == {
        "a": "integer", "b": "number", "c": "boolean", "d": "null", "e": ["array(0)"], "f": {},
    }  # fmt: skip
    assert describe_shape([b"bytes"]) == ["array(1)", "bytes"]
    assert describe_shape({"set": {1}}) == {"set": "set"}
    assert len(describe_shape({str(number): 1 for number in range(1000)})) == 51
    deep: Any = "x"
    for _ in range(100):
        deep = {"a": [deep]}
    assert len(json.dumps(describe_shape(deep))) < 200


def test_a_secret_where_a_text_is_cut_leaves_nothing(tmp_path: Path) -> None:
    secrets = SecretResolver({"TOKEN": "SECRETVALUE-0123456789abcdef"})
    secrets.resolve("${TOKEN}")
    with AuditLog(tmp_path / "j", secrets=secrets) as journal:
        journal.write("x", "s", reason="a" * 985 + "SECRETVALUE-0123456789abcdef")
    assert "SECRET" not in (tmp_path / "j").read_text(encoding="utf-8")


@pytest.mark.parametrize("is_reopened", [True, False])
def test_an_entry_after_half_a_line_is_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_reopened: bool
) -> None:
    path = tmp_path / "j"
    with AuditLog(path) as audit_log:
        audit_log.write("first")
        if is_reopened:  # a crash in the middle of a write
            audit_log.write("torn")
            os.truncate(path, path.stat().st_size - 5)
        else:  # a full disk
            write = os.write
            with monkeypatch.context() as patch:
                patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[: len(data) // 2]))
                audit_log.write("torn")
            assert audit_log.dropped_count == 1
            audit_log.write("second")
    if is_reopened:
        with AuditLog(path) as audit_log:
            audit_log.write("second")
    caplog.clear()
    assert [entry.event for entry in events(path)] == ["first", "second"]
    assert len(caplog.records) == 1


def test_a_damaged_line_does_not_hide_later_entries_and_files(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with AuditLog(path) as audit_log:
        audit_log.write("first")
        with path.open("ab") as file:
            file.write(b'{"event":"torn","at":1.{"event":"glued","at":2}\n')
        audit_log.write("second")
    path.rename(tmp_path / "j.1")
    with AuditLog(path) as audit_log:
        audit_log.write("third")
    assert [entry.event for entry in events(path)] == ["first", "second", "third"]


def test_no_descriptor_is_lost_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    def open_file(path: str | Path) -> int:
        opened.append(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
        return opened[-1]

    monkeypatch.setattr("dovetail.host.audit_log.open_for_append", open_file)
    with AuditLog(tmp_path / "j") as audit_log, monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda *_: 0)
        audit_log.write("a")
        assert audit_log.dropped_count == 1
        with pytest.raises(OSError, match="descriptor"):
            os.fstat(opened[-1])


def test_a_damaged_line_of_an_older_format_is_kept(tmp_path: Path) -> None:
    path, damaged = tmp_path / "j", b'{"event":"torn","at":1.'
    path.write_bytes(
        b'{"recording":1,"began":"1970-01-01T00:00:00Z"}\n'
        b'{"event":"first","at":1,"facts":{"number":1}}\n' + damaged + b"\n"
        b'{"event":"second","at":2,"facts":{"number":2}}\n'
    )
    path.chmod(0o600)
    with AuditLog(path) as audit_log:
        audit_log.write("third", number=3)
    assert audit_log.dropped_count == 0
    assert [entry.data["number"] for entry in events(path)] == [1, 2, 3]
    assert damaged in path.read_bytes().splitlines()


def test_an_audit_log_does_not_keep_the_secrets_of_a_host_that_is_gone(tmp_path: Path) -> None:
    secrets = SecretResolver({"API_KEY": "looked-up-secret"})
    secrets.resolve("${API_KEY}")
    with AuditLog(tmp_path / "j") as audit_log:
        hosts = [Host(audit_log=audit_log, secrets=secrets) for _ in range(2)]
        audit_log.write("note", reason="looked-up-secret")
        assert "looked-up-secret" not in (tmp_path / "j").read_text(encoding="utf-8")
        released = weakref.ref(secrets)
        hosts.clear()
        del secrets
        gc.collect()
        assert released() is None


def test_only_rotated_files_are_read_as_older_files(tmp_path: Path) -> None:
    path = tmp_path / "audit[1].jsonl"
    for name, event in (("audit[1].jsonl.10", "a"), ("audit[1].jsonl.2", "b"), ("audit[1].jsonl", "c")):
        with AuditLog(tmp_path / name) as audit_log:
            audit_log.write(event)
    for name in ("audit[1].jsonl.1.gz", "audit[1].jsonl.1~", "audit[1].jsonl.lock", "audit1.jsonl.3"):
        (tmp_path / name).write_bytes(b"\x1f\x8b")
    assert [entry.event for entry in events(path)] == ["a", "b", "c"]


def test_a_process_that_keeps_the_lock_neither_stops_the_log_nor_loses_entries(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with AuditLog(path, max_bytes=200) as audit_log:
        started_at = time.monotonic()
        with lock_path(path):
            for number in range(20):
                audit_log.write("n", number=number)
        assert time.monotonic() - started_at < 20  # a lock of other files can take 30 s
        assert audit_log.dropped_count == 0
    assert [entry.data["number"] for entry in events(path)] == [*range(20)]


def test_an_entry_with_half_a_character_is_readable(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "j", include_values=True) as audit_log:
        audit_log.write("call", "s", arguments={"text": "half \ud83d"}, error="\udc00")
    (entry,) = events(tmp_path / "j")
    assert entry.data["arguments"] == {"text": "half ?"}


@pytest.mark.parametrize("options", [{"max_bytes": 0}, {"max_bytes": -1}, {"backup_count": -1}])
def test_limits_out_of_range_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    [(name, value)] = options.items()
    with pytest.raises(ValueError, match=f"{name}=.*{value}"):
        AuditLog(tmp_path / "j", **options)


def test_a_problem_of_a_configuration_names_its_file(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text("{", encoding="utf-8")
    with AuditLog(tmp_path / "j") as audit_log:
        Host.from_config(config, audit_log=audit_log)
    (problem,) = events(tmp_path / "j")
    assert problem.event == "config.problem"
    assert problem.data["file"] == str(config)
    assert problem.data["message"]


def build_decision(reason: str, arguments: dict[str, Any] | None = None) -> HostEvent:
    request = PolicyRequest(server="s", tool="t", arguments=arguments)
    details = DecisionDetails(request, Decision(action="allow", reason=reason))
    return HostEvent(kind="decision", server="s", details=details)


def test_the_texts_of_repeated_entries_are_searched_for_secrets_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[bytes] = []
    monkeypatch.setattr("dovetail.host.audit_log.may_hold_secrets", lambda encoded: searched.append(encoded) or False)
    with AuditLog(tmp_path / "j") as audit_log:
        emitter = EventEmitter()
        attach_audit_log(audit_log, emitter, SecretResolver({}))
        for _ in range(3):
            emitter.emit(build_decision("a rule — with a reason", {"path": "/x"}))
        first_searches = len(searched)
        emitter.emit(build_decision("another rule", {"path": "/x"}))
    assert (first_searches, len(searched)) == (2, 3)
    about = {"kind": "tool.call", "tool": "t", "action": "allow", "level": "built-in"}
    data = about | {"reason": "a rule — with a reason", "arguments": {"path": "string(2)"}}
    assert [entry.data for entry in events(tmp_path / "j")] == [*[data] * 3, data | {"reason": "another rule"}]


@pytest.mark.parametrize("is_same_host", [True, False])
def test_a_secret_that_is_learned_later_is_masked_in_a_repeated_entry(tmp_path: Path, is_same_host: bool) -> None:
    secrets, later = SecretResolver({"KEY": "canary-7f3a91"}), SecretResolver({"KEY": "canary-7f3a91"})
    with AuditLog(tmp_path / "j") as audit_log:
        emitter = EventEmitter()
        attach_audit_log(audit_log, emitter, secrets)
        if not is_same_host:
            later.resolve("${KEY}")
        event = build_decision(f"about {CANARY}", {CANARY: 1})
        for _ in range(2):
            emitter.emit(event)
        if is_same_host:
            secrets.resolve("${KEY}")
        else:
            attach_audit_log(audit_log, EventEmitter(), later)
        for _ in range(2):
            emitter.emit(event)
    before, after = events(tmp_path / "j")[:2], events(tmp_path / "j")[2:]
    assert [entry.data["reason"] for entry in before] == [f"about {CANARY}"] * 2
    assert [entry.data["reason"] for entry in after] == ["about ***"] * 2
    assert [entry.data["arguments"] for entry in after] == [{"***": "integer"}] * 2


def test_an_audit_log_with_many_different_entries_keeps_few_of_their_texts(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "j") as audit_log:
        emitter = EventEmitter()
        attach_audit_log(audit_log, emitter, SecretResolver({}))

        def emit_entries(count: int) -> int:
            tracemalloc.start()
            for number in range(count):
                emitter.emit(build_decision(f"{number} {'x' * 800}", {f"{number}": "x"}))
            used, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            return used

        assert emit_entries(3000) < 6 * 1024 * 1024


def list_kept_texts(value: object) -> list[bytes]:
    """Return the texts that an object keeps in its attributes and collections."""
    match value:
        case str():
            return [value.encode()]
        case bytes():
            return [value]
        case dict():
            return [text for item in [*value, *value.values()] for text in list_kept_texts(item)]
        case tuple() | list() | set():
            return [text for item in value for text in list_kept_texts(item)]
        case _:
            return []


def test_an_audit_log_keeps_no_argument_name_that_is_a_secret(tmp_path: Path) -> None:
    name = "ghp_" + "a1B2" * 9
    with AuditLog(tmp_path / "j") as audit_log:
        emitter = EventEmitter()
        attach_audit_log(audit_log, emitter, SecretResolver({}))
        emitter.emit(build_decision("a rule", {name: 1}))
        assert not any(name.encode() in text for text in list_kept_texts(vars(audit_log)))
    assert name not in (tmp_path / "j").read_text(encoding="utf-8")


@pytest.mark.parametrize("is_request", [True, False])
def test_a_slow_search_for_secrets_does_not_delay_other_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_request: bool
) -> None:
    started, released = threading.Event(), threading.Event()

    def search(encoded: bytes) -> bool:
        if b"slow" in encoded:
            started.set()
            released.wait(60)
        return False

    monkeypatch.setattr("dovetail.host.audit_log.may_hold_secrets", search)
    with AuditLog(tmp_path / "j") as audit_log:
        emitter = EventEmitter()
        attach_audit_log(audit_log, emitter, SecretResolver({}))

        def write(reason: str) -> None:
            if is_request:
                emitter.emit(build_decision(reason))
            else:
                audit_log.write("note", reason=reason)

        threads = [threading.Thread(target=write, args=(reason,)) for reason in ("slow", "fast")]
        try:
            threads[0].start()
            assert started.wait(60)
            threads[1].start()
            threads[1].join(20)
            assert [entry.data["reason"] for entry in events(tmp_path / "j")] == ["fast"]
        finally:
            released.set()
            for thread in threads:
                thread.join()
    assert [entry.data["reason"] for entry in events(tmp_path / "j")] == ["fast", "slow"]
