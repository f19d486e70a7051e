"""Test the targets a client accepts, and the errors for all others."""

import re
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, ClientLimits, CommandTarget, HTTPTarget, Server, SyncClient, Timeouts
from dovetail.auth import BearerAuth
from dovetail.client.targets import resolve_target
from dovetail.errors import ProcessStartError
from dovetail.transports.memory import MemoryClient
from support.full_server import TESTS, create_full_server, run_target
from support.mentions import mentions, values

MORTAL = str(TESTS / "client" / "crashing_server.py")


def test_names_are_what_a_reader_recognises() -> None:
    assert Client("https://mcp.example.com:8443/mcp").name == "mcp.example.com:8443/mcp"
    assert Client("http://localhost:8000/?key=secret").name == "localhost:8000"
    assert Client("http://[::1]:8000/mcp/").name == "[::1]:8000/mcp"
    assert len(Client("http://localhost/" + "x" * 100).name) == 60
    assert Client("tcp://127.0.0.1:4000").name == "tcp://127.0.0.1:4000"
    assert Client("unix:/run/a.sock").name == "/run/a.sock"
    assert Client("unix:///run/a.sock").name == "/run/a.sock"
    assert Client(Server("weather")).name == "weather"
    assert Client(["uvx", "a b"]).name == "uvx 'a b'"
    assert Client(["ls", "/"]).name == "ls /"
    assert len(Client(["x" * 100]).name) == 60
    assert Client(MORTAL).name == "crashing_server.py"
    assert Client([sys.executable, "-u", MORTAL, "--fast"]).name == "crashing_server.py"
    assert Client(["/usr/bin/env", "prog", "/srv/notes", "@scope/name"]).name == "env prog notes @scope/name"
    assert Client(["python3", "-c", "import this\nthis.run()"]).name == "python3 -c 'import this this.run()'"
    assert Client({"mcpServers": {"weather": {"command": "uvx"}}}).name == "weather"
    assert (
        Client(["node", "/opt/@a/server-everything/dist/index.js", "stdio"]).name == "server-everything/index.js stdio"
    )
    assert Client(["python", "server.py"]).name == "server.py"
    assert Client(["python", "/index.py"]).name == "index.py"
    assert Client(["x"], name="mine").name == "mine"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["npx", "-y", "@a/server", "--api-key", "s3cret", "stdio"], "npx @a/server stdio"),
        (["npx", "-y", "@a/server", "--api-key=s3cret", "stdio"], "npx @a/server stdio"),
        (["npx", "@a/postgres", "postgresql://me:s3cret@db/x"], "npx @a/postgres"),
        (["docker", "run", "-i", "--rm", "-e", "TOKEN=s3cret", "image"], "docker run image"),
        (["sh", "-c", "TOKEN=s3cret server"], "sh -c"),
        (["server", "-k", "s3cret"], "server"),
        (["python", "-B", "-X", "dev", "server.py", "--token", "s3cret"], "server.py"),
        (["python", "-m", "server", "notes"], "python -m server notes"),
    ],
)
def test_a_name_contains_no_option(command: list[str], name: str) -> None:
    assert Client(command).name == name


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (5, TypeError),
        ([], TypeError),
        (["a", 5], TypeError),
        (None, TypeError),
        ("uvx mcp-server-time", ValueError),
        ("http://", ValueError),
        ("tcp://host", ValueError),
        ("tcp://host:abc", ValueError),
        ("unix:", ValueError),
        ("unix://", ValueError),
        ("nowhere.py", FileNotFoundError),
        (Path("nowhere.py"), ProcessStartError),
        (Server, TypeError),
        ({"mcpServers": {"a": 5}}, ValueError),
        ({"command": "x", "args": "y"}, TypeError),
        ({"command": "x", "env": {"A": 5}}, TypeError),
        ({"url": "http://x", "headers": {"A": None}}, TypeError),
        ({}, ValueError),
        ({"comand": "x"}, ValueError),
        ({"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}}, ValueError),
        ({"mcpServers": {}}, ValueError),
    ],
)
def test_an_invalid_target_is_refused_at_once(given: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        Client(given)


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("uvx mcp-server-time", "['uvx', 'mcp-server-time']"),
        ("uvx it's", "['uvx', \"it's\"]"),
        ("localhost:8000/mcp", "'http://localhost:8000/mcp'"),
        ("mcp.example.com:443", "'https://mcp.example.com:443/mcp'"),
        ("ws://localhost/mcp", "'http://localhost/mcp'"),
        ("http://user:password@localhost/mcp", "auth"),
        ("http://local host/mcp", "URL"),
        ("http:/localhost/mcp", "'http://localhost/mcp'"),
        ("https:localhost/mcp", "https:localhost/mcp"),
        ("mcp.json", "json.load(open('mcp.json'))['mcpServers'][name]"),
        ("", "empty"),
        ("server.py:app", "['dovetail', 'run', 'server.py:app']"),
        (str(TESTS), str(TESTS)),
        ("http://localhost:99999/mcp", "Port"),
        ("tcp://host:abc", "tcp://host:port"),
        ("unix:", "unix:/path"),
    ],
)
def test_an_invalid_target_is_explained(given: str, advice: str) -> None:
    with pytest.raises(ValueError, match=re.escape(advice)) as caught:
        Client(given)
    assert "password@" not in str(caught.value)


