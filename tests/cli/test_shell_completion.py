"""Test shell completion, including the tools of the target and their arguments, and in a real bash."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.command_process import SAMPLE_SERVER, RunCommand
from cli.terminal import open_terminal
from dovetail.cli.commands.shell_completion import SCRIPTS

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
    assert complete(f"dovetail call ad| -- {sys.executable} {SAMPLE_SERVER}") == ["add"]
    assert complete("dovetail call http://127.0.0.1:1/mcp ") == []


def test_what_was_said_is_remembered(complete: Complete, tmp_path: Path) -> None:
    program = tmp_path / "once.py"
    program.write_text(
        "from pathlib import Path\nfrom dovetail import Server\napp = Server('once')\n"
        "Path('started').open('a').write('x')\n@app.tool\ndef only() -> str:\n    return ''\n",
        encoding="utf-8",
    )
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    for _ in range(2):
        assert complete("dovetail call once.py o", cwd=tmp_path, **own) == ["only"]
    assert (tmp_path / "started").read_text(encoding="utf-8") == "x"


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


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_key_is_pressed(shell: str, url: str, environment: dict[str, str]) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell} here")
    options, settle = SHELLS[shell]
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    with open_terminal(environment | {"PATH": path, "PS1": "> "}, command=[program, *options]) as at:
        at.wait_for(">")
        at.type(f'{settle}; echo re""ady\n')
        at.wait_for("ready")
        at.type(f"dovetail call {url} ad\ta=900001 b=\t1\n")
        at.wait_for("900002")
        at.type("exit\n")
        at.read_rest()
