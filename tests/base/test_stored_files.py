"""Test that stored files of every format can be read, and that a newer format is refused and left unchanged.

`stored_files` has a file for each version of each format. A new version needs a new file there and a migration.
"""

import contextlib
import json
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dovetail.auth.authorizer import OAuthAuthorizer
from dovetail.auth.flow_runner import FlowRunner
from dovetail.auth.sqlite_store import SQLiteStore
from dovetail.auth.token_stores import FileTokenStore
from dovetail.errors import UnsupportedFileVersion
from dovetail.host.audit_log import AuditLog, read_audit_log
from dovetail.host.consent.consent import Allow, AllowWithChanges, Deny
from dovetail.host.consent.grants import Grant, GrantStore
from dovetail.host.consent.inbox import DeferredCall, DeferredSkill, FileConsent, get_inbox
from dovetail.host.consent.pins import Pin, PinStore
from dovetail.oauth.authorization_server.store import ClientRecord, TokenFamily, decode_record
from dovetail.oauth.authorization_server.token_issuer import OAuthTokenIssuer
from dovetail.oauth.login.login_settings import OAuth
from dovetail.oauth.login.saved_login import SavedLogin
from dovetail.protocol.sealer import Sealer
from dovetail.recording.recording_format import Event, Frame, RecordingHeader, read_parts
from dovetail.recording.trace import RecordingWriter
from dovetail.server.call_state import CallState
from dovetail.server.state_stores import SQLiteStateStore
from dovetail.tasks.sqlite_task_store import SQLiteTaskStore
from dovetail.tasks.task_record import TaskError, restore_caller
from dovetail.tasks.task_rules import get_open_requests
from dovetail.transports.http_client.http_client import HTTPClient

FIXTURES = Path(__file__).parent / "stored_files"
LOGIN_URL = "https://mcp.example.com/mcp"
NOW = 1760000010.0


def check_grants(path: Path) -> None:
    store = GrantStore(path)
    limited, project = store.list()
    assert (limited.granted_at, limited.expires_at) == (1760000000.5, 4000000000.0)
    assert limited.arguments == {"path": {"const": "/srv/a"}, "text": {"type": "string"}}
    assert (project.kind, project.caller, project.project) == ("completion", "ada", "/srv/work")
    store.add(Grant(scope="always", server="files", identity="cmd:abc", tool="new"))
    assert [grant.id for grant in store.list()].count("") == 0
    assert store.list()[-2:] == [limited, project]


def check_pins(path: Path) -> None:
    store = PinStore(path)
    read, write = store.list()
    assert read == Pin(
        server="files",
        identity="cmd:abc",
        name="read",
        fingerprint="f1",
        definition={"name": "read", "inputSchema": {"type": "object"}},
        pinned_at=1760000000.5,
    )
    assert (write.fingerprint, write.pinned_at) == ("f2", 1760000001.5)
    assert store.remove(name="write") == 1
    assert PinStore(path).list() == [read]


def check_login(path: Path) -> None:
    store = FileTokenStore(path.parent)
    path.rename(store.get_path(LOGIN_URL))
    login = SavedLogin.load(store.get(LOGIN_URL) or b"")
    assert login is not None
    assert login.token is not None
    assert (login.resource, login.client.client_id, login.scopes) == (LOGIN_URL, "c1", ["files", "mail"])
    assert (login.token.access_token, login.token.expires_at) == ("example-access-token", 1760003600.5)
    store.set(LOGIN_URL, login.dump())
    store.get_path(LOGIN_URL).rename(path)
    assert SavedLogin.load(path.read_bytes()) == login


def check_audit_log(path: Path) -> None:
    with AuditLog(path) as audit_log:
        audit_log.write("call", "files", tool="write")
    header, decision, call, added = read_audit_log(path)
    assert isinstance(header, RecordingHeader)
    assert isinstance(decision, Event)
    assert isinstance(call, Event)
    assert isinstance(added, Event)
    assert decision.data == {"kind": "tool.call", "tool": "read", "action": "allow"}
    assert (call.at, call.server, call.data["ms"]) == (1760000001.5, "files", 1.5)
    assert added.data == {"tool": "write"}


def check_recording(path: Path) -> None:
    parts = [*read_parts(path.read_bytes().splitlines())]
    assert [type(part) for part in parts] == [RecordingHeader, Frame, Frame, Frame, Event, Event]
    assert isinstance(parts[0], RecordingHeader)
    assert isinstance(parts[4], Event)
    assert parts[0].started_at == "2025-11-25T12:00:00.000Z"
    assert parts[4].data == {"tool": "forecast", "ms": 3}
    RecordingWriter(path, "weather").record("server", b'{"jsonrpc":"2.0","id":2,"method":"ping"}')
    added = [*read_parts(path.read_bytes().splitlines())]
    assert added[:6] == parts
    assert [type(part) for part in added[6:]] == [RecordingHeader, Frame]


