"""Test the command itself: help, errors and imports."""

import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import dovetail
from cli.command_process import SAMPLE_SERVER, RunCommand
from dovetail.cli import error_report, main
from dovetail.cli.main import COMMAND_SUMMARIES, load_command
from dovetail.version import VERSION
from support.processes import run_process


def test_help_names_every_command_and_loads_none() -> None:
    program = "import sys; from dovetail.cli.main import cli\ntry: cli(['--help'])\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert all(f"  {name} " in done.stdout for name in COMMAND_SUMMARIES)
    loaded = done.stdout.split()
    assert "dovetail.cli.main" in loaded
    assert not {"asyncio", "msgspec", "rich", "uvicorn"} & set(loaded)
    assert not [name for name in loaded if name.startswith("dovetail.cli.commands.")]


@pytest.mark.parametrize("name", COMMAND_SUMMARIES)
def test_every_command_and_option_has_a_short_help(name: str) -> None:
    command = load_command(name)
    subcommands = [*command.commands.values()] if isinstance(command, click.Group) else []
    assert command.name == name
    assert (command.help or "").splitlines()[0] == COMMAND_SUMMARIES[name]
    texts = [(one.help or "").splitlines()[0] for one in (command, *subcommands)]
    options = [option for one in (command, *subcommands) for option in one.params if isinstance(option, click.Option)]
    for text in (*texts, *(option.help or "" for option in options)):
        assert re.fullmatch(r"[A-Z\"].{,58}\.", text), text


def test_the_version(run: RunCommand) -> None:
    assert run("--version").out == f"dovetail, version {VERSION}\n"
    assert dovetail.__version__ == VERSION


def test_nothing_said_is_a_wish_for_help(run: RunCommand) -> None:
    said = run()
    assert said.code == 0
    assert "Usage: dovetail" in said.out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["cal"], "'call'"),
        (["call"], "server"),
        (["call", "--nonsense"], "nonsense"),
        (["list", "nowhere.py"], "nowhere.py"),
        (["list", "nobody"], "nobody"),
        (["list", "--"], "command"),
        (["run", SAMPLE_SERVER, "--transport", "http"], "--http"),
        (["list", "-H", "x", "http://127.0.0.1:1/"], "NAME:VALUE"),
        (["list", "--timeout", "0", "--", "true"], "--timeout"),
        (["list", "--timeout", "nan", "--", "true"], "--timeout"),
        (["bench", "-d", "-1", "--", "true"], "--duration"),
        (["bench", "--rate", "-5", "--", "true"], "--rate"),
        (["ping", "surplus", "--", "true"], "surplus"),
        (["ping", "-m", "module", "surplus"], "surplus"),
        (["lint", SAMPLE_SERVER, "surplus"], "surplus"),
        (["doctor", SAMPLE_SERVER, "surplus"], "surplus"),
        (["run", SAMPLE_SERVER, "surplus"], "surplus"),
        (["install", SAMPLE_SERVER, "surplus", "--to", "cursor"], "surplus"),
        (["record", SAMPLE_SERVER, "surplus", "-o", "x.jsonl"], "surplus"),
        (["auth", "status", "http://127.0.0.1:1/", "surplus"], "surplus"),
        (["list", "--protocol-version", "2020-01-01", "--", "true"], "2026-07-28"),
        (["list", "-H", "a: b", "--", "true"], "--header"),
        (["list", "--env", "NOT_SET_HERE", "--", "true"], "NOT_SET_HERE"),
        (["call", SAMPLE_SERVER, "echo", "value=a", "value=b"], "value=a,b"),
        (["call", SAMPLE_SERVER, "book", "flight=X", "-a", "value=window"], "integer"),
        (["call", SAMPLE_SERVER, "book", "flight=X", "-a", "value=x", "--protocol-version", "handshake"], "--answer"),
        (["call", SAMPLE_SERVER, "paint", "-a", "value=mauve"], "red, blue"),
        (["call", SAMPLE_SERVER, "add", "a=1", "-o", SAMPLE_SERVER], "--force"),
        (["record", SAMPLE_SERVER, "-o", SAMPLE_SERVER], "--force"),
        (["new", "class"], "'class'"),
        (["new", "json"], "'json'"),
        (["new", "asyncio"], "'asyncio'"),
        (["new", "click"], "'click'"),
        (["new", "msgspec.py"], "'msgspec'"),
        (["new", "weather.v2"], "underscores"),
    ],
)
def test_a_wrong_command_line_is_explained_with_2(run: RunCommand, words: list[str], why: str) -> None:
    said = run(*words)
    assert said.code == 2
    assert why in said.err
    assert not said.out


