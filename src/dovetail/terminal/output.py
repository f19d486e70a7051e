"""Print text, tables, pages and JSON: with colours and layout on a terminal, plain and stable in a file or a pipe.

How to use it: `click.echo(format_table(...))`, `format_page(...)` and `format_json(...)` return text for stdout, and
`print_note`, `print_error` and `print_quoted` write to stderr. All of them escape text from servers. Escape text that
you format yourself with `escape_line` or `escape_text`, and colour it with `style` or `style_state` of
`dovetail.terminal.style`. For long work, use `dovetail.terminal.live.ProgressBar`. Only these functions import rich,
and only if the output is a terminal.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import click

from dovetail.protocol import safe_text
from dovetail.protocol.safe_text import escape_text, get_text_width, quote_lines
from dovetail.terminal.line_reader import LineReader
from dovetail.terminal.style import is_styled, style

_MAX_CELL_CHARS: Final = 300


def escape_line(text: str) -> str:
    """Escape and shorten a text for one line, such as a name in a table."""
    return safe_text.escape_line(text, _MAX_CELL_CHARS)


def escape_full_line(text: str) -> str:
    """Escape a text for one line, such as a URL. The text is not shortened."""
    return safe_text.escape_line(text)


def escape_for_stdout(text: str) -> str:
    """Escape text if stdout is a terminal. If stdout is a file or a pipe, return the text unchanged."""
    return escape_text(text) if sys.stdout.isatty() else text


def is_interactive() -> bool:
    """Return whether a user can answer questions on the terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


# JSON


def format_json(value: Any) -> str:
    """Return JSON for stdout, without characters that are unsafe in a terminal. In a terminal, it has colours."""
    text = dump_json(value)
    if not is_styled():
        return text
    from dovetail.terminal.renderer import render_json

    return render_json(text)


def dump_json(value: Any) -> str:
    """Return JSON without colours and without characters that are unsafe in a terminal."""
    return _dump_json(value, indent=2)


def format_json_line(value: Any) -> str:
    """Return JSON on one line."""
    return _dump_json(value, indent=None)


def _dump_json(value: Any, indent: int | None) -> str:
    from dovetail.wire.codec import to_plain

    text = json.dumps(to_plain(value), indent=indent, ensure_ascii=not _is_stdout_utf8(), default=str)
    return safe_text.escape_json(text)


def _is_stdout_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


# Tables and pages


def format_table(rows: Iterable[Sequence[str]], headers: Sequence[str], *, is_last_cut: bool = True) -> str:
    """Format a table. In a terminal, the last column is cut to fit if `is_last_cut` is True, and wrapped otherwise.

    Cells below the header "state", "status" or "result" have the colour of the state.
    """
    cells = [[escape_line(cell) for cell in row] for row in rows]
    if not cells:
        return ""
    if sys.stdout.isatty():
        from dovetail.terminal.renderer import TableLayout

        return _render(TableLayout(cells, headers, is_last_cut=is_last_cut))
    widths = [max(get_text_width(row[column]) for row in [[*headers], *cells]) for column in range(len(headers))]
    return "\n".join(_format_row(row, widths) for row in [headers, *cells])


def _format_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell + " " * (width - get_text_width(cell)) for cell, width in zip(cells[:-1], widths, strict=False)]
    return "  ".join([*padded, cells[-1]]).rstrip()


Rows: TypeAlias = Sequence[tuple[str, ...]]
Section: TypeAlias = str | Rows | Mapping[str, Any]


def format_page(title: str, subtitle: str, description: str, sections: Sequence[tuple[str, Section]]) -> str:
    """Format a page about one thing: its name, its title, its description as Markdown, and named sections.

    A section is a text, a list of rows, or a JSON object, which is shown as a tree. The cells of a row are a name, a
    type, a note and a description. Some of them can be left out.
    """
    if sys.stdout.isatty():
        from dovetail.terminal.renderer import lay_out_page

        return _render(lay_out_page(title, subtitle, description, sections))
    parts = ["  ".join(escape_line(text) for text in (title, subtitle) if text)]
    parts += [_indent(escape_text(description))] if description else []
    for heading, content in sections:
        parts += ["", heading, _indent(_format_section(content))]
    return "\n".join(parts)


def _format_section(content: Section) -> str:
    if isinstance(content, str):
        return escape_text(content)
    return dump_json(content) if isinstance(content, Mapping) else _format_rows(content)


def _format_rows(rows: Rows) -> str:
    cells = [[escape_full_line(cell) for cell in row] for row in rows]
    widths = [max(get_text_width(row[column]) for row in cells) for column in range(max(map(len, cells), default=0))]
    return "\n".join(_format_row(row, widths) for row in cells)


def _indent(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.split("\n"))


def format_markdown(text: str) -> str:
    """Format Markdown from a server for stdout. In a file or a pipe, the text is unchanged."""
    if not sys.stdout.isatty():
        return text
    from dovetail.terminal.renderer import lay_out_markdown

    return _render(lay_out_markdown(text))


def _render(renderable: Any) -> str:
    from dovetail.terminal.renderer import render

    encoding = "utf-8" if _is_stdout_utf8() else "ascii"
    return render(renderable, get_terminal_width(), is_styled=is_styled(), encoding=encoding)