def test_a_script_that_is_not_there_is_looked_for_nearby(tmp_path: Path) -> None:
    (tmp_path / "server.py").touch()
    with pytest.raises(ProcessStartError) as caught:
        Client(tmp_path / "servr.py")
    assert mentions(caught.value.hint, tmp_path, "server.py")
    with pytest.raises(ProcessStartError, match="nothing/here"):
        Client(tmp_path / "nothing" / "here.py")


URL_OPTIONS = [{"headers": {"a": "b"}}, {"auth": "oauth"}]
COMMAND_OPTIONS = [{"env": {"A": "b"}}, {"cwd": "/"}]


@pytest.mark.parametrize("option", URL_OPTIONS)
@pytest.mark.parametrize("given", [["x"], MORTAL, Server("a"), "unix:/a", "tcp://a:1", {"command": "x"}])
def test_options_for_a_url_are_refused_elsewhere(given: Any, option: Any) -> None:
    (name,) = option
    with pytest.raises(TypeError, match=values(f"{name}=", "URL")):
        Client(given, **option)


@pytest.mark.parametrize("option", COMMAND_OPTIONS)
@pytest.mark.parametrize("given", ["http://x", Server("a"), "unix:/a", "tcp://a:1", {"url": "http://x"}])
def test_options_for_a_command_are_refused_elsewhere(given: Any, option: Any) -> None:
    (name,) = option
    with pytest.raises(TypeError, match=values(f"{name}=", "command")):
        Client(given, **option)


@pytest.mark.parametrize("make", [Client, SyncClient])
@pytest.mark.parametrize(
    ("given", "option", "kind", "named"),
    [
        (Server("a"), {"elicitation_handler": 3}, TypeError, ("elicitation_handler=", 3, "int")),
        (Server("a"), {"url_elicitation_handler": "x"}, TypeError, ("url_elicitation_handler=", "'x'", "str")),
        (Server("a"), {"sampling_handler": []}, TypeError, ("sampling_handler=", "list")),
        (Server("a"), {"log_handler": True}, TypeError, ("log_handler=",)),
        (Server("a"), {"roots": 5}, TypeError, ("roots=", "Root")),
        (Server("a"), {"roots": [5]}, TypeError, ("roots=", "Root")),
        (Server("a"), {"log_level": "loud"}, ValueError, ("log_level=", "debug, info, notice")),
        (Server("a"), {"log_level": "warn"}, ValueError, ("log_level=", "warn", "warning")),
        (Server("a"), {"timeout": "5"}, TypeError, ("timeout=", "Timeouts(...)")),
        (Server("a"), {"limits": {"pages": 5}}, TypeError, ("limits=", "ClientLimits(...)", "dict")),
        (Server("a"), {"client_info": "me"}, TypeError, ("client_info=", "Implementation")),
        (Server("a"), {"capabilities": {}}, TypeError, ("capabilities=", "ClientCapabilities")),
        (Server("a"), {"cache": 60}, TypeError, ("cache=", "True", "False")),
        (Server("a"), {"validate_results": "no"}, TypeError, ("validate_results=", "True", "False")),
        (Server("a"), {"middleware": print}, TypeError, ("middleware=",)),
        (Server("a"), {"middleware": [5]}, TypeError, ("middleware=",)),
        (Server("a"), {"protocol_version": "2027-01-01"}, ValueError, ("protocol_version=", "2024-11-05")),
        (Server("a"), {"protocol_version": "modern"}, ValueError, ("protocol_version=", "stateless", "handshake")),
        (Server("a"), {"name": 5}, TypeError, ("name=",)),
        (Server("a"), {"recording": True}, TypeError, ("recording=",)),
        ("http://x", {"headers": "a: b"}, TypeError, ("headers=", "'a: b'", "str")),
        ("http://x", {"headers": {"a": 5}}, TypeError, ("headers=", "'a'", "int")),
        ("http://x", {"headers": {"a": "b\nc"}}, ValueError, ("headers=", "'a'")),
        ("http://x", {"headers": {"a b": "c"}}, ValueError, ("headers=", "'a b'")),
        ("http://x", {"headers": {"Host": "y"}}, ValueError, ("headers=", "'Host'")),
        ("http://x", {"auth": 5}, TypeError, ("auth",)),
        (["x"], {"env": {"A": 5}}, TypeError, ("env=", "'A'", "int")),
        (["x"], {"env": ["A=5"]}, TypeError, ("env=", "list")),
        (["x"], {"cwd": 5}, TypeError, ("cwd=",)),
    ],
)
def test_options_are_looked_at_at_once(
    make: Any, given: Any, option: Any, kind: type[Exception], named: tuple[Any, ...]
) -> None:
    with pytest.raises(kind, match=values(*named)):
        make(given, **option)


