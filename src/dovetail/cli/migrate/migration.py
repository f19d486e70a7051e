"""Read source files, translate them, and compare the old and the new text. This module never runs the files."""

import ast
import difflib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import libcst as cst
from libcst import metadata

from dovetail.cli.migrate.edits import Edits, Finding
from dovetail.cli.migrate.names import PEER_PACKAGES, get_hint
from dovetail.cli.migrate.rewriter import PLACEHOLDER, Rewriter
from dovetail.cli.migrate.usage import PeerImport, Usage, UsageCollector
from dovetail.wire.base import Struct

_SKIPPED_FOLDERS: Final = frozenset(("__pycache__", "node_modules", "site-packages", "venv", "build", "dist"))
_SCRIPT_METADATA: Final = re.compile(r"^# /// script$.*?^# ///$", re.MULTILINE | re.DOTALL)
_SCRIPT_DEPENDENCY: Final = re.compile(r"""(["'])(?:fastmcp|mcp)(?:\[[\w,-]+\])?(?:[<>=~!][^"']*)?\1""")
_MAX_LINE_LENGTH: Final = 88

_Statement: TypeAlias = cst.SimpleStatementLine | cst.BaseCompoundStatement


class MigratedSource(Struct, frozen=True):
    """The new text of a file, and the findings for the user."""

    text: str
    findings: list[Finding]


class MigratedFile(Struct, frozen=True):
    """A file with its old and new text."""

    path: Path
    old_text: str
    new_text: str
    findings: list[Finding]

    @property
    def is_changed(self) -> bool:
        return self.old_text != self.new_text

    @property
    def diff(self) -> str:
        """The unified diff of the file."""
        lines = difflib.unified_diff(
            self.old_text.splitlines(keepends=True),
            self.new_text.splitlines(keepends=True),
            str(self.path),
            str(self.path),
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def find_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the Python files of all paths. Skip hidden folders and virtual environments."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        for folder, folder_names, file_names in os.walk(path):
            folder_names[:] = sorted(
                name
                for name in folder_names
                if not name.startswith(".")
                and name not in _SKIPPED_FOLDERS
                and not Path(folder, name, "pyvenv.cfg").exists()
            )
            yield from (Path(folder, name) for name in sorted(file_names) if name.endswith(".py"))


def migrate_files(paths: Iterable[Path]) -> list[MigratedFile]:
    """Migrate all files that use a peer. A file may import a server from another file of `paths`."""
    texts: dict[Path, str] = {}
    usages: dict[Path, Usage] = {}
    migrated: list[MigratedFile] = []
    for path in find_files(paths):
        data = path.read_bytes()
        if not any(package.encode() in data for package in PEER_PACKAGES):
            continue
        try:
            texts[path] = data.decode()
            ast.parse(texts[path])  # Python rejects an expression that is nested too deeply. libcst would crash.
            usages[path] = _collect_usage(cst.parse_module(texts[path]))
        except UnicodeDecodeError as exc:
            finding = Finding(data.count(b"\n", 0, exc.start) + 1, "edit", exc.reason, "save the file as UTF-8")
            migrated.append(MigratedFile(path, "", "", [finding]))
        except (SyntaxError, cst.ParserSyntaxError) as exc:
            line = exc.raw_line if isinstance(exc, cst.ParserSyntaxError) else exc.lineno or 1
            message = exc.message if isinstance(exc, cst.ParserSyntaxError) else exc.msg
            finding = Finding(line, "edit", message, "correct the syntax error, and migrate again")
            migrated.append(MigratedFile(path, texts[path], texts[path], [finding]))
        except (RecursionError, MemoryError):
            finding = Finding(1, "edit", "an expression with too many levels", "write it as several expressions")
            migrated.append(MigratedFile(path, texts[path], texts[path], [finding]))
    servers = {server for usage in usages.values() for server in usage.servers if server.isidentifier()}
    for path in usages:
        source = migrate_source(texts[path], servers)
        migrated.append(MigratedFile(path, texts[path], source.text, source.findings))
    return [file for file in migrated if file.is_changed or file.findings]


def migrate_source(text: str, known_servers: Iterable[str] = ()) -> MigratedSource:
    """Translate the source code of one file.

    Args:
        text: The source code.
        known_servers: Names of servers that the file may import from other files.

    Raises:
        ParserSyntaxError: the text is not Python.
    """
    wrapper = metadata.MetadataWrapper(cst.parse_module(text))
    collector = UsageCollector(frozenset(known_servers))
    wrapper.visit(collector)
    usage = collector.usage
    if not usage.is_peer_file and not usage.objects:
        return MigratedSource(text, [])
    rewriter = Rewriter(usage)
    module = wrapper.visit(rewriter)
    rewriter.finish()
    module = _write_imports(module, rewriter.edits, usage)
    new_text = _SCRIPT_METADATA.sub(_replace_dependencies, module.code)
    return MigratedSource(new_text, sorted(rewriter.edits.findings, key=lambda finding: finding.line))


def _collect_usage(module: cst.Module) -> Usage:
    collector = UsageCollector()
    metadata.MetadataWrapper(module).visit(collector)
    return collector.usage


def _replace_dependencies(match: re.Match[str]) -> str:
    return _SCRIPT_DEPENDENCY.sub(r"\1dovetail-mcp\1", match[0])


def _write_imports(module: cst.Module, edits: Edits, usage: Usage) -> cst.Module:
    """Replace the imports of fastmcp and mcp with imports of dovetail. Insert the helpers that the new code needs."""
    used_names = _find_used_names(module)
    kept: list[PeerImport] = []
    new_names = set(edits.list_local_names())
    for imported in usage.imports.values():
        if imported.local_name in used_names and imported.local_name not in new_names:
            kept.append(imported)
            edits.report(imported.line, imported.qualified_name, get_hint(imported.qualified_name))
    lines = [_wrap_import(line) for line in edits.build_imports(used_names)]
    lines += [_build_import(imported) for imported in kept]
    statements = [*cst.parse_module("\n".join(lines) + "\n").body] if lines else []
    helpers = [*cst.parse_module("\n\n".join(edits.helpers.values())).body] if edits.helpers else []
    return module.with_changes(body=_insert(module.body, statements, helpers))


def _insert(statements: Sequence[_Statement], imports: list[_Statement], helpers: list[_Statement]) -> list[_Statement]:
    """Put the imports at the first placeholder, and the helpers after the last import at the top of the file."""
    result: list[_Statement] = []
    has_imports = False
    needs_helpers = bool(helpers)
    is_placed = any(_is_placeholder(statement) for statement in statements)
    for index, statement in enumerate(statements):
        if _is_placeholder(statement):
            assert isinstance(statement, cst.SimpleStatementLine)
            if not has_imports and imports:
                result += [imports[0].with_changes(leading_lines=statement.leading_lines), *imports[1:]]
            has_imports = True
            continue
        if not is_placed and not has_imports and imports and not _is_header(statement, index):
            result += imports
            has_imports = True
        is_after_imports = has_imports and not any(_is_placeholder(later) for later in statements[index:])
        if needs_helpers and is_after_imports and not _is_import(statement):
            blank_lines = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
            result += [helper.with_changes(leading_lines=blank_lines) for helper in helpers]
            needs_helpers = False
            comments = [line for line in statement.leading_lines if line.comment is not None]
            statement = statement.with_changes(leading_lines=[*blank_lines, *comments])
        result.append(statement)
    return result


def _is_placeholder(statement: cst.CSTNode) -> bool:
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and len(statement.body) == 1
        and isinstance(statement.body[0], cst.Expr)
        and isinstance(statement.body[0].value, cst.Name)
        and statement.body[0].value.value == PLACEHOLDER
    )


