"""Test `dovetail run` and `dovetail new`."""

import contextlib
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from cli.command_process import SAMPLE_SERVER, RunCommand, ServerProcess
from dovetail import SyncClient
from support.processes import run_process

OURS = [sys.executable, "-m", "dovetail"]


def test_over_http(run: RunCommand, environment: dict[str, str]) -> None:
    with ServerProcess(
        [*OURS, "run", str(SAMPLE_SERVER), "--http", "--port", "0", "--path", "/here"], environment
    ) as url:
        assert url.endswith("/here")
        assert run("call", url, "add", "a=1").check_success().out == "2\n"


def test_for_clients_of_2024(run: RunCommand, environment: dict[str, str]) -> None:
    with ServerProcess([*OURS, "run", str(SAMPLE_SERVER), "--http", "--port", "0"], environment) as url:
        old = run("info", url.replace("/mcp", "/sse"), "--protocol-version", "2024-11-05", "--json")
        assert old.check_success().json["protocol_version"] == "2024-11-05"


def test_with_workers(run: RunCommand, environment: dict[str, str]) -> None:
    words = [*OURS, "run", str(SAMPLE_SERVER), "--http", "--port", "0", "--workers", "2"]
    with ServerProcess(words, environment) as url:
        assert run("bench", url, "add", "a=1", "-n", "20").check_success()


def test_a_server_at_a_url_is_offered_here(run: RunCommand, url: str) -> None:
    assert run("call", "add", "a=1", "--", *OURS, "run", url).check_success().out == "2\n"
    asked = run("call", "book", "flight=X", "-a", "value=5", "--", *OURS, "run", url)
    assert asked.check_success().out == "X in row 5\n"


@pytest.mark.interop
def test_a_server_behind_a_command_is_offered_here(
    run: RunCommand, environment: dict[str, str], clock: list[str]
) -> None:
    with ServerProcess([*OURS, "run", "--http", "--port", "0", "--", *clock], environment) as here:
        said = run("call", here, "convert_time", "source_timezone=UTC", "time=12:00", "target_timezone=Asia/Tokyo")
        assert "21:00" in said.check_success().out


def test_what_a_file_prints_does_not_reach_the_client(run: RunCommand, tmp_path: Path) -> None:
    text = "from dovetail import Server\nprint('hello')\napp = Server('loud')\n"
    (tmp_path / "loud.py").write_text(text, encoding="utf-8")
    said = run("doctor", tmp_path / "loud.py", "-v").check_success()
    assert "stdout:" not in said.out
    assert "hello" in said.err


def test_a_file_without_a_server_is_a_program(run: RunCommand, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "if __name__ == '__main__':\n    import sys\n    sys.path.insert(0, sys.argv.pop() if 0 else '')\n"
        "    from dovetail import Server\n    app = Server('inside')\n    app.run()\n",
        encoding="utf-8",
    )
    assert run("info", program, "--json").check_success().json["name"] == "inside"


OUTRIGHT = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        who = {"serverInfo": {"name": "outright", "version": "1"}, "capabilities": {}, "protocolVersion": "2025-06-18"}
        said = {"result": who} if message["method"] == "initialize" else {"error": {"code": -32601, "message": "no"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}), flush=True)