@pytest.mark.parametrize(
    ("option", "kind", "named"),
    [
        ({"verify": "ca.pem"}, FileNotFoundError, ("verify=", "'ca.pem'")),
        ({"verify": 5}, TypeError, ("verify=", "SSLContext")),
        ({"verify": None}, TypeError, ("verify=", "SSLContext")),
        ({"verify": ssl.create_default_context(), "cert": __file__}, ValueError, ("cert=", "load_cert_chain")),
        ({"cert": ("nowhere.pem", "b")}, FileNotFoundError, ("cert=",)),
        ({"cert": 5}, TypeError, ("cert=",)),
        ({"cert": ()}, TypeError, ("cert=",)),
        ({"cert": (__file__,)}, TypeError, ("cert=",)),
        ({"cert": (__file__, None)}, TypeError, ("cert=",)),
        ({"cert": (__file__, __file__, __file__)}, TypeError, ("cert=",)),
        ({"proxy": 5}, TypeError, ("proxy=", "URL")),
        ({"headers": {"a b": "c"}}, ValueError, ("headers=", "'a b'")),
    ],
)
def test_an_http_target_checks_its_options(option: Any, kind: type[Exception], named: tuple[Any, ...]) -> None:
    with pytest.raises(kind, match=values(*named)):
        HTTPTarget("https://x", **option)


@pytest.mark.parametrize(
    ("command", "option", "kind", "named"),
    [
        (["x"], {"inherit_env": "some"}, TypeError, ("inherit_env=", "'minimal'", "'all'")),
        (["x"], {"inherit_env": [5]}, TypeError, ("inherit_env=", "'minimal'", "'all'")),
        (["x"], {"stderr": 5}, TypeError, ("stderr=",)),
        (["x"], {"env": {"A": 5}}, TypeError, ("env=", "'A'", "int")),
        ([], {}, ValueError, ("command",)),
        ("", {}, ValueError, ("command",)),
        (Path("x.py"), {}, TypeError, ("command", "list of strings")),
        (["x", 5], {}, TypeError, ("command", "list of strings")),
        (5, {}, TypeError, ("command", "list of strings", "int")),
        ("nowhere.py", {}, ProcessStartError, ("nowhere.py",)),
    ],
)
def test_a_command_target_checks_its_options(
    command: Any, option: Any, kind: type[Exception], named: tuple[Any, ...]
) -> None:
    with pytest.raises(kind, match=values(*named)):
        CommandTarget(command, **option)


def test_a_command_may_be_one_line() -> None:
    assert CommandTarget("uvx 'my server' --flag").command == ["uvx", "my server", "--flag"]
    assert CommandTarget(str(MORTAL)).command == [sys.executable, "-u", str(MORTAL)]
    assert CommandTarget(["a b"]).command == ["a b"]