def _is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and all(
        isinstance(part, cst.Import | cst.ImportFrom) for part in statement.body
    )


def _is_header(statement: cst.CSTNode, index: int) -> bool:
    """Return whether a statement must stay first in the file. This is a docstring or a `__future__` import."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    part = statement.body[0]
    is_docstring = index == 0 and isinstance(part, cst.Expr) and isinstance(part.value, cst.SimpleString)
    return is_docstring or (
        isinstance(part, cst.ImportFrom) and isinstance(part.module, cst.Name) and part.module.value == "__future__"
    )


def _build_import(imported: PeerImport) -> str:
    module, _, name = imported.qualified_name.rpartition(".")
    if not module:
        return f"import {name}"
    alias = "" if name == imported.local_name else f" as {imported.local_name}"
    return f"from {module} import {name}{alias}"


def _wrap_import(line: str) -> str:
    if len(line) <= _MAX_LINE_LENGTH or " import " not in line:
        return line
    start, _, names = line.partition(" import ")
    return "\n".join([f"{start} import (", *(f"    {name}," for name in names.split(", ")), ")"])


class _NameCollector(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self.names.add(node.value)

    def visit_Annotation(self, node: cst.Annotation) -> None:
        if isinstance(node.annotation, cst.SimpleString):
            self.names.update(re.findall(r"[A-Za-z_]\w*", node.annotation.value))


def _find_used_names(module: cst.Module) -> set[str]:
    collector = _NameCollector()
    module.visit(collector)
    return collector.names
