"""`dovetail`: the commands by name, each loaded only when it is run, so that asking for help costs nothing."""

import sys
from importlib import import_module
from typing import Any

import click

from dovetail.cli import exits
from dovetail.version import VERSION

# Each command with its line of help, so that the list needs no module of theirs.
COMMANDS = {
    "run": "Serve a server: over stdio, or with --http, --sse.",
    "list": "List what a server offers: tools, resources, templates, prompts.",
    "call": "Call a tool.",
    "read": "Read a resource.",
    "prompt": "Fill in a prompt.",
    "complete": "Ask for suggestions for an argument.",
    "listen": "Show changes as they happen.",
    "info": "Show who a server is, what it speaks and what it can do.",
    "ping": "Ask a server for a sign of life.",
    "new": "Write a new server, with a test.",
}


class Commands(click.Group):
    """A group whose commands are modules of `cli`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All of them, in the order they are told."""
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name."""
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = import_module(f"dovetail.cli.{cmd_name}").command
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Help with a name that is almost right."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1) if args else []
            if near:
                raise click.UsageError(f"{exc.message} Did you mean {near[0]!r}?", ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, from the table above: no module is loaded for it."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "TARGET is a file (server.py, server.py:app), -m MODULE, a URL, a name from a known configuration, or, last on "
        "the line, -- and a command."
    ),
)
@click.version_option(VERSION, "-V", "--version", prog_name="dovetail")
def cli() -> None:
    """The Model Context Protocol at the command line."""


def _parted(words: list[str]) -> tuple[list[str], bool, list[str]]:
    """What stands before and after the first `--`, which begins a command of the user's own."""
    if "--" not in words:
        return words, False, []
    place = words.index("--")
    return words[:place], True, words[place + 1 :]


def main() -> None:
    """What the installed command calls."""
    before, mark, after = _parted(sys.argv[1:])
    try:
        code = cli.main(args=before, obj=after if mark else None, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as exc:
        click.echo(exc.format_message())
        code = exits.OK
    except click.ClickException as exc:
        exc.show()
        code = exits.USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("", err=True)
        code = exits.INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        code = exits.OK
    sys.exit(code if isinstance(code, int) else exits.OK)