def test_the_installed_command_is_this_one() -> None:
    command = Path(sys.executable).with_name("dovetail")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.endswith(f"{VERSION}\n")


def test_a_reader_that_closes_the_pipe_is_not_an_error(url: str, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "dovetail", "list", url]
    with run_process(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert not process.stderr.read()
        assert process.wait() == 0


def test_a_wrong_command_line_is_reported_as_json(run: RunCommand) -> None:
    for words in (["list", "nowhere.py", "--json"], ["list", "--json", "--nonsense"], ["call", "--json"]):
        said = run(*words)
        assert said.code == 2
        assert json.loads(said.err)["message"]
    assert "error: " in run("list", "nowhere.py", "--", "x", "--json").err  # which is a word of the command


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("words", [["--version"], ["list"], ["list", "--help"]])
def test_unwritable_output_is_reported(environment: dict[str, str], words: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dovetail", *words]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False
        )
    assert done.returncode == 2
    assert re.fullmatch(r"error: .*No space left on device\n", done.stderr)


@pytest.mark.parametrize("words", [["ping", "x"], ["ping", "x", "-v"], ["ping", "--", "x", "-v"]])
def test_a_fault_of_its_own_is_named(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def faulty(*_: object) -> None:
        raise LookupError("odd\x1b[31m")

    monkeypatch.setattr(main.cli, "invoke", faulty)
    monkeypatch.setattr(sys, "argv", ["dovetail", *words])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == error_report.EXIT_INTERNAL_ERROR
    said = capsys.readouterr().err
    assert "LookupError: odd\\x1b[31m" in said
    assert ("Traceback" in said) == (words[-2:] == ["x", "-v"] and "--" not in words)


@pytest.mark.parametrize(
    ("closed", "code", "said"),
    [(">&-", 2, "Bad file descriptor"), ("2>&-", 0, ""), ("<&-", 0, "")],
)
def test_streams_that_are_closed(
    closed: str, code: int, said: str, environment: dict[str, str], tmp_path: Path
) -> None:
    command = f'"$0" -m dovetail list "$1" tools {closed}'
    words = ["/bin/sh", "-c", command, sys.executable, str(SAMPLE_SERVER)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert ("echo" in done.stdout) == (closed != ">&-")


def test_a_folder_that_is_gone(environment: dict[str, str], tmp_path: Path) -> None:
    command = 'rmdir "$PWD" && "$0" -m dovetail list nobody'
    gone = tmp_path / "gone"
    gone.mkdir()
    words = ["/bin/sh", "-c", command, sys.executable]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=gone, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize("words", [[b"echo", b"value=\xff"], [b"\xff"]])
def test_a_word_that_is_not_utf_8(words: list[bytes], environment: dict[str, str]) -> None:
    command = [sys.executable.encode(), b"-m", b"dovetail", b"call", str(SAMPLE_SERVER).encode(), *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert "UTF-8" in done.stderr


def test_a_configuration_that_cannot_be_read_is_named(run: RunCommand, tmp_path: Path) -> None:
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor" / "mcp.json").write_text("{", encoding="utf-8")
    said = run("ping", "ok", HOME=str(tmp_path))
    assert said.code == 2
    assert "mcp.json" in said.err
