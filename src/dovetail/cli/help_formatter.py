"""A click help formatter with colours. It wraps long examples so that users can still copy them.

This module does not need rich.
"""

import re
from collections.abc import Iterable
from typing import Final

import click

from dovetail.terminal.style import style

# This pattern matches one word of a shell command. Quoted parts of a word may contain blanks.
_WORD_PATTERN: Final = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")


class HelpFormatter(click.HelpFormatter):
    """Formats help with colours if stdout is a terminal."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the usage line. If an argument does not fit after the command, write all arguments below it."""
        label = prefix or "Usage: "
        longest_word = max(map(len, args.split()), default=0)
        if longest_word <= self.width - self.current_indent - len(f"{label}{prog} "):
            super().write_usage(prog, args, style(label, bold=True))
            return
        self.write(f"{style(label, bold=True)}{prog}\n")
        self.write(f"{click.formatting.wrap_text(args, self.width, '    ', '    ')}\n")

    def write_heading(self, heading: str) -> None:
        """Write the title of a section."""
        super().write_heading(style(heading, bold=True))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write a list of names with their descriptions."""
        super().write_dl([(style(name, fg="cyan"), text) for name, text in rows], col_max, col_spacing)

    def write_text(self, text: str) -> None:
        """Write paragraphs. Break an example command that is too long with a backslash."""
        columns = max(self.width - self.current_indent, 11)
        paragraphs = text.split("\n\n")
        super().write_text(
            "\n\n".join(
                "\n".join(_break_command(line, columns) for line in paragraph.split("\n"))
                if paragraph.lstrip("\n").startswith("\b")
                else paragraph
                for paragraph in paragraphs
            )
        )


def _break_command(line: str, columns: int) -> str:
    if len(line) <= columns:
        return line
    lines: list[str] = []
    for word in _WORD_PATTERN.findall(line):
        if lines and len(f"{lines[-1]} {word} \\") <= columns:
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {word}" if lines else word)
    return " \\\n".join(lines)


class HelpContext(click.Context):
    """A click context whose help has colours."""

    formatter_class = HelpFormatter
