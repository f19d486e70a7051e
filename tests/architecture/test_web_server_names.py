"""Test that the project uses no web server of another project, so that no private name of one can break it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

WEB_SERVERS = {"uvicorn", "hypercorn", "granian", "h11"}


def find_imports(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("import_module")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield str(node.args[0].value)


@pytest.mark.parametrize("source", ["import uvicorn.server", "from uvicorn import Config", "import_module('uvicorn')"])
def test_imports_are_found(source: str) -> None:
    assert {name.partition(".")[0] for name in find_imports(source)} == {"uvicorn"}


def test_no_web_server_is_imported(root: Path) -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in (root / "src").rglob("*.py")}
    assert sources
    found = {
        f"{path.relative_to(root)}: {name}"
        for path, source in sources.items()
        if any(web_server in source for web_server in WEB_SERVERS)
        for name in find_imports(source)
        if name.partition(".")[0] in WEB_SERVERS
    }
    assert found == set()
