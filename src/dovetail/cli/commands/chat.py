"""`dovetail chat`: a conversation with a model that uses all configured servers, with the user's consent."""

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import click

from dovetail.agent.agent import Agent, AgentEvent, FinishedEvent, TextEvent, ToolCallEvent, ToolResultEvent
from dovetail.agent.models.factory import MODEL_NAME_HELP, load_model
from dovetail.cli import error_report
from dovetail.cli.command_runner import LogPrinter, run_to_exit_code
from dovetail.cli.host_setup import create_consent, create_host, host_options, report_failures
from dovetail.errors import MCPError
from dovetail.host.policy.policy import PolicyRequest
from dovetail.terminal import output
from dovetail.terminal.line_reader import LineReader
from dovetail.wire.codec import to_plain
from dovetail.wire.content import TextContent

_HELP_TEXT = """\
/tools          what the model can use
/servers        the servers, and their states
/policy [TOOL]  the rules; or what they say of a tool, and why
/usage          what was used so far
/quit           the end, as is Ctrl-D"""
_MAX_SUMMARY_CHARS = 200


@click.command("chat")
@host_options
@click.option("--model", required=True, envvar="DOVETAIL_MODEL", help=f"{MODEL_NAME_HELP}; or set DOVETAIL_MODEL.")
@click.option("-p", "--prompt", help="Say this, and end with the answer.")
@click.option("--system", help="What the model is told to be.")
@click.option("--max-turns", type=click.IntRange(1), default=12, show_default=True, help="Replies to one prompt.")
@click.option("--budget-tokens", type=click.IntRange(1), help="Tokens, in and out, after which it ends.")
@click.option("--json", "as_json", is_flag=True, help="Print every event as one JSON document on a line.")
@click.option("-v", "--verbose", is_flag=True, help="Show what is logged.")
def command(
    files: tuple[str, ...],
    policy: str | None,
    journal: str | None,
    model: str,
    servers: tuple[str, ...],
    prompt: str | None,
    system: str | None,
    max_turns: int,
    budget_tokens: int | None,
    as_json: bool,
    verbose: bool,
) -> int:
    """Talk to a model that uses all servers of some configuration files, or of all that are found.

    Before a tool is used you are asked, unless the policy allows it. Where nobody is to be asked, the prompt is read
    from standard input, and what the policy does not allow is refused.

    \b
    dovetail chat --model ollama:qwen3
    dovetail chat mcp.json --model anthropic:claude-sonnet-5 --policy policy.toml
    echo "What time is it in Oslo?" | dovetail chat mcp.json --model openai:gpt-5.2 --policy policy.toml
    """
    keyboard = LineReader()
    initial_prompt = _read_prompt(prompt)
    try:
        language_model = load_model(model)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None
    host = create_host(files, policy, journal, servers, consent=create_consent(keyboard), model=language_model)
    report_failures(host)
    agent = Agent(host, language_model, system_prompt=system, max_turns=max_turns, budget_tokens=budget_tokens)

    async def run() -> int:
        with keyboard:
            async with host:
                if initial_prompt is not None:
                    return await _run_prompt(agent, initial_prompt, as_json)
                return await _run_conversation(agent, keyboard, as_json)

    with LogPrinter(verbose):
        return run_to_exit_code(run, as_json)


def _read_prompt(prompt: str | None) -> str | None:
    """The one prompt there is to answer; None for a conversation at the terminal."""
    if prompt is None and output.is_interactive():
        return None
    content = sys.stdin.read() if prompt is None else prompt
    if not content.strip():
        raise click.UsageError("there is no prompt: give --prompt, write it to standard input, or sit at a terminal")
    return content


async def _run_conversation(agent: Agent, keyboard: LineReader, as_json: bool) -> int:
    output.print_note("/help tells what else there is than talking")
    while line := await keyboard.read_line("> "):
        message = line.strip()
        if message in ("/quit", "/exit"):
            break
        if message.startswith("/"):
            click.echo(await _run_slash_command(agent, message), err=True)
        elif message:
            try:
                await _run_prompt(agent, message, as_json)
            except MCPError as exc:  # the next prompt may fare better
                output.print_error(str(exc))
    return error_report.EXIT_OK


async def _run_prompt(agent: Agent, prompt: str, as_json: bool) -> int:
    code = error_report.EXIT_OK
    async with contextlib.aclosing(agent.run(prompt)) as events:
        async for event in events:
            if as_json:
                click.echo(output.format_json_line({"type": event.type, **to_plain(event)}))
            else:
                _print_event(event)
            if isinstance(event, FinishedEvent) and event.reason != "completed":
                output.print_note(f"stopped: {event.reason}")
                code = error_report.EXIT_TOOL_ERROR
    return code


def _print_event(event: AgentEvent) -> None:
    match event:
        case TextEvent():
            click.echo(output.escape_text(event.text))
        case ToolCallEvent():
            output.print_note(f"→ {event.tool} {_shorten(json.dumps(to_plain(event.arguments), ensure_ascii=False))}")
        case ToolResultEvent():
            prefix = "refused: " if event.denied_reason else "failed: " if event.result.is_error else ""
            summary = event.denied_reason or " ".join(_iter_texts(event.result.content))
            output.print_note(f"← {prefix}{_shorten(summary)}")
        case _:
            pass


def _iter_texts(content: Any) -> Iterator[str]:
    for block in content:
        yield block.text if isinstance(block, TextContent) else f"[{block.type}]"


def _shorten(content: str) -> str:
    return output.escape_line(
        content if len(content) <= _MAX_SUMMARY_CHARS else f"{content[: _MAX_SUMMARY_CHARS - 1]}…"
    )


async def _run_slash_command(agent: Agent, message: str) -> str:
    host = agent.host
    name, _, argument = message.partition(" ")
    match name:
        case "/tools":
            catalog = await host.catalog()
            rows = [
                (tool_entry.full_name, str(tool_entry.tokens), tool_entry.definition.description or "")
                for tool_entry in catalog.tools
            ]
            return output.format_table(rows, ("tool", "tokens", "description")) or "no tools"
        case "/servers":
            rows = [
                (managed_server.name, managed_server.state, str(managed_server.last_error or managed_server.source))
                for managed_server in host.servers
            ]
            return output.format_table(rows, ("server", "state", "source or error")) or "no servers"
        case "/policy":
            server, _, tool = argument.strip().partition(".")
            return output.escape_text(host.policy.explain(PolicyRequest(server=server, tool=tool) if server else None))
        case "/usage":
            usage = agent.usage
            cost = "" if not usage.cost_usd else f", {usage.cost_usd:.4f} USD"
            return f"{usage.turns} replies, {usage.input_tokens} tokens in, {usage.output_tokens} out{cost}"
        case _:
            return _HELP_TEXT
