"""`dovetail migrate`: rewrite servers that were written for mcp or fastmcp."""

import stat
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dovetail.cli import error_report
from dovetail.storage import replace_file
from dovetail.terminal import output

if TYPE_CHECKING:
    from dovetail.cli.migrate.migration import MigratedFile


@click.command("migrate")
@click.argument("paths", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--write", is_flag=True, help="Change the files. The old ones get the suffix .bak.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(paths: tuple[Path, ...], write: bool, as_json: bool) -> int:
    """Rewrite servers of mcp or fastmcp for dovetail.

    Prints the changes as a diff, and lists what you must edit by hand. Reads the files and never runs them. If you
    pass a folder, reads all its Python files. Exits with 6 if something is left to edit by hand.

    \b
    dovetail migrate server.py
    dovetail migrate src --write
    """
    for path in paths:
        if not path.exists():
            raise click.UsageError(f"{path} does not exist")
    files = _migrate(paths)
    if write:
        _write_files(files)
    if as_json:
        click.echo(output.format_json({"files": [_summarize(file, write=write) for file in files]}))
    else:
        _print_files(files, write=write)
    return error_report.EXIT_VALIDATION if _list_edits(files) else error_report.EXIT_OK


def _migrate(paths: Sequence[Path]) -> "list[MigratedFile]":
    try:
        from dovetail.cli.migrate.migration import migrate_files
    except ModuleNotFoundError as exc:
        if (exc.name or "").split(".", 1)[0] != "libcst":
            raise
        raise click.UsageError("migrate needs libcst. Run: pip install 'dovetail-mcp[migrate]'") from None
    return migrate_files(paths)


def _write_files(files: "list[MigratedFile]") -> None:
    changed_files = [file for file in files if file.is_changed]
    backups = {file.path: file.path.with_name(f"{file.path.name}.bak") for file in changed_files}
    for backup in backups.values():
        if backup.exists():
            raise click.UsageError(f"{backup} already exists. Move it away, so that it is not overwritten")
    for file in changed_files:
        path = file.path.resolve()  # Write to the target of a symbolic link, so that the link stays.
        mode = stat.S_IMODE(path.stat().st_mode)
        replace_file(backups[file.path], file.old_text.encode(), mode)
        replace_file(path, file.new_text.encode(), mode)


def _summarize(file: "MigratedFile", *, write: bool) -> dict[str, Any]:
    return {
        "path": str(file.path),
        "is_changed": file.is_changed,
        "is_written": write and file.is_changed,
        "diff": file.diff,
        "findings": file.findings,
    }


def _print_files(files: "list[MigratedFile]", *, write: bool) -> None:
    for file in files:
        if write and file.is_changed:
            click.echo(f"wrote {output.escape_line(str(file.path))}")
        elif not write:
            click.echo(output.escape_for_stdout(file.diff), nl=False)
    for file in files:
        for finding in file.findings:
            construct, advice = output.escape_line(finding.construct), output.escape_line(finding.advice)
            output.print_note(f"{output.escape_line(str(file.path))}:{finding.line}: {finding.kind}: {construct}")
            output.print_note(f"    {advice}")
    output.print_note(_describe_total(files, write=write))


def _describe_total(files: "list[MigratedFile]", *, write: bool) -> str:
    if not files:
        return "nothing to migrate: no file uses mcp or fastmcp"
    changed = sum(file.is_changed for file in files)
    kinds = Counter(finding.kind for file in files for finding in file.findings)
    text = f"{changed} changed, {kinds['edit']} to edit by hand, {kinds['check']} to check"
    return text if write or not changed else f"{text}. Run again with --write to change the files"


def _list_edits(files: "list[MigratedFile]") -> list[str]:
    return [finding.construct for file in files for finding in file.findings if finding.kind == "edit"]
