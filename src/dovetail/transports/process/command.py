"""Find the program of a server and build its environment. Explain why a program did not start or why it exited."""

import errno
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from dovetail.error_context import clip
from dovetail.errors import ProcessStartError

Inherit = Literal["minimal", "all"] | Sequence[str]

# Programs need these variables to run. None of them contains a secret or changes which code runs.
# None of these variables gives access to an SSH agent or a display.
_POSIX_VARIABLES = (
    "HOME", "LOGNAME", "USER", "SHELL", "PATH", "TERM", "LANG", "LANGUAGE", "LC_*", "TMPDIR", "TZ", "XDG_*",
)  # fmt: skip
_WINDOWS_VARIABLES = (
    "ALLUSERSPROFILE", "APPDATA", "COMPUTERNAME", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA",
    "NUMBER_OF_PROCESSORS", "OS", "PATH", "PATHEXT", "PROCESSOR_*", "PROGRAMDATA", "PROGRAMFILES*", "PROGRAMW6432",
    "PUBLIC", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "TZ", "USERDOMAIN", "USERNAME", "USERPROFILE", "WINDIR",
)  # fmt: skip
_CERTIFICATE_VARIABLES = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
)
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")

_PROGRAM_PACKAGES = {
    "node": "Node.js", "npm": "Node.js", "npx": "Node.js", "uv": "uv", "uvx": "uv", "pipx": "pipx", "bun": "Bun",
    "bunx": "Bun", "deno": "Deno", "docker": "Docker",
}  # fmt: skip
_CMD_SPECIAL_CHARS = frozenset('"%!^&|<>\r\n\0')


def build_environment(env: Mapping[str, str] | None, inherit: Inherit, parent_env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child process.

    It contains the variables of `parent_env` that `inherit` allows, and the variables in `env`.
    """
    if inherit == "all":
        inherited = dict(parent_env)
    else:
        if isinstance(inherit, str):
            if inherit != "minimal":
                raise ValueError(f'inherit must be "minimal", "all" or a list of names, not {inherit!r}')
            inherit = ()
        inherited = {
            name: value
            for name, value in parent_env.items()
            if _is_safe_variable(name, value) or _matches_any(name, inherit)
        }
    return inherited | dict(env or {})


def _is_safe_variable(name: str, value: str) -> bool:
    if name.upper() in _PROXY_VARIABLES:
        return "@" not in value  # A proxy URL may contain a password.
    # A value that starts with "()" is a shell function.
    return not value.startswith("()") and _matches_any(
        name, (*(_WINDOWS_VARIABLES if sys.platform == "win32" else _POSIX_VARIABLES), *_CERTIFICATE_VARIABLES)
    )


def _matches_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_command(command: Sequence[str], cwd: str | Path | None) -> list[str]:
    """Return the command as a list. Raise TypeError or ProcessStartError if it is invalid."""
    if isinstance(command, str):
        raise TypeError(f"a command must be a list of strings, not one string: {clip(command)!r}")
    if not command or not command[0]:
        raise ProcessStartError("Cannot start a server: the command is empty")
    if any("\0" in word for word in command):
        raise ProcessStartError(f"Cannot start {clip(command[0])}: the command contains a null character")
    if cwd is not None and not os.path.isdir(cwd):
        raise ProcessStartError(
            f"Cannot start {clip(command[0])}: the working directory {clip(str(cwd), 512)} does not exist"
        )
    return list(command)


def windows_command(command: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return the command with the full path of its program.

    Reject arguments that a batch file would run as commands.
    """
    program = shutil.which(command[0], path=_get_search_path(env)) or command[0]
    if program.lower().endswith((".cmd", ".bat")):
        # cmd.exe runs batch files. It interprets special characters even inside quotes.
        for word in command[1:]:
            if _CMD_SPECIAL_CHARS & set(word):
                raise ProcessStartError(
                    f"Cannot start {clip(program)}: it is a batch file, and cmd.exe could run a part of the argument "
                    f"{clip(word)!r} as a command. Start the program behind the batch file instead, such as node "
                    "instead of npx."
                )
    return [program, *command[1:]]


def explain_start_error(error: OSError | ValueError, command: Sequence[str]) -> ProcessStartError:
    """Return an error that explains why the operating system could not start a command."""
    return ProcessStartError(f"Cannot start {clip(command[0], 512)}: {_describe_error(error, command[0])}")


_VARIABLE_PATTERN = re.compile(r"\b[A-Z][A-Z0-9_]{3,}\b")
_KEY_ERROR_PATTERN = re.compile(r"KeyError: '([A-Za-z_][A-Za-z0-9_]*)'$", re.MULTILINE)
_NO_MODULE_PATTERN = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)


def suggest_fix(code: int, stderr: str, child_env: Mapping[str, str], parent_env: Mapping[str, str]) -> str | None:
    """Return a hint why a server exited immediately, based on the server's stderr and environment."""
    withheld = [name for name in _VARIABLE_PATTERN.findall(stderr) if name in parent_env and name not in child_env]
    if withheld:
        return (
            f"the server cannot see {withheld[0]}, which is set in this process. Servers inherit only what a "
            "program needs to run and nothing that could be a secret. To pass the variable: "
            f"inherit_env=[{withheld[0]!r}]"
        )
    missing = [name for name in _KEY_ERROR_PATTERN.findall(stderr) if name not in child_env]
    if missing:
        return f"if {missing[-1]} is an environment variable, pass it: env={{{missing[-1]!r}: ...}}"
    module = _NO_MODULE_PATTERN.search(stderr)
    if module is not None:
        return (
            f"start the server with the Python that has {module[1]} installed, or install {module[1]} for the "
            "current Python"
        )
    if code == 0:
        return "the server exited without an error. A script must call app.run() on its last line"
    return None if stderr else "the server printed no reason. Start it in a terminal to see what it does"


def _describe_error(error: OSError | ValueError, program: str) -> str:
    code = error.errno if isinstance(error, OSError) else None
    has_folder = os.path.dirname(program) != ""
    if code == errno.ENOENT and not has_folder:
        return _describe_missing(program)
    if code == errno.ENOENT and os.path.exists(program):
        return "the file exists, but the interpreter on its first line does not"
    if code == errno.ENOENT:
        return "the file does not exist"
    if code == errno.EACCES and os.path.isdir(program):
        return "it is a directory"
    if code == errno.EACCES:
        return "it is not executable. Run chmod +x on it, or start it with its interpreter"
    if code == errno.ENOEXEC:
        return "the system cannot run this file: its first line names no interpreter, or it is for another machine"
    if code in (errno.EAGAIN, errno.ENOMEM):
        return f"the system cannot start another process ({error})"
    if code in (errno.EMFILE, errno.ENFILE):
        return f"too many files are open ({error})"
    return str(error)


def _describe_missing(program: str) -> str:
    stem = program.lower().partition(".")[0]
    if stem.startswith("python"):
        hint = "Use sys.executable for the current Python. Otherwise "
    elif stem in _PROGRAM_PACKAGES:
        hint = f"It is part of {_PROGRAM_PACKAGES[stem]}: is that installed? Otherwise "
    else:
        hint = "Is it installed? If so, "
    return f"it is not on PATH. {hint}pass an absolute path, or env={{'PATH': ...}}"


def _get_search_path(env: Mapping[str, str]) -> str:
    return env.get("PATH", os.defpath)
