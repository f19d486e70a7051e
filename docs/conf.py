"""Configure Sphinx, which builds the documentation site. The pages are plain Markdown, the navigation is below."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder

# The navigation: each section of the sidebar with its pages. A page with pages of its own lists them in CHILDREN.
SECTIONS: dict[str, list[str]] = {
    "Tutorial": [
        "tutorial/install",
        "tutorial/first-server",
        "tutorial/try-it",
        "tutorial/test-it",
        "tutorial/use-it-in-a-host",
        "tutorial/ask-the-user",
        "tutorial/deploy",
    ],
    "Guide": [
        "guide/tools",
        "guide/results",
        "guide/resources",
        "guide/prompts",
        "guide/types",
        "guide/schemas",
        "guide/context",
        "guide/dependencies",
        "guide/middleware",
        "guide/elicitation-and-sampling",
        "guide/progress-and-logging",
        "guide/change-notices",
        "guide/mounting",
        "guide/openapi",
        "guide/routes",
        "guide/extensions",
        "guide/skills",
        "guide/tasks",
        "guide/task-workers",
        "guide/task-engines",
        "guide/developing",
        "guide/testing",
        "guide/desktop-hosts",
        "guide/transports",
        "guide/deploying",
        "guide/asgi",
        "guide/overload",
        "guide/docker",
        "guide/cluster",
        "guide/sizing",
        "guide/authorization",
        "guide/authorization-server",
        "guide/troubleshooting",
        "guide/client",
        "guide/client-questions",
        "guide/login",
        "guide/host",
        "guide/gateway",
        "guide/policy",
        "guide/grants",
        "guide/agent",
        "guide/migrating",
    ],
    "Security": [
        "security/http",
        "security/server",
        "security/authorization",
        "security/client",
        "security/processes",
        "security/host",
        "security/gateway",
        "security/tasks",
        "security/cluster",
        "security/skills",
    ],
    "Concepts": ["protocol", "schemas", "reliability", "performance", "stability", "rough-edges"],
    "Commands": ["commands/README"],
    "Reference": ["reference"],
    "Compared": ["compared"],
    "Glossary": ["glossary"],
}
CHILDREN = {"commands/README": ["commands/*"], "reference": ["reference/dovetail", "reference/*"]}
HOME = "README"

project = "dovetail"
extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = HOME
exclude_patterns = ["decisions"]
nitpicky = True
myst_heading_anchors = 4
copybutton_prompt_text = "$ "

html_theme = "furo"
html_title = "dovetail"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False  # llms.txt links to the Markdown of each page, which write_llms_files copies
html_show_sphinx = False
html_show_copyright = False
html_use_index = False

_DESCRIPTION = """\
Dovetail is a Python toolkit for the Model Context Protocol (MCP). \
Turn functions into MCP servers, call any MCP server, or build a host that connects one user to many servers."""
_SUMMARY = re.compile(r"^# .+\n+(?P<paragraph>(?:(?!```|[#|<>-]).+\n)+)")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


class SiteBuilder(StandaloneHTMLBuilder):
    """The HTML builder, except that README.md becomes index.html."""

    def get_output_path(self, page_name: str, /) -> Path:
        return super().get_output_path(_rename_readme(page_name))

    def get_target_uri(self, docname: str, typ: str | None = None) -> str:
        return super().get_target_uri(_rename_readme(docname), typ)

    def dump_search_index(self) -> None:
        super().dump_search_index()
        index = Path(self.outdir, self.searchindex_filename)
        text = index.read_text(encoding="utf-8")
        index.write_text(re.sub(r'"([\w/]*\b)README"', r'"\1index"', text), encoding="utf-8")


def _rename_readme(docname: str) -> str:
    return re.sub(r"\bREADME$", "index", docname)


def add_navigation(_app: Sphinx, docname: str, content: list[str]) -> None:
    """Append the navigation to the pages that have pages below them, so that the Markdown files hold no directives."""
    if docname == HOME:
        for title, pages in SECTIONS.items():
            content[0] += _format_toctree(f":caption: {title}", pages)
    elif docname in CHILDREN:
        content[0] += _format_toctree(":glob:", CHILDREN[docname])


def _format_toctree(option: str, entries: list[str]) -> str:
    lines = ["```{toctree}", ":hidden:", option, "", *(f"/{entry}" for entry in entries), "```"]
    return "\n\n" + "\n".join(lines) + "\n"


def write_llms_files(app: Sphinx, failure: Exception | None) -> None:
    """Write llms.txt, llms-full.txt and the Markdown of every page, for language models (llmstxt.org)."""
    if failure is not None or app.builder.name != "html":
        return
    site, index, full = Path(app.outdir), [f"# {project}", f"> {_DESCRIPTION}"], list[str]()
    for section, pages in {"Start": [HOME], **SECTIONS}.items():
        index.append(f"## {section}")
        docnames = [docname for page in pages for docname in _list_with_children(app, page)]
        index.append("\n".join(_format_entry(app, docname) for docname in docnames))
        for docname in docnames:
            text = _read_page(app, docname)
            copy = site / f"{docname}.md"
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text, encoding="utf-8")
            full.append(f"<!-- {docname}.md -->\n\n{text.strip()}")
    (site / "llms.txt").write_text("\n\n".join(index) + "\n", encoding="utf-8")
    (site / "llms-full.txt").write_text("\n\n".join(full) + "\n", encoding="utf-8")


def _list_with_children(app: Sphinx, docname: str) -> Iterator[str]:
    yield docname
    if docname != HOME:
        for child in app.env.toctree_includes.get(docname, []):
            yield from _list_with_children(app, child)


def _format_entry(app: Sphinx, docname: str) -> str:
    summary = _summarize(app, docname)
    entry = f"- [{app.env.titles[docname].astext()}]({docname}.md)"
    return f"{entry}: {summary}" if summary else entry


def _summarize(app: Sphinx, docname: str) -> str:
    """Return the first sentence of a page, without links."""
    match = _SUMMARY.match(_read_page(app, docname))
    text = " ".join(match["paragraph"].split()) if match else ""
    return re.split(r"(?<=\.) ", _LINK.sub(r"\1", text))[0].rstrip(":")


def _read_page(app: Sphinx, docname: str) -> str:
    return app.env.doc2path(docname).read_text(encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions above to the build."""
    app.add_builder(SiteBuilder, override=True)
    app.connect("source-read", add_navigation)
    app.connect("build-finished", write_llms_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
