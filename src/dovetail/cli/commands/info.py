"""`dovetail info`: show name, version and capabilities of a server, or one of its items."""

import sys
from typing import Any

import click

from dovetail.cli.command_runner import CommandRun, run_command
from dovetail.cli.item_page import print_item
from dovetail.cli.target_argument import read_target_options, target_options
from dovetail.terminal import output
from dovetail.wire.codec import to_plain


@click.command("info")
@target_options("[NAME]")
@click.pass_context
def command(ctx: click.Context, **params: Any) -> int:
    """Show a server, or one of its tools.

    Without NAME, shows the name, version and capabilities of the server. NAME is the name of a tool or a prompt, or the
    URI of a resource. Then shows its arguments, its result and an example to copy.

    \b
    dovetail info https://example.com/mcp
    dovetail info server.py forecast
    """
    options = read_target_options(ctx, **params)
    if len(options.args) > (0 if options.command or options.module is not None else 1):
        return print_item(options)

    async def execute(command_run: CommandRun) -> None:
        client = command_run.client
        discovery = await client.discover()
        server = client.server_info
        info = {
            "name": server.name if server else None,
            "title": server.title if server else None,
            "version": server.version if server else None,
            "protocol_version": client.protocol_version,
            "supported_versions": discovery.supported_versions,
            "capabilities": to_plain(client.server_capabilities),
            "instructions": client.instructions,
        }
        command_run.print_result(info, lambda: _format_info(info))

    return run_command(options, execute)


def _format_info(info: dict[str, Any]) -> str:
    if sys.stdout.isatty():
        versions = [version for version in info["supported_versions"] if version != info["protocol_version"]]
        facts = [("version", info["protocol_version"]), ("also", ", ".join(versions))]
        return output.format_page(
            info["name"] or "unnamed server",
            "  ".join(text for text in (info["title"], info["version"]) if text),
            info["instructions"] or "",
            [
                ("Protocol", [fact for fact in facts if fact[1]]),
                ("Capabilities", info["capabilities"]),
            ],
        )
    rows = [(name, _format_field(name, value)) for name, value in info.items() if value not in (None, "", {})]
    lines = [f"{name.replace('_', ' ') + ':':<19} {value}" for name, value in rows]
    return output.fit_to_stdout("\n".join(lines))


def _format_field(name: str, value: Any) -> str:
    if name == "instructions":
        return output.escape_text(str(value)).replace("\n", "\n" + " " * 20)
    if isinstance(value, dict):
        return ", ".join(_format_capability(str(name), capability) for name, capability in value.items())
    if isinstance(value, list):
        return ", ".join(output.escape_line(str(item)) for item in value)
    return output.escape_line(str(value))


def _format_capability(name: str, capability: Any) -> str:
    flags = (
        [output.escape_line(str(key)) for key, is_enabled in capability.items() if is_enabled]
        if isinstance(capability, dict)
        else []
    )
    return f"{output.escape_line(name)} ({', '.join(flags)})" if flags else output.escape_line(name)
