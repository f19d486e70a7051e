"""Test a host of configuration files: late secrets, consent for project files and live changes."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail import Policy, PolicyError, rule
from dovetail.errors import ProcessStartError
from dovetail.host.audit_log import read_audit_log
from dovetail.host.config.secret_lookup import SecretResolver
from dovetail.host.consent.consent import Allow, ConsentRequest
from dovetail.host.host import Host
from dovetail.host.server_settings import ServerSettings
from dovetail.recording.recording_format import Event
from support.polling import wait_until

ALLOW = Policy("allow")

CHILD = """
import os
from dovetail import Server
app = Server("child")

@app.tool
def pid() -> int:
    return os.getpid()

@app.tool
def token() -> str:
    return os.environ.get("TOKEN", "none")

@app.tool
def wipe() -> str:
    return "gone"

app.run()
"""


class File:
    """An mcp.json of one's own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "mcp.json"
        self.child = folder / "child_program.py"
        self.child.write_text(CHILD)

    def entry(self, **more: Any) -> dict[str, Any]:
        return {"command": sys.executable, "args": [str(self.child)], **more}

    def write(self, servers: Any, text: str | None = None) -> None:
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps({"mcpServers": servers}) if text is None else text)
        os.replace(beside, self.path)


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path)


def text(result: Any) -> str:
    return result.content[0].text


async def test_a_bad_entry_fails_alone_and_secrets_are_looked_up_late(file: File, tmp_path: Path) -> None:
    file.write(
        {
            "good": file.entry(env={"TOKEN": "${THE_TOKEN}"}),
            "unset": file.entry(env={"TOKEN": "${NOT_THERE}"}),
            "bad": {"neither": 1},
            "off": file.entry(disabled=True),
        }
    )
    environ: dict[str, str] = dict(os.environ)
    journal = tmp_path / "journal"
    async with Host.from_config(file.path, policy=ALLOW, secrets=SecretResolver(environ), audit_log=journal) as host:
        assert [(one.name, one.state) for one in host.servers] == [
            ("good", "idle"),
            ("off", "disabled"),
            ("unset", "idle"),
        ]
        assert [one.message.partition(":")[0] for one in host.config_problems if one.is_error] == ["bad"]
        environ["THE_TOKEN"] = "secret-value-1"
        assert text(await host.call("good.token")) == "secret-value-1"
        with pytest.raises(ProcessStartError, match=r"NOT_THERE.*env\.TOKEN"):
            await host.call("unset.token")
        assert "secret-value" not in repr(host.servers)
    assert "secret-value" not in journal.read_text()
    events = [(part.event, part.server) for part in read_audit_log(journal) if isinstance(part, Event)]
    assert ("call", "good") in events
    assert ("decision", "good") in events
    assert ("server.state", "unset") in events


async def test_our_own_settings(file: File) -> None:
    own = {"trusted": True, "exclude_tools": ["w*"], "limits": {"rate": "1/h"}, "start": "eager"}
    file.write({"a": file.entry(**{"x-dovetail": own})})
    async with Host.from_config(file.path, policy=ALLOW) as host:
        await wait_until(lambda: host.servers[0].state == "ready")
        assert {tool.name for tool in await host.list_tools()} == {"pid", "token"}
        await host.call("a.pid")
        with pytest.raises(PolicyError, match="1/h"):
            await host.call("a.pid")
        assert host.servers[0].settings.trusted


async def test_what_a_project_wants_to_start_is_asked_about_once(file: File, tmp_path: Path) -> None:
    file.write({"a": file.entry()})
    asked: list[ConsentRequest] = []

    def consent(request: ConsentRequest) -> Any:
        asked.append(request)
        return Allow("always")

    grants = tmp_path / "grants.json"
    for _ in range(2):
        async with Host.from_config(file.path, level="project", consent=consent, grants=grants) as host:
            await host.list_tools()
            assert host.servers[0].state == "ready"
    assert [one.kind for one in asked] == ["server.start"]
    assert str(file.child) in asked[0].text
    async with Host.from_config(file.path, level="project") as host:  # and nobody is there
        assert await host.list_tools() == ()
        assert host.servers[0].state == "failed"
    file.write({"a": file.entry(env={"PATH": "/elsewhere"})})
    async with Host.from_config(file.path, level="project", consent=consent, grants=grants) as host:
        await host.list_tools()
    assert len(asked) == 2  # something else than what was agreed to


async def test_a_changed_file_changes_only_what_it_speaks_of(file: File) -> None:
    file.write({"stays": file.entry(), "changes": file.entry(), "goes": file.entry()})
    async with Host.from_config(file.path, policy=ALLOW) as host:
        pid = text(await host.call("stays.pid"))
        changed = text(await host.call("changes.pid"))
        file.write({"stays": file.entry(), "changes": file.entry(env={"TOKEN": "new"}), "comes": file.entry()})
        await host.reload()
        assert [one.name for one in host.servers] == ["changes", "comes", "stays"]
        assert text(await host.call("stays.pid")) == pid
        assert text(await host.call("changes.pid")) != changed
        assert text(await host.call("changes.token")) == "new"
        file.write({}, text="{ half a fi")
        await host.reload()
        assert [one.name for one in host.servers] == ["changes", "comes", "stays"]
        assert host.config_problems
        assert text(await host.call("stays.pid")) == pid
    with pytest.raises(ValueError, match="from_config"):
        await Host().reload()


