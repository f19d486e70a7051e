"""`dovetail`: the commands by name, each loaded only when it is run, so that asking for help costs nothing."""

import contextlib
import errno
import os
import sys
from importlib import import_module
from typing import Any

import click

from dovetail.version import VERSION

# Each command with its line of help, so that the list needs no module of theirs.
COMMANDS = {
    "Servers of your own": {
        "new": "Write a new server, with a test.",
        "run": "Serve a server: over stdio, or with --http, --sse.",
        "dev": "Serve a server while you write it: it starts anew, its client stays.",
        "install": "Write a server into the configuration of a host.",
        "export": "Print a server as an entry of a host's configuration.",
    },
    "Any server": {
        "list": "List what a server offers, or the servers that are configured.",
        "call": "Call a tool.",
        "read": "Read a resource.",
        "prompt": "Fill in a prompt.",
        "complete": "Ask for suggestions for an argument.",
        "listen": "Show changes as they happen.",
        "info": "Show who a server is, what it speaks and what it can do.",
        "ping": "Ask a server for a sign of life.",
        "auth": "Log in at a server, see which logins are kept, log out.",
    },
    "What is wrong with it": {
        "doctor": "Look at a server step by step, each failure with its fix.",
        "lint": "Look for what hosts and models may stumble over, and what tools cost.",
        "conformance": "Run the official conformance suite against a server.",
        "bench": "Put a server under load for a moment, and tell how it fared.",
    },
    "Recordings": {
        "record": "Record what a server offers, and how it answers.",
        "tap": "Sit between a host and a server, and record what they say.",
        "replay": "Ask a server again what a recording asked, and compare.",
        "mock": "Serve a recording as if it were the server.",
        "diff": "Compare what two servers, or recordings, offer.",
    },
    "Many servers": {
        "host": "Show all configured servers: their state, and what they offer.",
        "gateway": "Serve all configured servers as one.",
        "chat": "Talk to a model that uses all configured servers.",
        "policy": "Ask a policy what it says, and why.",
        "pins": "See which definitions were agreed to, and what changed since.",
    },
    "Your shell": {
        "completion": "Print a script that completes commands, targets, tools and arguments.",
    },
}
NAMES = {name: told for group in COMMANDS.values() for name, told in group.items()}


class Commands(click.Group):
    """A group whose commands are modules of `cli`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All of them, in the order they are told."""
        return [*NAMES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name."""
        if cmd_name not in NAMES:
            return None
        found: click.Command = import_module(f"dovetail.cli.{cmd_name}").command
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Help with a name that is almost right."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            from dovetail.cli.arguments import meant

            raise click.UsageError(f"There is no command {args[0]!r}.{meant(args[0], NAMES)}", ctx) from exc

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, from the table above: no module is loaded for it."""
        for title, group in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([*group.items()])


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "TARGET is a file (server.py, server.py:app, a recording.jsonl, mcp.json:name), -m MODULE, a URL, a name from "
        "the configuration of a known host, or, last on the line, -- and a command."
    ),
)
@click.version_option(VERSION, "-V", "--version", prog_name="dovetail")
def cli() -> None:
    """The Model Context Protocol at the command line."""


def _parted(words: list[str]) -> tuple[list[str], list[str]]:
    """What stands before and after the first `--`, which begins a command of the user's own."""
    if "--" not in words:
        return words, []
    place = words.index("--")
    if place == len(words) - 1:
        raise click.UsageError("after -- there is no command")
    return words[:place], words[place + 1 :]


def main() -> None:
    """What the installed command calls."""
    _fill()
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    if "_DOVETAIL_COMPLETE" in os.environ:
        from dovetail.cli.completing import suggest

        suggest(os.environ["_DOVETAIL_COMPLETE"], cli, NAMES)
        return
    sys.exit(_status(sys.argv[1:]))


def _fill() -> None:
    """Standard streams that were closed must not be taken by the next file that is opened; to write fails as it did."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            place = os.open(os.devnull, os.O_RDONLY if number < 2 else os.O_WRONLY)
            if place != number:
                os.dup2(place, number)
                os.close(place)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def _status(words: list[str]) -> int:
    try:
        before, command = _parted(words)
        with cli.make_context("dovetail", before, obj=command) as ctx:
            code = cli.invoke(ctx)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as exc:
        click.echo(exc.format_message())
        return 0
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.ClickException as exc:
        _explain(exc, "--json" in words[: words.index("--") if "--" in words else None])
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("", err=True)
        return 130
    except BrokenPipeError:
        _hush()
        return 0
    except OSError as exc:
        return _unwritten(exc)
    except Exception as exc:
        return _faulty(exc, words)
    return code if isinstance(code, int) else 0


def _faulty(exc: Exception, words: list[str]) -> int:
    """What nobody thought of; a server may say anything, and a traceback tells its user nothing."""
    from dovetail.cli import exits, text

    before = words[: words.index("--") if "--" in words else None]
    text.fail(f"dovetail itself is at fault: {type(exc).__name__}: {exc}")
    if {"-v", "--verbose"} & {*before}:
        import traceback

        text.note("".join(traceback.format_exception(exc)))
    else:
        text.note("-v shows where")
    return exits.FAULT


def _explain(exc: click.ClickException, as_json: bool) -> None:
    from dovetail.cli import text

    if as_json:
        said = {"error": type(exc).__name__, "message": exc.format_message()}
        click.echo(text.document(said), err=True)
        return
    ctx = getattr(exc, "ctx", None)
    misread = isinstance(exc, click.BadParameter | click.NoSuchOption | click.BadOptionUsage)
    if ctx is not None and misread:
        click.echo(ctx.get_usage(), err=True)
    text.fail(exc.format_message())
    if ctx is not None and misread:
        text.note(f"more: {ctx.command_path} --help")


_UNWRITTEN = (errno.ENOSPC, errno.EBADF, errno.EIO, errno.EFBIG, errno.EDQUOT, errno.EROFS)


def _unwritten(exc: OSError) -> int:
    """A file, or stdout itself, that the system refuses."""
    from dovetail.cli import text

    what = exc.strerror or str(exc)
    if exc.filename:
        what = f"{exc.filename}: {what}"
    elif exc.errno in _UNWRITTEN:
        what = f"the output cannot be written: {what}"
    elif isinstance(exc, FileNotFoundError):
        what = "the folder this was started in is gone"
    text.fail(what)
    with contextlib.suppress(OSError):
        _hush()
    return 2


def _hush() -> None:
    """Whoever read has gone; nothing is left to be said, not even at the end of the process."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
