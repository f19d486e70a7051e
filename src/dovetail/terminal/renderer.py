"""Lay out tables, pages, Markdown and JSON for a terminal, with rich.

Other modules call the functions in `output`, which choose between this module and plain text.

All text here is untrusted. This module escapes text before it passes the text to rich, and rich never reads the text as
markup. Markdown can contain encoded characters, so this module escapes each line again after the layout. No line is
wider than the terminal, and no text becomes a link.
"""

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text
from rich.theme import Theme
from rich.tree import Tree

from dovetail.protocol.safe_text import cut_line, escape_line, escape_text, get_max_width, get_text_width
from dovetail.terminal.style import get_state_colour

_MIN_COLUMNS: Final = 20
_STACKED_BELOW_COLUMNS: Final = 60  # In narrower terminals, each row of a wide table becomes a block of lines.
_MAX_FIT_ATTEMPTS: Final = 4
_GAP_COLUMNS: Final = 2
_STYLES: Final = {
    "header": "bold underline",
    "label": "dim",
    "name": "bold cyan",
    "yellow": "yellow",
    "quiet": "dim",
    "json.name": "cyan",
    "json.text": "green",
    "json.number": "magenta",
    "json.word": "yellow",
    "markdown.h1": "bold underline",
    "markdown.h2": "bold",
    "markdown.h3": "bold",
    "markdown.code": "cyan",
    "markdown.code_block": "cyan",
    "markdown.item.bullet": "bold",
    "markdown.item.number": "bold",
    "markdown.link": "bold",
    "markdown.link_url": "underline",
    "markdown.block_quote": "italic",
    "markdown.table.header": "bold",
}
_STATE_HEADERS: Final = frozenset(("state", "status", "result"))


def create_console(file: Any, columns: int, *, is_styled: bool) -> Console:
    """Create a console that never reads text as markup. It writes colours only if `is_styled` is true."""
    return Console(
        file=file,
        width=columns,
        force_terminal=True,
        color_system="standard" if is_styled else None,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
        theme=Theme(_STYLES),
    )


def render(renderable: RenderableType, columns: int, *, is_styled: bool, encoding: str = "utf-8") -> str:
    """Return the lines of a renderable, without blanks at their ends."""
    console = create_console(io.StringIO(), columns, is_styled=is_styled)
    options = console.options.copy()
    options.encoding = encoding
    lines = _fit_lines(console, options, renderable)
    color_system = ColorSystem.STANDARD if is_styled else None
    return "\n".join(
        "".join(
            segment.style.render(segment.text, color_system=color_system) if segment.style else segment.text
            for segment in line
        )
        for line in lines
    )


