"""`dovetail uninstall`: remove a server from the configuration of a host."""

from pathlib import Path
from typing import NamedTuple

import click

from dovetail.cli.suggestions import NamedChoice
from dovetail.error_context import suggest_match
from dovetail.host.config.editor import read_entries, remove_entry
from dovetail.host.config.host_formats import HOST_FORMATS, Scope, get_config_path
from dovetail.terminal import output


class InstalledEntry(NamedTuple):
    """An entry in the configuration file of a host."""

    host: str
    path: Path
    name: str
    value: object


@click.command("uninstall")
@click.argument("name")
@click.option("--from", "host", type=NamedChoice(HOST_FORMATS), help="Host to configure. Defaults to any host.")
@click.option("--project", is_flag=True, help="Change the project configuration of the host.")
@click.option("--print", "should_print", is_flag=True, help="Print the entry instead of removing it.")
def command(name: str, host: str | None, project: bool, should_print: bool) -> int:
    """Remove a server from the configuration of a host.

    Removes one entry and keeps the rest of the file unchanged. NAME is the name of the server in the configuration,
    HOST:NAME, or the file that you have installed.

    \b
    dovetail uninstall weather --from claude-desktop
    dovetail uninstall cursor:weather
    dovetail uninstall weather.py --print
    """
    source, _, entry_name = name.rpartition(":")
    if host is None and source in HOST_FORMATS:
        host, name = source, entry_name
    if name.endswith(".py"):
        name = Path(name).stem
    entry = _find_entry(name, host, project)
    if should_print:
        click.echo(output.format_json({HOST_FORMATS[entry.host].section: {name: entry.value}}))
        output.print_note(f"in {entry.path}")
        return 0
    try:
        remove_entry(entry.host, entry.path, name)
    except ValueError as exc:
        raise click.UsageError(f"{entry.path}: {exc}. Remove the entry with a text editor") from None
    title = HOST_FORMATS[entry.host].title
    click.echo(f"removed {name} from {title}: {entry.path}")
    output.print_note(f"restart {title} to stop the server")
    return 0


def _find_entry(name: str, host: str | None, project: bool) -> InstalledEntry:
    entries = _list_entries(host, project)
    matches = [entry for entry in entries if entry.name == name]
    if len(matches) == 1 or (matches and host is not None):
        return matches[0]  # The user's configuration comes before the project's configuration.
    if matches:
        places = ", ".join(f"--from {entry.host}{' --project' if _is_project_file(entry) else ''}" for entry in matches)
        raise click.UsageError(f"several configurations have a server named {name!r}. Pass one of: {places}")
    names = list(dict.fromkeys(entry.name for entry in entries))
    available = ", ".join(output.escape_line(candidate) for candidate in names)
    hint = suggest_match(name, names) or (f". Available: {available}" if names else "")
    place = f"of {HOST_FORMATS[host].title}" if host is not None else "of the known hosts"
    raise click.UsageError(f"no server named {name!r} in the configuration {place}{hint}")


def _is_project_file(entry: InstalledEntry) -> bool:
    return HOST_FORMATS[entry.host].user_file is not None and entry.path.is_relative_to(Path.cwd())


def _list_entries(host: str | None, project: bool) -> list[InstalledEntry]:
    """Return the entries in the files that `dovetail install` can write."""
    scopes: tuple[Scope, ...] = ("project",) if project else ("user", "project")
    entries: list[InstalledEntry] = []
    for known_host, host_format in HOST_FORMATS.items():
        if host not in (None, known_host):
            continue
        for scope in scopes:
            if (host_format.user_file if scope == "user" else host_format.project_file) is None:
                continue
            path = get_config_path(known_host, scope)
            try:
                values = read_entries(known_host, path)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as exc:
                output.print_note(output.escape_full_line(f"{path}: {exc}"))
                continue
            entries += [InstalledEntry(known_host, path, name, value) for name, value in values.items()]
    return entries
