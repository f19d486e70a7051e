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
COMMAND_GROUPS = {
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
COMMAND_SUMMARIES = {name: summary for group in COMMAND_GROUPS.values() for name, summary in group.items()}


# Commands whose module has another name.
_MODULES = {"completion": "shell_completion", "host": "servers"}


def load_command(name: str) -> click.Command:
    """Import the module of a command and return the command."""
    module = _MODULES.get(name, name)
    command: click.Command = import_module(f"dovetail.cli.commands.{module}").command
    return command


class LazyGroup(click.Group):
    """A group whose commands are modules of `cli.commands`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All of them, in the order they are told."""
        return [*COMMAND_SUMMARIES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name."""
        if cmd_name not in COMMAND_SUMMARIES:
            return None
        return load_command(cmd_name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Help with a name that is almost right."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            from dovetail.cli.tool_arguments import suggest_names

            raise click.UsageError(
                f"There is no command {args[0]!r}.{suggest_names(args[0], COMMAND_SUMMARIES)}", ctx
            ) from exc

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, from the table above: no module is loaded for it."""
        for title, group in COMMAND_GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([*group.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "TARGET is a file (server.py, server.py:app, a recording.jsonl, mcp.json:name), -m MODULE, a URL, a name from "
        "the configuration of a known host, or, last on the line, -- and a command."
    ),
)
@click.version_option(VERSION, "-V", "--version", prog_name="dovetail")
def cli() -> None:
    """The Model Context Protocol at the command line."""


def _split_target_command(args: list[str]) -> tuple[list[str], list[str]]:
    """What stands before and after the first `--`, which begins a command of the user's own."""
    if "--" not in args:
        return args, []
    separator_index = args.index("--")
    if separator_index == len(args) - 1:
        raise click.UsageError("after -- there is no command")
    return args[:separator_index], args[separator_index + 1 :]


def main() -> None:
    """What the installed command calls."""
    _restore_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    if "_DOVETAIL_COMPLETE" in os.environ:
        from dovetail.cli.completion_candidates import print_candidates

        print_candidates(os.environ["_DOVETAIL_COMPLETE"], cli, COMMAND_SUMMARIES)
        return
    sys.exit(_run(sys.argv[1:]))


def _restore_closed_streams() -> None:
    """Standard streams that were closed must not be taken by the next file that is opened; to write fails as it did."""
    for stream_fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened_fd = os.open(os.devnull, os.O_RDONLY if stream_fd < 2 else os.O_WRONLY)
            if opened_fd != stream_fd:
                os.dup2(opened_fd, stream_fd)
                os.close(opened_fd)
            setattr(sys, name, open(stream_fd, "w" if stream_fd else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def _run(args: list[str]) -> int:
    try:
        own_args, target_command = _split_target_command(args)
        with cli.make_context("dovetail", own_args, obj=target_command) as ctx:
            code = cli.invoke(ctx)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as exc:
        click.echo(exc.format_message())
        return 0
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.ClickException as exc:
        _print_usage_error(exc, "--json" in args[: args.index("--") if "--" in args else None])
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("", err=True)
        return 130
    except BrokenPipeError:
        _discard_stdout()
        return 0
    except OSError as exc:
        return _report_os_error(exc)
    except Exception as exc:
        return _report_internal_error(exc, args)
    return code if isinstance(code, int) else 0


def _report_internal_error(exc: Exception, args: list[str]) -> int:
    """What nobody thought of; a server may say anything, and a traceback tells its user nothing."""
    from dovetail.cli import error_report
    from dovetail.terminal import output

    own_args = args[: args.index("--") if "--" in args else None]
    output.print_error(f"dovetail itself is at fault: {type(exc).__name__}: {exc}")
    if {"-v", "--verbose"} & {*own_args}:
        import traceback

        output.print_note("".join(traceback.format_exception(exc)))
    else:
        output.print_note("-v shows where")
    return error_report.EXIT_INTERNAL_ERROR


def _print_usage_error(exc: click.ClickException, as_json: bool) -> None:
    from dovetail.terminal import output

    if as_json:
        document = {"error": type(exc).__name__, "message": exc.format_message()}
        click.echo(output.format_json(document), err=True)
        return
    ctx = getattr(exc, "ctx", None)
    is_option_error = isinstance(exc, click.BadParameter | click.NoSuchOption | click.BadOptionUsage)
    if ctx is not None and is_option_error:
        click.echo(ctx.get_usage(), err=True)
    output.print_error(exc.format_message())
    if ctx is not None and is_option_error:
        output.print_note(f"more: {ctx.command_path} --help")


_WRITE_ERRNOS = (errno.ENOSPC, errno.EBADF, errno.EIO, errno.EFBIG, errno.EDQUOT, errno.EROFS)


def _report_os_error(exc: OSError) -> int:
    """A file, or stdout itself, that the system refuses."""
    from dovetail.terminal import output

    message = exc.strerror or str(exc)
    if exc.filename:
        message = f"{exc.filename}: {message}"
    elif exc.errno in _WRITE_ERRNOS:
        message = f"the output cannot be written: {message}"
    elif isinstance(exc, FileNotFoundError):
        message = "the folder this was started in is gone"
    output.print_error(message)
    with contextlib.suppress(OSError):
        _discard_stdout()
    return 2


def _discard_stdout() -> None:
    """Whoever read has gone; nothing is left to be said, not even at the end of the process."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
