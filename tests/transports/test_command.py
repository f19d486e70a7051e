"""Test starting a child: variables without secrets, finding the program and errors with hints."""

import asyncio
import errno
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import ProcessStartError
from dovetail.transports.process import command
from dovetail.transports.process.child_process import ChildProcess
from dovetail.transports.process.command import (
    Inherit,
    build_environment,
    check_command,
    explain_start_error,
    windows_command,
)

posix = pytest.mark.skipif(sys.platform == "win32", reason="platform: names of variables")

OWN = {
    "PATH": "/bin", "HOME": "/ada", "LC_TIME": "C", "XDG_RUNTIME_DIR": "/run", "SSL_CERT_FILE": "/ca",
    "OPENAI_API_KEY": "k", "AWS_SECRET_ACCESS_KEY": "k", "AWS_REGION": "eu", "GITHUB_TOKEN": "k", "SSH_AUTH_SOCK": "/s",
    "PYTHONPATH": "/p", "LD_PRELOAD": "/l", "TERM": "() { :; }", "HTTPS_PROXY": "http://me:pw@proxy:1",
    "http_proxy": "http://proxy:1", "no_proxy": "localhost",
}  # fmt: skip
MINIMAL = {"PATH", "HOME", "LC_TIME", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "http_proxy", "no_proxy"}


@posix
@pytest.mark.parametrize(
    ("inherit", "names"),
    [
        ("minimal", MINIMAL),
        ("all", set(OWN)),
        ([], MINIMAL),
        (["GITHUB_TOKEN"], MINIMAL | {"GITHUB_TOKEN"}),
        (("AWS_*", "HTTPS_PROXY"), MINIMAL | {"AWS_SECRET_ACCESS_KEY", "AWS_REGION", "HTTPS_PROXY"}),
    ],
)
def test_the_policy_says_what_is_passed_on(inherit: Inherit, names: set[str]) -> None:
    assert build_environment(None, inherit, OWN) == {name: OWN[name] for name in names}


@posix
def test_what_is_given_wins() -> None:
    given = build_environment({"PATH": "/mine", "TOKEN": "t"}, "minimal", OWN)
    assert (given["PATH"], given["TOKEN"], given["HOME"]) == ("/mine", "t", "/ada")


def test_on_windows_other_names_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command.sys, "platform", "win32")
    own = {"SYSTEMROOT": "C:", "PROGRAMFILES(X86)": "C:", "PATHEXT": ".EXE", "HOME": "C:", "MY_API_KEY": "k"}
    assert build_environment(None, "minimal", own).keys() == {"SYSTEMROOT", "PROGRAMFILES(X86)", "PATHEXT"}


def test_a_single_name_is_not_a_list() -> None:
    with pytest.raises(ValueError, match=r'"minimal".*"all".*GITHUB_TOKEN'):
        build_environment(None, "GITHUB_TOKEN", OWN)


def test_a_command_is_a_list_of_words() -> None:
    with pytest.raises(TypeError, match=r"python server\.py"):
        check_command("python server.py", None)


@pytest.mark.parametrize(
    ("words", "cwd", "text"),
    [
        ([], None, "empty"),
        ([""], None, "empty"),
        (["a", "b\0c"], None, "a"),
        (["a"], "/nonexistent/place", "/nonexistent/place"),
    ],
)
def test_what_cannot_work_is_refused(words: Sequence[str], cwd: str | None, text: str) -> None:
    with pytest.raises(ProcessStartError, match=text):
        check_command(words, cwd)


@pytest.mark.parametrize(
    ("program", "hint"),
    [
        ("npx", "Node.js"),
        ("uvx", "uv"),
        ("python3", "sys.executable"),
        ("whatever", "whatever"),
    ],
)
def test_a_missing_program_is_named_with_a_hint(program: str, hint: str) -> None:
    error = explain_start_error(FileNotFoundError(errno.ENOENT, "no"), [program])
    text = str(error)
    assert re.search(f"{program}.*PATH", text)
    assert hint in text


@posix
@pytest.mark.parametrize(
    ("content", "mode", "text"),
    [
        (b"#!/nonexistent/python\n", 0o755, "interpreter"),
        (b"\x00\x01\x02\x03", 0o755, "server"),
        (None, 0o755, "directory"),
        (b"", -1, "server"),
    ],
)
async def test_a_file_that_does_not_run(content: bytes | None, mode: int, text: str, tmp_path: Path) -> None:
    program = tmp_path / "server"
    if content is None:
        program.mkdir()
    elif mode > 0:
        program.write_bytes(content)
        program.chmod(mode)
    with pytest.raises(ProcessStartError, match=re.escape(str(program))) as caught:
        await ChildProcess.start([str(program)], asyncio.Protocol())
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.EACCES, "executable"),
        (errno.EAGAIN, "process"),
        (errno.ENOMEM, "process"),
        (errno.EMFILE, "files"),
        (errno.E2BIG, os.strerror(errno.E2BIG)),
    ],
)
def test_other_refusals_of_the_system(number: int, text: str, tmp_path: Path) -> None:
    program = str(tmp_path / "server")
    assert text in str(explain_start_error(OSError(number, os.strerror(number)), [program]))


class TestWindows:
    """A program as Windows finds it."""

    @pytest.fixture(autouse=True)
    def found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        known = {"npx": r"C:\node\npx.CMD", "python": r"C:\python.exe"}

        def which(name: str, path: Any = None) -> str | None:
            return known.get(name)

        monkeypatch.setattr(command.shutil, "which", which)

    def test_it_is_found_with_its_extension(self) -> None:
        assert windows_command(["npx", "-y", "a server"], {}) == [r"C:\node\npx.CMD", "-y", "a server"]
        assert windows_command(["unknown", "a"], {}) == ["unknown", "a"]

    @pytest.mark.parametrize("word", ['a"&calc', "%PATH%", "a&b", "a|b", "<", ">", "^", "a\nb", "!x!"])
    def test_a_batch_file_gets_no_words_that_would_run(self, word: str) -> None:
        with pytest.raises(ProcessStartError, match=r"npx\.CMD.*cmd\.exe"):
            windows_command(["npx", word], {})
        assert windows_command(["python", word], {})[1] == word