async def test_files_are_followed(file: File) -> None:
    file.write({"a": file.entry()})
    async with Host.from_config(file.path, policy=ALLOW, watch=True) as host:
        heard: list[str] = []
        host.on("server.added", lambda event: heard.append(event.server))
        file.write({"a": file.entry(), "b": file.entry()})
        await wait_until(lambda: heard == ["b"])
        assert text(await host.call("b.token")) == "none"


async def test_the_question_about_a_start_says_all_that_is_started(
    file: File, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USERS_KEY", "value-of-the-user")
    process = file.entry(
        env={"LD_PRELOAD": "/evil.so", "K": "${USERS_KEY}"},
        env_vars=["HANDED_ON"],
        envFile="some.env",
        cwd="/elsewhere",
    )
    far = {"url": "http://127.0.0.1:1/mcp", "headers": {"X-Own": "${USERS_KEY}"}}
    file.write({"a": process, "b": far})
    asked: dict[str, ConsentRequest] = {}

    def consent(request: ConsentRequest) -> Any:
        asked[request.server] = request
        return False

    async with Host.from_config(file.path, level="project", consent=consent) as host:
        await host.list_tools()
        before = host.servers[1].identity
    told = asked["a"].text
    for word in (str(file.child), "HANDED_ON", "some.env", "/elsewhere", "USERS_KEY", str(file.path)):
        assert word in told
    assert asked["a"].details["variables"] == {
        "HANDED_ON": "${HANDED_ON}",
        "K": "${USERS_KEY}",  # the name, not what it refers to
        "LD_PRELOAD": "/evil.so",
    }
    assert "/evil.so" in told
    assert "value-of-the-user" not in told
    assert "X-Own" in asked["b"].text
    assert "USERS_KEY" in asked["b"].text
    file.write({"b": far | {"headers": {"X-Own": "${ANOTHER_KEY}"}}})
    assert Host.from_config(file.path, level="project").servers[0].identity != before


def test_an_argument_cannot_pass_for_a_file_of_variables(file: File) -> None:
    args = file.entry()["args"]
    identities = set[str]()
    for changes in ({"envFile": ".env"}, {"args": [*args, "envFile=.env"]}, {"env": {"envFile": ".env"}}, {}):
        file.write({"a": file.entry(**changes)})
        identities.add(Host.from_config(file.path, level="project").servers[0].identity)
    assert len(identities) == 4


async def test_a_name_that_cannot_be_taken_costs_its_entry_alone(file: File) -> None:
    file.write({"host": file.entry(), "good": file.entry()})
    async with Host.from_config(file.path, policy=ALLOW) as host:
        assert [one.name for one in host.servers] == ["good"]
        assert [one.message.partition(":")[0] for one in host.config_problems if one.is_error] == ["host"]
        host.add("mine", file.entry())
        file.write({"host": file.entry(), "good": file.entry(), "mine": file.entry(), "new": file.entry()})
        await host.reload()
        assert [one.name for one in host.servers] == ["good", "mine", "new"]
        assert "mine" in [one.message.partition(":")[0] for one in host.config_problems]
        await host.remove("good")
        file.write({"new": file.entry()})
        await host.reload()
        assert [one.name for one in host.servers] == ["mine", "new"]


async def test_a_known_file_that_is_being_written_changes_nothing(
    file: File, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    file.write({"a": file.entry()})
    async with Host.from_config(policy=Policy("allow", [rule("allow", kind="server.start")])) as host:
        pid = text(await host.call("a.pid"))
        file.write({}, text="{ half a fi")
        await host.reload()
        assert text(await host.call("a.pid")) == pid
        assert any(one.path == file.path and one.is_unreadable for one in host.config_problems)
        file.path.unlink()
        await host.reload()
        assert host.servers == ()


async def test_the_defaults_of_a_configured_host_apply(file: File) -> None:
    file.write({"a": file.entry(), "b": file.entry(**{"x-dovetail": {"start": "lazy", "include_tools": []}})})
    defaults = ServerSettings(trusted=True, start="eager", exclude_tools=("w*",))
    async with Host.from_config(file.path, policy=ALLOW, defaults=defaults) as host:
        a, b = host.servers
        assert (a.settings.trusted, a.settings.start, a.settings.exclude_tools) == (True, "eager", ("w*",))
        assert (b.settings.trusted, b.settings.start, b.settings.exclude_tools) == (True, "lazy", ("w*",))
        assert {tool.full_name for tool in await host.list_tools()} == {"a.pid", "a.token"}


def test_mistakes_in_file_arguments_are_reported(file: File, tmp_path: Path) -> None:
    file.write({"a": file.entry()})
    wrong: Any = [file.path, file.path]
    with pytest.raises(TypeError, match=r"from_config\(a, b\)"):
        Host.from_config(wrong)
    with pytest.raises(FileNotFoundError, match=r"nofile\.json"):
        Host.from_config(tmp_path / "nofile.json")
    with pytest.raises(ValueError, match=r"'user'.*'project'.*'Project'"):
        Host.from_config(file.path, level="Project")  # pyright: ignore[reportArgumentType]