async def check_inbox(path: Path) -> None:
    consent = FileConsent(path)
    inbox = get_inbox(consent)
    assert inbox is not None
    call, form, *skills = await inbox.items()
    assert (call.ticket, call.request.arguments, call.created_at) == ("tkt_a", {"days": 3}, 1760000000.5)
    assert (form.request.kind, form.request.details) == ("elicitation.form", {"message": "Sure?"})
    found = await inbox.find("tkt_a")
    assert found is not None
    assert found[1] == DeferredCall(
        server="hr", identity="cmd:abc", tool="approve", arguments={"days": 3}, fingerprint="f1"
    )
    assert [item.request.tool for item in skills] in ([], ["skill://forms/SKILL.md"])  # since format 3
    for item in skills:
        stored = await inbox.find(item.ticket)
        assert stored is not None
        assert stored[1] == DeferredCall(
            server="hr",
            identity="cmd:abc",
            tool="skill://forms/SKILL.md",
            arguments={},
            fingerprint="f2",
            skill=DeferredSkill(
                definition={"name": "skill://forms/SKILL.md", "files": "SKILL.md: sha256:00 1"}, can_remember=True
            ),
        )
    assert await inbox.wait("tkt_c") == Allow("always", expires_in=60.0, exact_arguments=True)
    assert await inbox.wait("tkt_d") == Deny("no", cancelled=True)
    assert await inbox.wait("tkt_e") == AllowWithChanges({"exact": 1})
    consent.close()


async def check_authorization_server(path: Path) -> None:
    store = SQLiteStore(path)
    client = decode_record(await store.get("client", "c1", NOW), ClientRecord)
    family = decode_record(await store.get("family", "f1", NOW), TokenFamily)
    assert client is not None
    assert family is not None
    assert (client.client_name, client.redirect_uris) == ("Editor", ("http://127.0.0.1/callback",))
    assert (family.grant.subject, family.current, family.renewable) == ("ada", "h3", 4000000000.0)
    # The file has an index of the logins of each user.
    sealer = Sealer("k" * 32, purpose="test")
    issuer = OAuthTokenIssuer("https://a.example", store, sealer, access_token_ttl=60, refresh_token_ttl=60)
    assert await FlowRunner({}).run(issuer.revoke_user("ada")) == 1
    assert await store.get("family", "f1", NOW) is None
    await store.put("code", "x", b"1", NOW + 60, NOW)
    store.close()


async def check_state(path: Path) -> None:
    state = CallState(SQLiteStateStore(path), "counter", "user", "ada")
    # "old" has expired, and the name of "forgotten" has format 1.
    assert [await state.get(key) for key in ("count", "old", "forgotten")] == [3, None, None]
    await state.set("count", 4)
    assert await state.get("count") == 4


async def check_tasks(path: Path) -> None:
    store = SQLiteTaskStore(path)
    task, completed, failed, cancelled = [await store.get(f"task-{number}") for number in range(1, 5)]
    assert task is not None
    assert completed is not None
    assert failed is not None
    assert cancelled is not None
    assert (task.version, task.status, task.phase, task.attempt) == (6, "input_required", "waiting", 1)
    assert (task.tool, task.tool_digest, task.arguments, task.max_retries) == ("report", "d1", {"month": "2025-10"}, 1)
    assert (task.created_at, task.updated_at, task.expires_at) == (1760000000.5, 1760000004.5, 1760003600.5)
    assert (task.status_message, task.progress, task.progress_total) == ("half", 1.0, 2.0)
    assert (task.once_values, task.request_meta) == ({"step": {"n": 1}}, {"a": 1})
    assert task.lease is not None
    assert (task.lease.holder, task.lease.expires_at) == ("w-1", 1760000031.5)
    assert ([*get_open_requests(task)], task.inputs["a"].response["content"]) == (["b"], {"name": "Ada"})
    principal = restore_caller(task).principal
    assert principal is not None
    assert (str(principal), principal.scopes, principal.claims) == (task.owner, {"files"}, {"tenant": 7})
    assert (completed.status, completed.result) == ("completed", {"content": [], "isError": True})
    assert (failed.status, failed.error) == ("failed", TaskError(code=-32603, message="no", data={"x": 1}))
    assert cancelled.status == "cancelled"
    assert (await store.change(task)).version == 7
    await store.close()


class StoredFormat(NamedTuple):
    version: int
    check: Callable[[Path], Any]
    use: Callable[[Path], Any]  # everything that reads or writes one


def use_login(path: Path) -> None:
    SavedLogin.load(path.read_bytes(), path)


