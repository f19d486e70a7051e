"""`dovetail list`: list the items of a server, or the configured servers."""

import shlex
from typing import Any

import click

from dovetail.cli.command_runner import CommandRun, list_items, run_command
from dovetail.cli.completion_candidates import remember_items
from dovetail.cli.target_argument import (
    TargetOptions,
    list_restricted_items,
    print_problems,
    read_target_options,
    target_options,
)
from dovetail.cli.tool_arguments import suggest_names
from dovetail.host.config.server_entry import ServerConfig
from dovetail.protocol.redaction import mask_secrets, strip_url
from dovetail.schemas.reader import get_mapping, get_required
from dovetail.terminal import output

ITEM_KINDS = ("tools", "resources", "templates", "prompts")


@click.command("list")
@target_options("[tools|resources|templates|prompts]...")
@click.pass_context
def command(ctx: click.Context, **params: Any) -> int:
    """List tools, resources and prompts of a server.

    Pass one or more kinds to list only items of these kinds. Without a target, lists the servers in the
    configuration files of hosts such as Claude Desktop.

    \b
    dovetail list
    dovetail list server.py
    dovetail list https://example.com/mcp tools
    """
    options = read_target_options(ctx, **params)
    if not (options.args or options.command or options.module):
        return _print_configured_servers(options)

    async def execute(command_run: CommandRun) -> None:
        for kind_arg in command_run.args:
            if kind_arg not in ITEM_KINDS:
                raise click.UsageError(f"unknown kind {kind_arg!r}{suggest_names(kind_arg, ITEM_KINDS)}")
        items_by_kind = {kind: await list_items(command_run.client, kind) for kind in command_run.args or ITEM_KINDS}
        remember_items(options, items_by_kind)
        command_run.print_result(items_by_kind, lambda: _format_items(items_by_kind))
        if command_run.is_stderr_hidden and not any(items_by_kind.values()):
            # `close` waits until the rest of stderr has been read.
            await command_run.client.close()
            for stderr_line in command_run.last_stderr_lines:
                output.print_quoted(stderr_line)

    return run_command(list_restricted_items(options), execute)


def _format_items(items_by_kind: dict[str, list[Any]]) -> str:
    parts = [part for kind, items in items_by_kind.items() if (part := _format_kind_table(kind, items))]
    return "\n\n".join(parts) or "nothing"


def _format_kind_table(kind: str, items: list[Any]) -> str:
    match kind:
        case "tools":
            rows = [
                (tool.name, _format_tool_arguments(tool.input_schema), _get_first_line(tool.description))
                for tool in items
            ]
            return output.format_table(rows, ("tool", "arguments", "description"))
        case "resources":
            rows = [(resource.uri, resource.name, _get_first_line(resource.description)) for resource in items]
            return output.format_table(rows, ("resource", "name", "description"))
        case "templates":
            rows = [
                (resource_template.uri_template, resource_template.name, _get_first_line(resource_template.description))
                for resource_template in items
            ]
            return output.format_table(rows, ("template", "name", "description"))
        case _:
            rows = [
                (prompt.name, _format_prompt_arguments(prompt), _get_first_line(prompt.description)) for prompt in items
            ]
            return output.format_table(rows, ("prompt", "arguments", "description"))


def _format_prompt_arguments(prompt: Any) -> str:
    return " ".join(_format_argument(argument.name, argument.required) for argument in prompt.arguments or ())


def _format_tool_arguments(schema: dict[str, Any]) -> str:
    required_names = get_required(schema)
    return " ".join(_format_argument(name, name in required_names) for name in get_mapping(schema))


def _format_argument(name: str, is_required: bool | None) -> str:
    return name if is_required else f"[{name}]"


def _get_first_line(description: str | None) -> str:
    return (description or "").strip().split("\n", 1)[0]


def _print_configured_servers(options: TargetOptions) -> int:
    from dovetail.host.config.config_files import discover_configs

    entries, problems = discover_configs()
    servers = [
        {
            "name": entry.name,
            "source": entry.source,
            "target": _describe_target(entry),
            "path": str(entry.path),
            "enabled": entry.enabled,
        }
        for entry in entries
    ]
    if options.json:
        click.echo(output.format_json(servers))
    else:
        rows = [(str(server["name"]), str(server["source"]), str(server["target"])) for server in servers]
        click.echo(output.format_table(rows, ("server", "configured in", "target")) or "no servers are configured")
    print_problems(problems)
    return 0


def _describe_target(entry: ServerConfig) -> str:
    """Return the URL or the command of a server, with secrets removed or masked."""
    if entry.url is not None:
        return strip_url(entry.url)
    return shlex.join(mask_secrets([entry.command or "", *entry.args]))