class SafeLayout:
    """Escapes each line of a renderable, and limits its width to the width of the terminal."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in _fit_lines(console, options, self._renderable):
            yield from line
            yield Segment.line()


def _fit_lines(console: Console, options: ConsoleOptions, renderable: RenderableType) -> list[list[Segment]]:
    """Return the lines of a renderable.

    Terminals disagree about the width of some characters. If a line could be too wide, lay out the lines again with
    fewer columns.
    """
    columns = width = options.max_width
    lines: list[list[Segment]] = []
    for _ in range(_MAX_FIT_ATTEMPTS):
        rendered = console.render_lines(renderable, options.update(width=width), pad=False)
        lines = [_clean_line(line, is_styled=console.color_system is not None) for line in rendered]
        overflow = max((_get_line_width(line) for line in lines), default=0) - columns
        if overflow <= 0 or width <= _MIN_COLUMNS:
            break
        width = max(_MIN_COLUMNS, width - overflow)
    return [line if _get_line_width(line) <= columns else _cut_segments(line, columns) for line in lines]


def _clean_line(line: Iterable[Segment], *, is_styled: bool) -> list[Segment]:
    """Remove links, control sequences, unsafe characters and trailing blanks."""
    segments = [
        Segment(escape_text(segment.text).replace("\n", "\\n"), segment.style and segment.style.update_link(None))
        for segment in line
        if not segment.control
    ]
    while segments and not (is_styled and _is_visible_blank(segments[-1])):
        last = segments.pop()
        if stripped := last.text.rstrip():
            segments.append(Segment(stripped, last.style))
            break
    return segments


def _is_visible_blank(segment: Segment) -> bool:
    return (
        bool(segment.text) and segment.style is not None and (segment.style.underline or segment.style.reverse or False)
    )


def _get_line_width(line: Iterable[Segment]) -> int:
    return get_max_width("".join(segment.text for segment in line))


def _cut_segments(line: Iterable[Segment], columns: int) -> list[Segment]:
    return [Segment(cut_line("".join(segment.text for segment in line), columns))]


def make_text(text: str, style: str = "") -> Text:
    """Return an escaped text that rich does not read as markup."""
    return Text(escape_text(text).expandtabs(4), style)


def make_line(text: str, style: str = "") -> Text:
    """Return an escaped text on one line."""
    return Text(escape_line(text), style)


# Tables


class TableLayout:
    """A table that fits into the terminal. In a narrow terminal, each row becomes a block of lines."""

    def __init__(self, rows: Sequence[Sequence[str]], headers: Sequence[str], *, is_last_cut: bool) -> None:
        self._rows = rows
        self._headers = headers
        self._is_last_cut = is_last_cut

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        natural = [
            _get_widest([header, *(row[index] for row in self._rows)]) for index, header in enumerate(self._headers)
        ]
        available = options.max_width - _GAP_COLUMNS * (len(natural) - 1)
        widths = _fit_widths(natural, available)
        is_narrow = console.width < _STACKED_BELOW_COLUMNS or self._breaks_words(widths)
        if is_narrow and sum(natural) > available and len(natural) > 1:
            yield from _stack_rows(self._rows, self._headers)
            return
        table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, _GAP_COLUMNS, 0, 0), header_style="header")
        for index, (header, width) in enumerate(zip(self._headers, widths, strict=True)):
            is_cut = self._is_last_cut and index == len(natural) - 1
            table.add_column(
                make_line(header),
                width=width,
                justify="right" if _is_numeric([row[index] for row in self._rows]) else "left",
                no_wrap=is_cut,
                overflow="ellipsis" if is_cut else "fold",
            )
        for row in self._rows:
            table.add_row(*map(_style_cell, row, self._headers, range(len(row))))
        yield table

    def _breaks_words(self, widths: Sequence[int]) -> bool:
        """Return whether a word is too long for its column. Ignore the last column."""
        return any(
            _get_widest(word for row in self._rows for word in row[index].split()) > width
            for index, width in enumerate(widths[:-1])
        )


_MIN_CELL_COLUMNS: Final = 8


def _fit_widths(natural: Sequence[int], available: int) -> list[int]:
    """Return the widths of the columns. Shrink the last column first, and then the widest column."""
    widths = [*natural]
    last = len(widths) - 1
    widths[last] = max(min(natural[last], available * 2 // 5), available - sum(widths[:last]))
    widths[last] = min(widths[last], natural[last])
    while (excess := sum(widths) - available) > 0:
        widest = max(range(len(widths)), key=lambda index: (widths[index], -index))
        if widths[widest] <= _MIN_CELL_COLUMNS:
            break
        second = max((width for index, width in enumerate(widths) if index != widest), default=0)
        widths[widest] -= max(1, min(excess, widths[widest] - max(second, _MIN_CELL_COLUMNS)))
    return widths


def _stack_rows(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> Iterator[RenderableType]:
    yield make_line(headers[0], "header")
    label_width = max(map(len, headers[1:]))
    for row in rows:
        yield _style_cell(row[0], headers[0], 0)
        grid = Table.grid(padding=(0, _GAP_COLUMNS, 0, 0))
        grid.add_column(style="label", width=label_width)
        grid.add_column(overflow="fold")
        for index, (cell, header) in enumerate(zip(row[1:], headers[1:], strict=True), 1):
            if cell:
                grid.add_row(make_line(header), _style_cell(cell, header, index))
        yield Padding(grid, (0, 0, 0, 2))


def _get_widest(cells: Iterable[str]) -> int:
    return max((get_text_width(escape_line(cell)) for cell in cells), default=0)


def _is_numeric(cells: Sequence[str]) -> bool:
    return any(cells) and all(cell.replace(".", "", 1).isdecimal() for cell in cells if cell)


def _style_cell(cell: str, header: str, index: int) -> Text:
    if header in _STATE_HEADERS:
        return make_line(cell, get_state_colour(cell) or "")
    return make_line(cell, "name" if index == 0 else "")


# Pages


def lay_out_page(title: str, subtitle: str, description: str, sections: Sequence[tuple[str, Any]]) -> RenderableType:
    """Lay out a page about an item. A section is a text, a list of rows, or a mapping, which becomes a tree."""
    heading = Text.assemble(make_line(title, "name"), *([("  ", ""), make_line(subtitle, "bold")] if subtitle else []))
    parts: list[RenderableType] = [heading]
    if description:
        parts.append(Padding(lay_out_markdown(description), (0, 0, 0, 2)))
    for name, content in sections:
        parts += [Text(""), make_line(name, "bold")]
        parts.append(Padding(_lay_out_section(content), (0, 0, 0, 2)))
    return Group(*parts)


def _lay_out_section(content: Any) -> RenderableType:
    if isinstance(content, str):
        return make_text(content)
    if not isinstance(content, Mapping):
        return _RowsLayout(content)
    tree = Tree("", hide_root=True, guide_style="quiet")
    _add_branches(tree, cast("Mapping[str, Any]", content))
    return tree


_MAX_BRANCHES: Final = 100
_MAX_TREE_DEPTH: Final = 5


def _add_branches(tree: Tree, values: Mapping[str, Any], depth: int = 0) -> None:
    for name, value in [*values.items()][:_MAX_BRANCHES]:
        label = make_line(str(name)[:_MAX_LABEL_CHARS], "" if depth else "cyan")
        if isinstance(value, Mapping):
            branch = tree.add(label)
            if depth < _MAX_TREE_DEPTH:
                _add_branches(branch, cast("Mapping[str, Any]", value), depth + 1)
        elif value is not False and value is not None:
            tree.add(label if value is True else Text.assemble(label, " ", make_line(str(value)[:_MAX_LABEL_CHARS])))


_MAX_LABEL_CHARS: Final = 300
_ROW_STYLES: Final = ("cyan", "green", "yellow")


class _RowsLayout:
    """A table with the name, type, note and description of each field.

    In a narrow terminal, the description is on the next line.
    """

    def __init__(self, rows: Sequence[Sequence[str]]) -> None:
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        natural = [_get_widest(cells) for cells in zip(*self._rows, strict=True)]
        available = options.max_width - _GAP_COLUMNS * (len(natural) - 1)
        if console.width < _STACKED_BELOW_COLUMNS and sum(natural) > available:
            for row in self._rows:
                yield from _stack_cells(row)
            return
        grid = Table.grid(padding=(0, _GAP_COLUMNS, 0, 0))
        styles = [*_ROW_STYLES[: len(natural) - 1], ""]
        for width, style in zip(_fit_widths(natural, available), styles, strict=True):
            grid.add_column(width=width, style=style, overflow="fold")
        for row in self._rows:
            grid.add_row(*map(make_text, row))
        yield grid


def _stack_cells(row: Sequence[str]) -> Iterator[RenderableType]:
    *leading, last = row
    cells = [make_text(cell, style) for cell, style in zip(leading, _ROW_STYLES, strict=False) if cell]
    if not cells:
        yield make_text(last)
        return
    # The type and the note may need several lines. Indent these lines, so that they do not look like names.
    grid = Table.grid(padding=(0, _GAP_COLUMNS, 0, 0))
    grid.add_column(overflow="fold")
    grid.add_column(overflow="fold")
    grid.add_row(cells[0], Text("  ").join(cells[1:]))
    yield grid
    if last:
        indent = len(leading[0]) - len(leading[0].lstrip()) + 2
        yield Padding(make_text(last), (0, 0, 0, indent))


# JSON

_JSON_TOKEN_PATTERN: Final = re.compile(
    r'(?P<text>"(?:[^"\\]|\\.)*+")(?P<colon>\s*:)?|(?P<number>-?\d[\d.eE+-]*)|(?P<word>true|false|null)'
)


def render_json(text: str) -> str:
    """Add colours to JSON. Do not wrap long lines, so that the user can copy the JSON."""
    styles = {name: Style.parse(_STYLES[f"json.{name}"]) for name in ("name", "text", "number", "word")}

    def paint(match: re.Match[str]) -> str:
        kind = "name" if match["colon"] else str(match.lastgroup)
        token = match["text"] or match[0]
        return styles[kind].render(token, color_system=ColorSystem.STANDARD) + (match["colon"] or "")

    return _JSON_TOKEN_PATTERN.sub(paint, text)


# Markdown

_MAX_MARKDOWN_CHARS: Final = 20_000  # Longer texts are not parsed, because the parser is slow for some input.


def lay_out_markdown(text: str) -> RenderableType:
    """Lay out Markdown. Show links as text, and do not highlight code."""
    escaped = escape_text(text)
    if len(escaped) > _MAX_MARKDOWN_CHARS:
        return make_text(text)
    from dovetail.terminal.markdown import SafeMarkdown

    return SafeMarkdown(escaped)