FORMATS = {
    "grants": StoredFormat(2, check_grants, lambda path: GrantStore(path).revoke("x")),
    "pins": StoredFormat(2, check_pins, lambda path: PinStore(path).accept("s", "i", [])),
    "logins": StoredFormat(2, check_login, use_login),
    "audit_log": StoredFormat(2, check_audit_log, AuditLog),
    "recordings": StoredFormat(2, check_recording, lambda path: RecordingWriter(path, "x")),
    "inbox": StoredFormat(3, check_inbox, FileConsent),
    "authorization_server": StoredFormat(3, check_authorization_server, SQLiteStore),
    "tasks": StoredFormat(1, check_tasks, SQLiteTaskStore),
    "state": StoredFormat(1, check_state, SQLiteStateStore),
}


def restore(fixture: Path, folder: Path) -> Path:
    """Return a copy of a file. A database is built from its dump."""
    path = folder / fixture.name
    if fixture.suffix == ".sql":
        path = path.with_suffix(".db")
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.executescript(fixture.read_text(encoding="utf-8"))
    else:
        shutil.copyfile(fixture, path)
    path.chmod(0o600)
    return path


def read_version(path: Path) -> int:
    if path.suffix == ".db":
        with contextlib.closing(sqlite3.connect(path)) as database:
            return database.execute("PRAGMA user_version").fetchone()[0] or 1
    header = json.loads(path.read_bytes().splitlines()[0] if path.suffix == ".jsonl" else path.read_bytes())
    return header.get("recording" if path.suffix == ".jsonl" else "version", 1)


def set_version(path: Path, version: Any) -> None:
    if path.suffix == ".db":
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute(f"PRAGMA user_version = {version}")
        return
    name = "recording" if path.suffix == ".jsonl" else "version"
    text = re.sub(rf'"{name}":\d+', f'"{name}":{json.dumps(version)}', path.read_text(encoding="utf-8"), count=1)
    path.write_text(text, encoding="utf-8")


def list_fixtures() -> Iterator[Any]:
    for name in FORMATS:
        for fixture in sorted((FIXTURES / name).iterdir()):
            yield pytest.param(name, fixture, id=f"{name}-{fixture.stem}")


@pytest.mark.parametrize("name", FORMATS)
def test_every_version_has_a_fixture(name: str) -> None:
    versions = [int(fixture.stem.removeprefix("format_")) for fixture in sorted((FIXTURES / name).iterdir())]
    assert versions == [*range(1, FORMATS[name].version + 1)]
    assert {folder.name for folder in FIXTURES.iterdir()} == FORMATS.keys()


@pytest.mark.parametrize(("name", "fixture"), [*list_fixtures()])
async def test_every_version_is_read_and_written_in_the_current_one(name: str, fixture: Path, tmp_path: Path) -> None:
    path = restore(fixture, tmp_path)
    assert read_version(path) == int(fixture.stem.removeprefix("format_"))
    result = FORMATS[name].check(path)
    if result is not None:
        await result
    if name != "recordings":  # each recording in a file has its own header
        assert read_version(path) == FORMATS[name].version


@pytest.mark.parametrize("name", FORMATS)
def test_a_newer_version_is_refused_and_left_alone(name: str, tmp_path: Path) -> None:
    supported = FORMATS[name].version
    path = restore(next((FIXTURES / name).glob(f"format_{supported}.*")), tmp_path)
    set_version(path, supported + 1)
    before = path.read_bytes()
    with pytest.raises(UnsupportedFileVersion) as caught:
        FORMATS[name].use(path)
    assert (caught.value.version, caught.value.supported_version) == (supported + 1, supported)
    assert caught.value.path == str(path)
    assert str(path) in str(caught.value)
    assert caught.value.hint
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", ["x", 0, -1, None, 2.5])
def test_a_version_that_is_not_one_is_refused(version: Any, tmp_path: Path) -> None:
    path = restore(FIXTURES / "grants" / "format_2.json", tmp_path)
    set_version(path, version)
    before = path.read_bytes()
    with pytest.raises(UnsupportedFileVersion):
        GrantStore(path).revoke(server="files")
    assert path.read_bytes() == before


async def test_a_login_of_a_newer_version_is_not_replaced_by_a_new_one(tmp_path: Path) -> None:
    store = FileTokenStore(tmp_path)
    store.set(LOGIN_URL, b'{"version":99}')
    authorizer = OAuthAuthorizer(LOGIN_URL, OAuth(token_store=str(tmp_path)), HTTPClient)
    with pytest.raises(UnsupportedFileVersion) as caught:
        await authorizer.get_headers("POST", LOGIN_URL)
    assert caught.value.path == str(store.get_path(LOGIN_URL))
    assert store.get(LOGIN_URL) == b'{"version":99}'


def test_an_audit_log_that_becomes_newer_counts_what_it_drops(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit_log = AuditLog(path)
    path.write_bytes(b'{"recording":99}\n')
    audit_log.write("call", "files")
    assert audit_log.dropped_count == 1
    assert path.read_bytes() == b'{"recording":99}\n'