def test_options_of_the_client_are_added_to_those_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.transports import stdio_client
    from dovetail.transports.http_client import streamable_http

    made: list[dict[str, Any]] = []
    monkeypatch.setattr(streamable_http, "StreamableHTTPClient", lambda *_, **options: made.append(options))
    monkeypatch.setattr(stdio_client, "StdioClient", lambda *_, **options: made.append(options))
    options: Any = {"limits": ClientLimits(), "timeouts": Timeouts()}
    web = HTTPTarget("https://x", headers={"a": "1", "B": "1"}, proxy="http://p")
    resolve_target(web, headers={"b": "2"}, **options).create_transport()  # names of headers are case-insensitive
    command = CommandTarget(["x"], env={"A": "1", "B": "1"}, inherit_env="all", cwd="/")
    resolve_target(command, env={"B": "2"}, **options).create_transport()
    assert made[0] | {"verify": True} == made[0]
    assert (made[0]["headers"], made[0]["proxy"]) == ({"a": "1", "b": "2"}, "http://p")
    assert made[1] == {"env": {"A": "1", "B": "2"}, "inherit": "all", "cwd": "/", "stderr": None}


async def test_a_transport_of_your_own_is_a_target() -> None:
    app = Server("mine")

    @app.tool
    def double(number: int) -> int:
        return 2 * number

    async with Client(MemoryClient(app.open_connection, app.start, app.stop)) as client:
        assert await client.call("double", number=4) == 8


def test_limits_are_numbers() -> None:
    for make in (lambda: Timeouts(call="60"), lambda: ClientLimits(max_pages=True)):  # pyright: ignore[reportArgumentType]
        with pytest.raises(TypeError, match=r"call|pages"):
            make()


async def test_a_level_asked_for_later_is_looked_at_too() -> None:
    async with Client(Server("a")) as client:
        with pytest.raises(ValueError, match=values("level", "debug")):
            await client.set_logging_level("loud")  # pyright: ignore[reportArgumentType]


async def test_a_script_is_run_with_this_python(tmp_path: Path) -> None:
    for given in (MORTAL, Path(MORTAL)):
        async with Client(given) as client:
            assert await client.call("echo", text="x") == "x"


async def test_entries_of_a_configuration(tmp_path: Path) -> None:
    script = (
        "import os, sys; sys.argv[1:] = ['x']; sys.path.insert(0, os.environ['AT']); "
        "import crashing_server; crashing_server.main()"
    )
    command = {"command": sys.executable, "args": ["-c", script], "env": {"AT": str(TESTS / "client")}}
    async with Client({"mcpServers": {"one": command}}) as client:
        assert await client.call("echo", text="x") == "x"
    async with Client(command | {"env": {"AT": "elsewhere"}}, env={"AT": str(TESTS / "client")}) as client:
        assert await client.call("echo", text="y") == "y"
    app = create_full_server()
    async with run_target("http", app) as at:
        for entry in ({"url": at}, {"serverUrl": at, "headers": {"x-a": "1"}}, {"servers": {"a": {"httpUrl": at}}}):
            async with Client(entry) as client:
                assert await client.call("add", a=1) == 2


def test_of_a_command_and_a_url_in_one_entry_the_command_counts() -> None:
    assert Client({"url": "https://x.example/mcp", "command": "uvx", "args": ["server"]}).name == "uvx server"
    assert Client({"url": "https://x.example/mcp", "command": ""}).name == "x.example/mcp"


@pytest.mark.parametrize(
    "entry",
    [
        {"command": ["uvx", "server"], "args": ["notes"]},
        {"cmd": "uvx", "args": ["server", "notes"]},
        {"command": {"path": "uvx", "args": ["server", "notes"], "env": {"A": "1"}}, "env": {"B": "2"}},
    ],
)
def test_an_entry_in_the_form_of_another_host(entry: dict[str, Any]) -> None:
    assert Client(entry).name == "uvx server notes"