"""


def test_a_program_that_serves_as_soon_as_it_is_read(
    run: RunCommand, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "outright.py").write_text(OUTRIGHT, encoding="utf-8")
    assert run("info", tmp_path / "outright.py", "--json").check_success().json["name"] == "outright"
    with ServerProcess([*OURS, "run", str(tmp_path / "outright.py"), "--http", "--port", "0"], environment) as url:
        run("ping", url).check_success()


def test_a_server_that_a_file_only_imports(run: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text("from dovetail import Server\napp = Server('inner')\n", encoding="utf-8")
    (tmp_path / "outer.py").write_text("from inner import app\n", encoding="utf-8")
    assert run("info", tmp_path / "outer.py", "--json").check_success().json["name"] == "inner"


def test_variables_and_folder_of_a_file(run: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    text = "import os\nfrom dovetail import Server\napp = Server(os.environ['WORD'] + os.path.basename(os.getcwd()))\n"
    (tmp_path / "server.py").write_text(text, encoding="utf-8")
    words = ["-e", "WORD=given", "--cwd", "inner"]
    named = run("info", "--json", "--", *OURS, "run", "server.py", *words, cwd=tmp_path).check_success()
    assert named.json["name"] == "giveninner"
    (tmp_path / "inner" / "held.py").write_text(text, encoding="utf-8")
    named = run("info", "--json", "--", *OURS, "run", "-m", "held", *words, cwd=tmp_path).check_success()
    assert named.json["name"] == "giveninner"
    assert run("info", "--json", "server.py", *words, cwd=tmp_path).check_success().json["name"] == "giveninner"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([SAMPLE_SERVER, "-H", "a: b"], "--header"),
        ([SAMPLE_SERVER, "--auth", "abcdefgh"], "--auth"),
        ([SAMPLE_SERVER, "--cwd", ".", "--reload"], "--reload"),
        ([SAMPLE_SERVER, "--http", "--host", "0.0.0.0"], "--allow-anonymous"),
        ([SAMPLE_SERVER, "--port", "8001"], "--port"),
        ([SAMPLE_SERVER, "--public-url", "https://a.example"], "--public-url"),
        ([f"{SAMPLE_SERVER}:nothing"], "'nothing'"),
        (["-m", "no_such_module"], "'no_such_module'"),
        (["-m", "json"], "'json'"),
        ([], "server"),
    ],
)
def test_what_cannot_be_run_is_explained(run: RunCommand, words: list[str], why: str) -> None:
    said = run("run", *words)
    assert said.code == 2
    assert why in said.err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def (:\n", "SyntaxError"),
        ("import not_there_at_all\n", "No module named 'not_there_at_all'"),
        ("from dovetail import Server\n\n\ndef app() -> Server:\n    raise OSError('wrong')\n", "OSError: wrong"),
        ("if __name__ == '__main__':\n    raise ValueError('late')\n", "ValueError: late"),
    ],
)
def test_a_failing_file_shows_a_python_traceback(run: RunCommand, tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "broken.py").write_text(text, encoding="utf-8")
    said = run("run", tmp_path / "broken.py:app" if "def app" in text else tmp_path / "broken.py")
    assert said.code == 3
    assert why in said.err
    assert said.err.count("  File ") == 1
    assert "broken.py" in said.err


def test_behind_a_proxy(tmp_path: Path, environment: dict[str, str]) -> None:
    text = (
        "from dovetail import Server\nfrom dovetail.auth import Principal, StaticTokenVerifier\n"
        "app = Server('guarded', auth=StaticTokenVerifier({'t0ken-for-a-test': Principal('ada')}))\n"
    )
    (tmp_path / "guarded.py").write_text(text, encoding="utf-8")
    words = [*OURS, "run", str(tmp_path / "guarded.py"), "--http", "--port", "0"]
    with ServerProcess([*words, "--public-url", "https://far.example/mcp"], environment) as url:
        asked = urllib.request.Request(url, headers={"Host": "far.example"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked, timeout=20)
        with refused.value as reply:
            assert reply.status == 401


def test_new_writes_a_server_whose_test_passes(run: RunCommand, tmp_path: Path) -> None:
    assert "wrote" in run("new", "weather", cwd=tmp_path).check_success().out
    assert run("call", "weather.py", "greet", "name=Ada", cwd=tmp_path).check_success().out == "Hello, Ada!\n"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    assert run("new", "weather", cwd=tmp_path).code == 2
    assert run("new", "weather", "--force", cwd=tmp_path).code == 0
    assert run("new", "no name", cwd=tmp_path).code == 2


def test_new_prints_a_command_that_works_in_a_folder_with_spaces(run: RunCommand, tmp_path: Path) -> None:
    out = run("new", "my servers/tide-table.py", cwd=tmp_path).check_success().out
    command = shlex.split(out.rpartition("try: dovetail ")[2])
    assert command == ["call", str(Path("my servers/tide_table.py")), "greet", "name=Ada"]
    assert run(*command, cwd=tmp_path).check_success().out == "Hello, Ada!\n"
    assert 'Server("tide-table"' in (tmp_path / "my servers" / "tide_table.py").read_text(encoding="utf-8")


FAILING = """
from contextlib import asynccontextmanager
from dovetail import Server

@asynccontextmanager
async def lifespan():
    raise ConnectionError("database is down")
    yield