def get_terminal_width() -> int:
    """Return the number of columns of the terminal."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns


def print_error(text: str) -> None:
    """Print an error to stderr."""
    label = style("error: ", err=True, fg="red", bold=True)
    first_row, *rows = _fit_to_stderr(f"error: {escape_text(text)}").split("\n")
    _write_to_stderr("\n".join([label + first_row.removeprefix("error: "), *rows]))


def fit_to_stdout(text: str) -> str:
    """Break lines that are too long for the terminal.

    A terminal would continue a long line at its left edge, where text of a server would look like a line of dovetail.
    """
    return safe_text.wrap_lines(text, get_terminal_width()) if sys.stdout.isatty() else text


def _fit_to_stderr(text: str) -> str:
    return safe_text.wrap_lines(text, LineReader().get_columns()) if sys.stderr.isatty() else text


def wrap_command(words: Sequence[str], indent: int = 2) -> str:
    """Join the quoted words of a command. In a terminal, break it into lines that can still be copied."""
    if not sys.stdout.isatty():
        return " ".join(words)
    columns = get_terminal_width() - indent
    lines = [words[0]]
    for word in words[1:]:
        if get_text_width(f"{lines[-1]} {word} \\") > columns:
            lines.append(_break_json(f"  {word}", columns))
        else:
            lines[-1] += f" {word}"
    return " \\\n".join(lines)


_JSON_PART_PATTERN: Final = re.compile(r'(?:"(?:[^"\\]|\\.)*+"|[^\s"])+')


def _break_json(word: str, columns: int) -> str:
    """Break a quoted word with JSON between two JSON values, because a line break there does not change the JSON."""
    is_json = re.match(r" *'[\w.-]+:=", word) is not None and "'\"'\"'" not in word
    if not is_json or get_text_width(f"{word} \\") <= columns:
        return word
    first, *parts = _JSON_PART_PATTERN.findall(word)
    lines = [f"  {first}"]
    for part in parts:
        if get_text_width(f"{lines[-1]} {part} \\") > columns:
            lines.append(f"    {part}")
        else:
            lines[-1] += f" {part}"
    return "\n".join(lines)


def refuse_overwriting(file: str, force: bool) -> None:
    """Raise UsageError if the file exists and --force is not set."""
    if os.path.isfile(file) and not force:
        raise click.UsageError(f"{file} already exists. Use --force to overwrite it")


def get_stderr_target() -> Any:
    """Return the target for the stderr of a child process.

    In a terminal, the output is escaped, with a bar before each line. Otherwise the child process inherits stderr.
    """
    return print_quoted if sys.stderr.isatty() else "inherit"


def write_content(content: str | bytes, mime_type: str | None = None) -> None:
    """Write text or bytes to stdout. In a terminal, format JSON and Markdown, and show only the size of bytes.

    Without a MIME type, the text decides whether it is JSON or Markdown.
    """
    if sys.stdout.isatty():
        click.echo(format_content(content, mime_type) if isinstance(content, str) else f"[{len(content)} bytes]")
    elif isinstance(content, str):
        sys.stdout.write(content)
        sys.stdout.flush()
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)


_MAX_FORMATTED_CHARS: Final = 200_000
_MARKDOWN_SIGNS: Final = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^#{1,6} \S[^\n]*\n\n",  # A heading, followed by an empty line.
        r"^(?:[-*+]|\d+\.) \S",  # a list
        r"^```",  # code
        r"\*\*\S[^*\n]*\*\*",  # bold text
        # A link. Its length is limited, because the search would be slow for some texts.
        r"\[[^\]\n]{1,200}\]\(https?://",
        r"^\|(?: *:?-+:? *\|)+ *$",  # a table
    )
)


def format_content(text: str, mime_type: str | None = None) -> str:
    """Escape the text of a tool or a resource for a terminal, and format it if it is JSON or Markdown."""
    if len(text) > _MAX_FORMATTED_CHARS:
        return escape_text(text)
    media_type = (mime_type or "").partition(";")[0].strip().lower()
    may_be_json = media_type in ("", "text/plain") or media_type.endswith("json")
    if may_be_json and text.lstrip().startswith(("{", "[")):
        try:
            return format_json(json.loads(text))
        except (ValueError, RecursionError):
            pass
    # A text with only one sign of Markdown may be source code or a log. As Markdown, its lines would be joined.
    is_markdown = media_type == "text/markdown" or (
        not media_type and sum(sign.search(text) is not None for sign in _MARKDOWN_SIGNS) >= 2
    )
    return format_markdown(text) if is_markdown else escape_text(text)


def print_note(text: str) -> None:
    """Print a note to stderr."""
    _write_to_stderr(style(_fit_to_stderr(escape_text(text)), err=True, dim=True))


def print_quoted(text: str) -> None:
    """Print text from a server to stderr, with a bar before each line."""
    _write_to_stderr(_fit_to_stderr("\n".join(quote_lines(text))))


def _write_to_stderr(text: str) -> None:
    from dovetail.terminal.live import print_above

    if not print_above(text):
        click.echo(text, err=True)
