"""The `dovetail` command. Each subcommand is imported only when it runs, so `--help` is fast."""

import contextlib
import errno
import functools
import os
import sys
from importlib import import_module
from typing import Any

import click

from dovetail.cli.help_formatter import HelpContext
from dovetail.lazy import FeatureMissing
from dovetail.version import VERSION

# This table contains the help text of each command, so that `dovetail --help` does not import all commands.
COMMAND_GROUPS = {
    "Write a server": {
        "new": "Create a server and a test for it.",
        "run": "Run a server over stdio or HTTP.",
        "worker": "Run tasks of a server without HTTP.",
        "dev": "Run a server and restart it when files change.",
        "install": "Add a server to the configuration of a host.",
        "uninstall": "Remove a server from the configuration of a host.",
        "migrate": "Rewrite servers of mcp or fastmcp for dovetail.",
    },
    "Use a server": {
        "list": "List tools, resources and prompts of a server.",
        "call": "Call a tool.",
        "read": "Read a resource.",
        "prompt": "Get a prompt.",
        "complete": "Complete an argument of a prompt or template.",
        "listen": "Print change notifications as they arrive.",
        "skills": "List, show, verify and download skills.",
        "info": "Show a server, or one of its tools.",
        "stubs": "Write a typed client for a server.",
        "ping": "Measure the response time of a server.",
        "auth": "Manage logins.",
    },
    "Check a server": {
        "doctor": "Diagnose a server step by step.",
        "lint": "Check tools and skills.",
        "conformance": "Run the official conformance suite.",
        "bench": "Run a short load test against a server.",
        "tasks": "List, show, watch and cancel tasks.",
        "cluster": "Show a cluster on Redis, or confirm a loss.",
    },
    "Record and replay": {
        "record": "Record a session with a server.",
        "tap": "Record traffic between a host and a server.",
        "replay": "Replay a recording and compare the responses.",
        "mock": "Serve a recording as a mock server.",
        "diff": "Compare two servers or recordings.",
    },
    "Many servers": {
        "servers": "Show the status of all configured servers.",
        "gateway": "Serve all configured servers as one.",
        "chat": "Chat with a model that uses your servers.",
        "policy": "Inspect a policy.",
        "pins": "Manage pinned tool definitions.",
    },
    "Shell": {
        "shell-completion": "Print a shell completion script.",
    },
}
COMMAND_SUMMARIES = {name: summary for group in COMMAND_GROUPS.values() for name, summary in group.items()}


_add_help_option = click.help_option("-h", "--help", help="Show this help.")


@functools.cache
def load_command(name: str) -> click.Command:
    """Import the module of a command and return the command."""
    command: click.Command = import_module(f"dovetail.cli.commands.{name.replace('-', '_')}").command
    subcommands = command.commands.values() if isinstance(command, click.Group) else ()
    for documented_command in (command, *subcommands):
        _add_help_option(documented_command)
        documented_command.context_class = HelpContext
    return command


class LazyGroup(click.Group):
    """A click group that imports a command only when it is used."""

    context_class = HelpContext

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands in the order of the help text."""
        return [*COMMAND_SUMMARIES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMAND_SUMMARIES:
            return None
        return load_command(cmd_name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find the command, or suggest a similar name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            from dovetail.cli.suggestions import suggest_command

            hint = suggest_command(args[0], COMMAND_SUMMARIES)
            raise click.UsageError(f"unknown command {args[0]!r}{hint}", ctx) from exc

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing the commands."""
        for title, group in COMMAND_GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([*group.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"max_content_width": 100},
    epilog=(
        "TARGET is a file (server.py, server.py:app, recording.jsonl, mcp.json:name), -m MODULE, a URL, the name of a "
        "server in the configuration of a host, or -- COMMAND at the end of the line."
    ),
)
@click.version_option(VERSION, "-V", "--version", prog_name="dovetail", help="Show the version.")
@_add_help_option
def cli() -> None:
    """Work with Model Context Protocol servers."""


def _split_target_command(args: list[str]) -> tuple[list[str], list[str]]:
    """Split the arguments at the first `--`. The command that starts the server follows `--`."""
    if "--" not in args:
        return args, []
    separator_index = args.index("--")
    if separator_index == len(args) - 1:
        raise click.UsageError("missing command after --")
    return args[:separator_index], args[separator_index + 1 :]


def main() -> None:
    """Run the command line."""
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
    """Open the null device for each closed standard stream, so that no other file gets its file descriptor.

    Writing to stdout still fails.
    """
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
        if own_args[:1] == ["help"]:
            own_args = [*own_args[1:], "--help"]
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
        return _report_exception(exc, args)
    return code if isinstance(code, int) else 0


def _report_exception(exc: Exception, args: list[str]) -> int:
    from dovetail.cli import error_report
    from dovetail.errors import MCPError
    from dovetail.terminal import output

    own_args = args[: args.index("--") if "--" in args else None]
    if isinstance(exc, MCPError):
        from dovetail.cli.command_runner import report_error

        report_error(exc, "--json" in own_args)
        return error_report.get_exit_code(exc)
    if isinstance(exc, FeatureMissing):
        _print_usage_error(click.UsageError(str(exc)), "--json" in own_args)
        return error_report.EXIT_USAGE
    output.print_error(f"internal error: {type(exc).__name__}: {exc}")
    if {"-v", "--verbose"} & {*own_args}:
        import traceback

        output.print_note("".join(traceback.format_exception(exc)))
    else:
        output.print_note("This is a bug in dovetail. Run with -v for the traceback.")
    return error_report.EXIT_INTERNAL_ERROR


def _print_usage_error(exc: click.ClickException, as_json: bool) -> None:
    from dovetail.terminal import output

    message = _format_message(exc)
    if as_json:
        document = {"error": type(exc).__name__, "message": message}
        click.echo(output.format_json(document), err=True)
        return
    ctx = getattr(exc, "ctx", None)
    is_option_error = isinstance(exc, click.BadParameter | click.NoSuchOption | click.BadOptionUsage)
    if ctx is not None and is_option_error:
        click.echo(ctx.get_usage(), err=True)
    output.print_error(message)
    if ctx is not None and is_option_error:
        output.print_note(f"run `{ctx.command_path} --help` for help")


def _format_message(exc: click.ClickException) -> str:
    if not isinstance(exc, click.NoSuchOption):
        return exc.format_message()
    from dovetail.cli.suggestions import suggest_option

    return f"unknown option {exc.option_name!r}{suggest_option(exc)}"


_WRITE_ERRNOS = (errno.ENOSPC, errno.EBADF, errno.EIO, errno.EFBIG, errno.EDQUOT, errno.EROFS)


def _report_os_error(exc: OSError) -> int:
    from dovetail.terminal import output

    message = exc.strerror or str(exc)
    if exc.filename:
        message = f"{exc.filename}: {message}"
    elif exc.errno in _WRITE_ERRNOS:
        message = f"cannot write the output: {message}"
    elif isinstance(exc, FileNotFoundError):
        message = "the current directory does not exist"
    output.print_error(message)
    with contextlib.suppress(OSError):
        _discard_stdout()
    return 2


def _discard_stdout() -> None:
    """Redirect stdout to the null device, because no program reads it any more."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
