"""Test shell completion, including the tools of the target and their arguments, and in a real bash."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.command_process import RunCommand
from cli.terminal import open_terminal
from dovetail.cli.commands.shell_completion import SCRIPTS
from dovetail.tasks.sqlite_task_store import SQLiteTaskStore
from support.outside_programs import get_program, needs
from support.task_records import make_record

Complete = Callable[..., list[str]]


@pytest.fixture
def complete(run: RunCommand) -> Complete:
    def complete(line: str, shell: str = "zsh", cwd: Path | None = None, **more: str) -> list[str]:
        """Suggestions at the mark, or at the end."""
        point = line.find("|") if "|" in line else len(line)
        variables = {"_DOVETAIL_COMPLETE": shell, "COMP_LINE": line.replace("|", ""), "COMP_POINT": str(point)}
        said = run(**variables, **more, cwd=cwd)
        assert said.code == 0, said.err
        return said.out.splitlines()

    return complete


def test_commands_and_options(complete: Complete) -> None:
    assert complete("dovetail re") == ["read", "record", "replay"]
    assert complete("dovetail auth l") == ["login", "logout"]
    assert complete("dovetail call --p") == ["--protocol-version"]
    assert complete("dovetail lint --profile openai-s") == ["openai-strict"]
    assert complete("dovetail nothing ") == []
    assert complete("dovetail uni") == ["uninstall"]
    assert complete("dovetail run --ch") == ["--check", "--check-lifespan"]
    assert complete("dovetail dev --wi") == ["--with"]
    assert complete("dovetail worker --log-level d") == ["debug"]
    assert complete("dovetail uninstall x --from cu") == ["cursor"]


def test_ambiguous_names_have_their_source(complete: Complete, run: RunCommand, at_home: dict[str, str]) -> None:
    for host in ("cursor", "gemini"):
        run("install", "--to", host, "--name", "hello", "--", "some-program", **at_home).check_success()
    assert complete("dovetail call ", **at_home) == ["cursor:hello", "gemini:hello"]
    assert complete("dovetail uninstall cur", **at_home) == ["cursor:hello"]
    assert complete("dovetail uninstall cursor:h", shell="bash", **at_home) == ["hello"]


def test_targets(complete: Complete, tmp_path: Path) -> None:
    for name in ("one.py", "two.jsonl", "notes.txt", "a b.py"):
        (tmp_path / name).write_text("", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"mine": {"url": "http://x"}, "$(x)": {"url": "http://x"}}}')
    assert complete("dovetail info ", cwd=tmp_path) == ["folder/", "mcp.json", "one.py", "two.jsonl", "mine", "x"]
    assert complete("dovetail mock t", cwd=tmp_path) == ["two.jsonl"]
    assert complete("dovetail diff one.py t", cwd=tmp_path) == ["two.jsonl"]
    assert complete("dovetail diff one.py mi", cwd=tmp_path) == ["mine"]
    assert complete("dovetail diff one.py two.jsonl ", cwd=tmp_path) == []


def test_what_a_target_offers(complete: Complete, url: str) -> None:
    assert complete(f"dovetail call {url} a") == ["add"]
    assert complete(f"dovetail call -v {url} echo ") == ["value=", "times=", "loud=", "tags="]
    assert complete(f"dovetail call {url} echo value=x ti") == ["times="]
    assert complete(f"dovetail call {url} echo loud=") == ["loud=true", "loud=false"]
    assert complete(f"dovetail call {url} echo loud=t", shell="bash") == ["true"]
    assert complete(f"dovetail read {url} notes") == ["notes://all"]
    assert complete(f"dovetail prompt {url} packing ") == ["city="]
    assert complete(f"dovetail list {url} t") == ["tools", "templates"]
    assert complete("dovetail call http://127.0.0.1:1/mcp ") == []


def test_servers_with_tasks_and_ids_of_tasks(complete: Complete, tmp_path: Path) -> None:
    own = {"DOVETAIL_HOME": str(tmp_path)}
    (tmp_path / "tasks").mkdir()

    async def create_tasks() -> None:
        store = SQLiteTaskStore(tmp_path / "tasks" / "reports.sqlite")
        for number, letter in enumerate("abc"):
            await store.create(make_record(id=letter * 48, now=1e9 + number))
        await store.close()

    asyncio.run(create_tasks())
    assert complete("dovetail tasks ") == ["list", "show", "watch", "cancel"]
    assert complete("dovetail tasks list r", **own) == ["reports"]
    assert complete("dovetail tasks list reports ", **own) == []
    assert complete("dovetail tasks show reports ", **own) == ["c" * 12, "b" * 12, "a" * 12]
    assert complete("dovetail tasks cancel reports x b", **own) == ["b" * 12]
    assert complete(f"dovetail tasks watch --store {tmp_path}/tasks/reports.sqlite a", **own) == ["a" * 12]
    assert complete("dovetail tasks show unknown ", **own) == []


def test_skills_of_a_target(complete: Complete, run: RunCommand, tmp_path: Path) -> None:
    skill = tmp_path / "skills" / "pdf-forms"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: pdf-forms\ndescription: Fill forms.\n---\n", encoding="utf-8")
    (skill / "fields.md").touch()
    (tmp_path / "one.py").write_text("from dovetail import Server\napp = Server('s')\napp.add_skills('skills')\n")
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert complete("dovetail skills ") == ["list", "show", "verify", "pull"]
    assert complete("dovetail skills verify s", cwd=tmp_path, **own) == ["skills/"]
    assert complete("dovetail skills show one.py ", cwd=tmp_path, **own) == []
    run("skills", "list", "one.py", cwd=tmp_path, **own).check_success()
    assert complete("dovetail skills list one.py ", cwd=tmp_path, **own) == []
    assert complete("dovetail skills show one.py p", cwd=tmp_path, **own) == ["pdf-forms"]
    assert complete("dovetail skills show one.py pdf-forms ", cwd=tmp_path, **own) == ["SKILL.md", "fields.md"]
    assert complete("dovetail skills show one.py pdf-forms SKILL.md ", cwd=tmp_path, **own) == []
    assert complete("dovetail skills verify one.py ", cwd=tmp_path, **own) == ["pdf-forms"]
    assert complete("dovetail skills pull one.py pdf-forms s", cwd=tmp_path, **own) == ["skills/"]


STARTED = "from pathlib import Path\nPath('started').open('a').write('x')\n"
PROGRAM = (
    "from dovetail import Server\napp = Server('once')\n@app.tool\ndef only(city: str) -> str:\n    return ''\n"
    "if __name__ == '__main__':\n    app.run()\n"
)


@pytest.mark.parametrize(
    "line",
    [
        "dovetail call once.py o|",
        "dovetail call ./once.py o|",
        "dovetail call -m once o|",
        f"dovetail call o| -- {sys.executable} once.py",
        "dovetail call mine o|",  # a server of the project's mcp.json
        "dovetail call mcp.json o|",
        "dovetail call mcp.json:mine o|",
    ],
)
def test_a_program_is_not_started_by_completion_and_its_tools_are_remembered(
    complete: Complete, run: RunCommand, tmp_path: Path, line: str
) -> None:
    (tmp_path / "once.py").write_text(STARTED + PROGRAM, encoding="utf-8")
    entry = {"command": sys.executable, "args": ["once.py"]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"mine": entry}}), encoding="utf-8")
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert complete(line, cwd=tmp_path, **own) == []
    assert not (tmp_path / "started").exists()
    run(*line.replace("dovetail call", "list").replace(" o|", "").split(), cwd=tmp_path, **own).check_success()
    (tmp_path / "started").unlink()
    assert complete(line, cwd=tmp_path, **own) == ["only"]
    assert complete(line.replace("o|", "only ci|"), cwd=tmp_path, **own) == ["city="]
    assert not (tmp_path / "started").exists()


def test_a_server_of_the_user_is_asked_once(complete: Complete, tmp_path: Path, at_home: dict[str, str]) -> None:
    home, project = Path(at_home["HOME"]), tmp_path / "project"
    project.mkdir()
    (project / "once.py").write_text(STARTED + PROGRAM, encoding="utf-8")
    entry = {"command": sys.executable, "args": [str(project / "once.py")]}
    (home / ".cursor").mkdir(parents=True, exist_ok=True)
    (home / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": {"mine": entry}}), encoding="utf-8")
    own = at_home | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    for _ in range(2):
        assert complete("dovetail call mine o", cwd=project, **own) == ["only"]
    assert (project / "started").read_text(encoding="utf-8") == "x"


def test_a_url_of_a_project_is_not_asked(complete: Complete, tmp_path: Path, url: str) -> None:
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"far": {"url": url}}}), encoding="utf-8")
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert complete("dovetail call far ad", cwd=tmp_path, **own) == []
    assert complete(f"dovetail call {url} ad", cwd=tmp_path, **own) == ["add"]


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_scripts_are_ones_their_shell_takes(run: RunCommand, shell: str) -> None:
    script = run("shell-completion", shell).check_success().out
    assert "_DOVETAIL_COMPLETE" in script
    assert run("shell-completion", "cmd").code == 2


SHELLS = {  # how each is started without its user's settings, and told of the completion
    "bash": (["--norc", "--noprofile", "-i"], 'eval "$(dovetail shell-completion bash)"'),
    "zsh": (["-f", "-i"], 'autoload -U compinit; compinit -D -u; eval "$(dovetail shell-completion zsh)"'),
    "fish": (
        ["--no-config", "-i", "-C", 'function fish_prompt; echo "> "; end'],
        "dovetail shell-completion fish | source",
    ),
}


@pytest.mark.parametrize("shell", [pytest.param(shell, marks=needs(shell)) for shell in SCRIPTS])
def test_the_key_is_pressed(shell: str, url: str, environment: dict[str, str], tmp_path: Path) -> None:
    options, settle = SHELLS[shell]
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    own = {"PATH": path, "PS1": "> ", "XDG_RUNTIME_DIR": str(tmp_path)}  # fish creates a pipe in this folder
    with open_terminal(environment | own, command=[get_program(shell), *options]) as at:
        at.wait_for(">")
        at.type(f'{settle}; echo re""ady\n')
        at.wait_for("ready")
        at.type(f"dovetail call {url} ad\ta=900001 b=\t1\n")
        at.wait_for("900002")
        at.type("exit\n")
        at.read_rest()


def test_an_item_is_not_suggested_as_an_option(complete: Complete, tmp_path: Path) -> None:
    program = (
        "from dovetail import Server\napp = Server('s')\n@app.tool(name='--output=x')\ndef a() -> str:\n    return ''\n"
    )
    (tmp_path / "s.py").write_text(program, encoding="utf-8")
    (tmp_path / "--header=a:b.py").write_text("", encoding="utf-8")
    assert complete("dovetail call ", cwd=tmp_path) == ["s.py"]


def test_completion_opens_no_file_that_an_option_names(complete: Complete, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("", encoding="utf-8")
    os.mkfifo(tmp_path / "steps")  # opening a pipe waits for its other end
    assert complete("dovetail record --steps-file steps s", cwd=tmp_path) == ["s.py"]