async def test_headers_of_an_entry_and_of_the_call_come_together() -> None:
    from support.scripted_server import ScriptedServer, serve_over_http

    scripted = ScriptedServer()
    async with serve_over_http(scripted) as at:
        given = {"url": at, "headers": {"Authorization": "old", "x-b": "2"}}
        async with Client(given, headers={"Authorization": "Bearer new"}) as client:
            await client.ping()
    for _, head in scripted.heads:
        assert (head["authorization"], head["x-b"]) == ("Bearer new", "2")


async def test_environment_and_folder_reach_the_process(tmp_path: Path) -> None:
    script = """
import json, os, sys
for line in sys.stdin:
    m = json.loads(line)
    if "id" in m:
        r = {"supportedVersions": ["2026-07-28"], "capabilities": {}, "resultType": "complete",
             "instructions": json.dumps([os.getcwd(), os.environ.get("GIVEN"), os.environ.get("SECRET_TOKEN")])}
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECRET_TOKEN", "hidden")
        async with Client([sys.executable, "-c", script], cwd=tmp_path, env={"GIVEN": "here"}) as client:
            assert client.instructions == f'["{tmp_path}", "here", null]'
        async with Client(CommandTarget([sys.executable, "-c", script], inherit_env=["SECRET_*"])) as client:
            assert '"hidden"' in (client.instructions or "")


async def test_what_a_process_says_on_stderr_can_be_had() -> None:
    heard: list[str] = []
    async with Client(CommandTarget([sys.executable, MORTAL, "/dev/null"], stderr=heard.append)) as client:
        with pytest.raises(Exception, match="about to die"):
            await client.call("die", name="x")
    assert heard == ["about to die"]


@pytest.mark.parametrize("told", [{"verify": False}, {"cert": "here.pem"}, {"verify": "ca.pem"}, {}], ids=str)
def test_certificate_settings_apply_only_to_the_server(told: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.auth import authorizer
    from dovetail.transports.http_client import remote_server

    made: list[Any] = []
    monkeypatch.setattr(authorizer, "create_authorizer", lambda *given: made.extend(given))
    monkeypatch.setattr(
        remote_server,
        "create_http_client",
        lambda **given: {name: given[name] for name in ("verify", "cert")},
    )
    monkeypatch.setattr(remote_server, "check_certificate_files", lambda *_: None)
    Client(HTTPTarget("https://x", auth="oauth", **told))
    _, _, others, *own = made
    ca_file = told.get("verify") or True
    assert others() == {"verify": ca_file, "cert": None}
    assert [one() for one in own if one is not None] == (
        [] if ca_file == "ca.pem" or not told else [{"verify": True, "cert": None} | told]
    )


@pytest.mark.parametrize(
    ("url", "clear"),
    [
        ("http://far.example/mcp", True), ("http://192.168.1.20/mcp", True), ("https://far.example/mcp", False),
        ("http://localhost:1/mcp", False), ("http://[::1]:1/mcp", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "options", [{"auth": BearerAuth("s3cret")}, {"auth": "oauth"}, {"headers": {"authorization": "Bearer s3cret"}}]
)
def test_unencrypted_credentials_are_reported(
    url: str, clear: bool, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    Client(url, **options)
    assert bool(caplog.records) is clear
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(
    ("option", "suggestion"),
    [
        ("verify", "HTTPTarget(url, verify=...)"),
        ("verfy", "HTTPTarget(url, verify=...)"),
        ("stderr", "CommandTarget(command, stderr=...)"),
        ("tiemout", "'timeout'"),
        ("xyzzy", ""),
    ],
)
@pytest.mark.parametrize("client_type", [Client, SyncClient])
def test_an_unknown_option_names_the_option_or_the_target_that_has_it(
    client_type: Any, option: str, suggestion: str
) -> None:
    with pytest.raises(TypeError) as caught:
        client_type("https://example.com/mcp", **{option: 1})
    assert option in str(caught.value)
    assert suggestion in str(caught.value)


def test_a_name_contains_no_secret() -> None:
    assert "s3cret" not in Client(["uvx", "mcp-a", "--api-key", "s3cret", "-v"]).name
    assert "s3cret" not in Client(["uvx", "mcp-a", "--token=s3cret", "https://ada:s3cret@a.example"]).name
    with pytest.raises(ValueError, match="user name") as caught:
        Client("https://ada:s3cret@a.example/mcp")
    assert "s3cret" not in str(caught.value)