app = Server("failing", lifespan=lifespan)
"""


@pytest.mark.parametrize(
    "options",
    [(), ("--http", "--port", "0"), ("--http", "--port", "0", "--workers", "2")],
    ids=["stdio", "http", "workers"],
)
def test_a_lifespan_that_fails_is_shown_as_python_shows_it(
    options: tuple[str, ...], tmp_path: Path, environment: dict[str, str]
) -> None:
    file = tmp_path / "failing.py"
    file.write_text(FAILING, encoding="utf-8")
    words = [*OURS, "run", str(file), *options]
    said = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, timeout=60)
    assert said.returncode == 3
    assert said.stdout == ""
    lines = said.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert f'File "{file}"' in lines[1]
    assert lines[-1] == "ConnectionError: database is down"
    assert "http://" not in said.stderr
    assert "dovetail" not in said.stderr.replace(str(tmp_path), "")


OCCUPIED = """
import socket
from contextlib import asynccontextmanager
from dovetail import Server

@asynccontextmanager
async def lifespan():
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        await Server("inner").serve("http", port=occupied.getsockname()[1])
        yield

app = Server("outer", lifespan=lifespan)
"""


def test_an_error_of_the_system_in_a_lifespan_is_shown_with_the_line_of_the_user(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    file = tmp_path / "occupied.py"
    file.write_text(OCCUPIED, encoding="utf-8")
    result = subprocess.run(
        [*OURS, "run", str(file)], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, timeout=60
    )
    assert result.returncode == 3
    assert f'File "{file}", line 9, in lifespan' in result.stderr


STORED_FILES = {
    "tasks": """
from dovetail.extensions import TaskConfig, TaskOptions
app = Server("stored", tasks=TaskOptions(store="stored.sqlite"))
app.tool(lambda: "", name="wait", task=TaskConfig())
""",
    "state": 'app = Server("stored", state="stored.sqlite")',
    "authorization server": """
from dovetail.auth import AuthorizationServer
authority = AuthorizationServer(issuer="http://127.0.0.1:9", store="stored.sqlite", secret_key="a key of 16 bytes")
app = Server("stored", auth=authority.verifier())
""",
}


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("kind", STORED_FILES)
def test_a_damaged_file_is_named_without_a_traceback(
    kind: str, workers: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "server.py").write_text("from dovetail import Server\n" + STORED_FILES[kind], encoding="utf-8")
    (tmp_path / "stored.sqlite").write_bytes(b"not a database" * 1000)
    (tmp_path / "stored.sqlite").chmod(0o600)
    command = [*OURS, "run", "server.py", "--http", "--port", "0", "--workers", workers]
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=60
    )
    assert result.returncode in (2, 3)
    assert "stored.sqlite" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("kind", ["tasks", "state"])
@pytest.mark.parametrize("problem", ["missing folder", "directory", "other program"])
def test_a_file_that_cannot_be_a_store_is_named_without_a_traceback(
    problem: str, kind: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    path = tmp_path / "missing" / "stored.sqlite" if problem == "missing folder" else tmp_path / "stored.sqlite"
    if problem == "directory":
        path.mkdir()
    elif problem == "other program":
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE customers (name)")
        path.chmod(0o600)
    server = STORED_FILES[kind].replace("stored.sqlite", str(path))
    result = run_in_folder(tmp_path, environment, server)
    assert result.returncode == 3
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert str(path) in line


@pytest.mark.skipif(os.name == "nt", reason="the path must be one that nobody can create")
def test_a_data_directory_that_cannot_be_created_is_named(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "file").touch()
    environment = environment | {"DOVETAIL_HOME": str(tmp_path / "file" / "home")}
    server = 'app = Server("stored")\napp.tool(lambda: "", name="wait", task=True)'
    result = run_in_folder(tmp_path, environment, server)
    assert result.returncode == 3
    (line,) = result.stderr.splitlines()
    assert all(name in line for name in (environment["DOVETAIL_HOME"], "DOVETAIL_HOME", "TaskOptions(store="))


@pytest.mark.parametrize(
    ("host", "options"),
    [("http://127.0.0.1", []), ("127.0.0.1:8000", ["--workers", "2"]), ("", ["--allow-anonymous"])],
)
def test_a_host_that_is_not_an_address_is_refused(
    host: str, options: list[str], tmp_path: Path, environment: dict[str, str]
) -> None:
    result = run_in_folder(tmp_path, environment, 'app = Server("plain")', "--host", host, *options)
    assert result.returncode == 2
    assert f"{host!r} is not a host name or an IP address" in result.stderr
    assert ("--port" in result.stderr) == (host == "127.0.0.1:8000")


@pytest.mark.parametrize("value", ["inf", "nan", "text"])
def test_an_idle_time_that_is_not_a_time_is_refused(value: str, tmp_path: Path, environment: dict[str, str]) -> None:
    result = run_in_folder(tmp_path, environment, 'app = Server("plain")', f"--keep-alive={value}")
    assert result.returncode == 2
    assert f"must be a number of seconds above 0, not {value}" in result.stderr


def run_in_folder(
    folder: Path, environment: dict[str, str], server: str, *options: str
) -> subprocess.CompletedProcess[str]:
    (folder / "server.py").write_text("from dovetail import Server\n" + server, encoding="utf-8")
    command = [*OURS, "run", "server.py", "--http", "--port", "0", *options]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, cwd=folder, timeout=60
    )


BROKEN = """
from dovetail import Server


