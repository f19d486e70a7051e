"""Test that the documentation site builds without warnings, is complete and works offline."""

import os
import re
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.timeout(300)  # the build takes ten seconds of CPU time

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# These attributes of these elements make a browser load a file when it shows the page.
LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
EXTERNAL_CSS = re.compile(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (ROOT / ".venv-docs" / ".stamp").exists():
        pytest.skip("the tools that build the site are not installed: run `make setup`")
    folder = tmp_path_factory.mktemp("docs")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "docs", f"SITE={folder / 'site'}", f"PAGES={folder / 'pages'}"]
    build = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert build.returncode == 0, build.stdout + build.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, str]:
    """The text of each page of the site, with the generated pages, by path."""
    docs = site.parent / "pages" / "docs"
    found = (page for page in docs.rglob("*.md") if page.parent.name != "decisions")
    return {page.relative_to(docs).as_posix(): page.read_text(encoding="utf-8") for page in found}


def test_every_page_is_built(site: Path, pages: dict[str, str]) -> None:
    assert {"README.md", "reference.md", "reference/dovetail.md"} <= {*pages}
    assert not [page for page in pages if not (site / _html_name(page)).is_file()]


def test_search_finds_every_page(site: Path, pages: dict[str, str]) -> None:
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    docnames = re.search(r'"docnames":\[(.*?)\]', index)
    assert docnames is not None
    assert {f"{name}.html" for name in re.findall(r'"(.*?)"', docnames[1])} == {_html_name(page) for page in pages}


def test_llms_txt_lists_every_page(site: Path, pages: dict[str, str]) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    links = re.findall(r"^- \[.+?\]\((.+?)\)", text, re.MULTILINE)
    assert sorted(links) == sorted(pages)
    assert all((site / link).read_text(encoding="utf-8") for link in links)
    full = (site / "llms-full.txt").read_text(encoding="utf-8")
    assert all(page.strip() in full for page in pages.values())


def test_nothing_is_loaded_from_the_network(site: Path) -> None:
    loaded = [(page.name, url) for page, tag, name, url in _list_urls(site) if (tag, name) in LOADED]
    assert loaded
    assert not [(page, url) for page, url in loaded if urlsplit(url).netloc]
    assert not [style.name for style in site.rglob("*.css") if EXTERNAL_CSS.search(style.read_text(encoding="utf-8"))]


def test_links_lead_to_files_of_the_site(site: Path) -> None:
    for page, _, _, url in _list_urls(site):
        parts = urlsplit(url)
        assert parts.scheme in ("", "http", "https", "mailto", "data"), (page, url)
        if not parts.scheme and parts.path:
            target = (page.parent / parts.path).resolve()
            assert target.is_relative_to(site.resolve()), (page, url)
            assert target.exists(), (page, url)


def test_no_path_of_this_machine_is_published(site: Path) -> None:
    files = [path for path in site.rglob("*") if path.suffix in (".html", ".js", ".txt", ".md", ".css")]
    assert not [path for path in files if str(ROOT) in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize(
    ("name", "addition"),
    [
        ("first.md", ""),
        ("first.md", "[no page](nowhere.md)"),
        ("first.md", "[no heading](second.md#nowhere)"),
        ("first.md", "[outside](../README.md)"),
        ("nowhere.md", "# A page outside the navigation"),
    ],
)
@pytest.mark.usefixtures("site")
def test_a_broken_link_or_a_page_outside_the_navigation_is_an_error(tmp_path: Path, name: str, addition: str) -> None:
    pages = {
        "README.md": "# Home",
        "first.md": "# First",
        "second.md": "# Second",
        "site.css": "",
        "conf.py": f"exec(open({str(DOCS / 'conf.py')!r}).read())\nSECTIONS = {{'Guide': ['first', 'second']}}",
    }
    for page, text in (pages | {name: f"{pages.get(name, '')}\n\n{addition}\n"}).items():
        (tmp_path / page).write_text(text, encoding="utf-8")
    command = [ROOT / ".venv-docs/bin/sphinx-build", "--quiet", "--fail-on-warning", tmp_path, tmp_path / "site"]
    build = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (build.returncode != 0) == bool(addition), build.stderr
    assert not addition or "nowhere" in build.stderr or "README" in build.stderr


def _html_name(page: str) -> str:
    return re.sub(r"\bREADME$", "index", page.removesuffix(".md")) + ".html"


def _list_urls(site: Path) -> Iterator[tuple[Path, str, str, str]]:
    for page in site.rglob("*.html"):
        parser = _UrlParser()
        parser.feed(page.read_text(encoding="utf-8"))
        for tag, name, url in parser.urls:
            yield page, tag, name, url


class _UrlParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.urls: list[tuple[str, str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.urls += [(tag, name, value) for name, value in attrs if name in ("href", "src") and value]
