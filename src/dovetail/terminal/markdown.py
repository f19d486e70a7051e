"""Lay out untrusted Markdown with rich. `renderer` escapes the text before and after the layout.

The layout shows a link as text with its address, an image like a link, and HTML as source text. It does not highlight
code, because highlighters are slow for some input.
"""

from typing import ClassVar, Final

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, HorizontalRule, Markdown, MarkdownElement, TableElement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

# The parser does not decode entities, because an entity could produce a character that `escape_text` removed.
_PARSER: Final = (
    MarkdownIt("commonmark")
    .enable(["strikethrough", "table"])
    .disable(["entity", "image", "html_inline", "html_block"])
)


class _Heading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.text


class _CodeBlock(CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Padding(Text(str(self.text).rstrip().expandtabs(4), "markdown.code_block", overflow="fold"), (0, 0, 0, 2))


class _HorizontalRule(HorizontalRule):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("---", "dim")


class _Table(TableElement):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        header = self.header.row.cells if self.header is not None and self.header.row is not None else []
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="header")
        for cell in header:
            table.add_column(cell.content, overflow="fold")
        for row in self.body.rows if self.body is not None else []:
            table.add_row(*(cell.content for cell in row.cells))
        yield table


class SafeMarkdown(Markdown):
    """A renderable for escaped Markdown."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
        "hr": _HorizontalRule,
        "table_open": _Table,
    }

    def __init__(self, text: str) -> None:
        super().__init__("", hyperlinks=False)
        self.markup = text
        self.parsed = _PARSER.parse(text)