class Broken(Server):
    def run(self, *args, **options):
        raise RuntimeError("cannot go on")


app = Broken("broken")
"""


def test_verbose_shows_the_traceback_of_an_internal_error(run: RunCommand, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(BROKEN, encoding="utf-8")
    short, long = (run("run", str(file), *options) for options in ((), ("--verbose",)))
    assert short.code == long.code != 0
    assert "cannot go on" in short.err
    assert "line 7, in run" not in short.err
    assert "line 7, in run" in long.err


@pytest.mark.parametrize(
    ("options", "url"),
    [
        (["--public-url", "https://vm.example/mcp"], r"https://vm\.example/mcp"),
        ([], r"http://127\.0\.0\.1:\d+/mcp"),
    ],
)
def test_the_start_line_has_a_url_that_clients_can_use(
    environment: dict[str, str], options: list[str], url: str
) -> None:
    command = [*OURS, "run", str(SAMPLE_SERVER), "--http", "--host", "0.0.0.0", "--port", "0", "--allow-anonymous"]
    with run_process([*command, *options], env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert re.search(rf" is at {url} ", process.stderr.readline())
        process.terminate()
        process.communicate(timeout=20)


DESCRIBED = """
from dovetail import Server
app = Server("real", title="Real Server", version="3.1", instructions="Use me well.")
@app.tool
def add(a: int) -> int:
    return a
"""


@pytest.mark.parametrize("version", ["stateless", "handshake"])
def test_a_bridge_has_the_description_of_its_target(run: RunCommand, tmp_path: Path, version: str) -> None:
    file = tmp_path / "real.py"
    file.write_text(DESCRIBED)
    words = ("info", "--json", "--protocol-version", version, "--", *OURS, "run", "--", *OURS, "run", file)
    info = run(*words).check_success().json
    assert (info["name"], info["version"], info["instructions"]) == ("real", "3.1", "Use me well.")


def test_a_bridge_over_http_has_the_description_of_its_target(tmp_path: Path, environment: dict[str, str]) -> None:
    file = tmp_path / "real.py"
    file.write_text(DESCRIBED)
    with ServerProcess([*OURS, "run", "--http", "--port", "0", "--", *OURS, "run", str(file)], environment) as url:
        for version in ("stateless", "handshake"):
            with SyncClient(url, protocol_version=version) as client:
                info = client.server_info
                assert info is not None
                assert (info.name, info.title, info.version) == ("real", "Real Server", "3.1")
                assert client.instructions == "Use me well."


def test_a_bridge_starts_although_its_target_does_not(run: RunCommand) -> None:
    words = ("info", "--json", "--", *OURS, "run", "http://127.0.0.1:1/mcp")
    assert run(*words).check_success().json["instructions"] is None


def test_roots_are_offered_to_the_server(run: RunCommand, tmp_path: Path) -> None:
    file = tmp_path / "rooted.py"
    file.write_text(
        "from dovetail import Context, Server\n"
        "app = Server('rooted')\n"
        "@app.tool\n"
        "async def show(ctx: Context) -> list[str]:\n"
        "    return [root.uri for root in await ctx.list_roots()]\n"
    )
    roots = run("call", file, "show", "--root", tmp_path, "--root", "/srv", "--json").check_success().json
    assert roots["structuredContent"] == {"result": [tmp_path.as_uri(), "file:///srv"]}
    without = run("call", file, "show")
    assert without.code == 8
    assert "--root" in without.err
