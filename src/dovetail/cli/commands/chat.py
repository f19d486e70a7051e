"""`dovetail chat`: chat with a model that uses your servers."""

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import click

from dovetail.agent.agent import Agent, AgentEvent, FinishedEvent, TextEvent, ToolCallEvent, ToolResultEvent
from dovetail.agent.models.factory import load_model
from dovetail.cli import error_report
from dovetail.cli.command_runner import LogPrinter, format_error, run_to_exit_code
from dovetail.cli.error_report import translate_options
from dovetail.cli.host_setup import HostOptions, create_consent, create_host, host_options, report_failures
from dovetail.errors import MCPError
from dovetail.host.policy.policy import PolicyRequest
from dovetail.terminal import output
from dovetail.terminal.line_reader import LineReader
from dovetail.wire.codec import to_plain
from dovetail.wire.content import TextContent

_HELP_TEXT = """\
/tools          list the tools
/servers        show the status of the servers
/policy [TOOL]  show the rules, or explain the decision for a tool
/usage          show the tokens used so far
/quit           quit (or press Ctrl-D)"""
_MAX_SUMMARY_CHARS = 200


@click.command("chat")
@host_options
@click.option(
    "--model",
    required=True,
    envvar="DOVETAIL_MODEL",
    help="Model, such as openai:NAME, anthropic:NAME, URL#NAME.",
)
@click.option("-p", "--prompt", help="Send this prompt and exit after the answer.")
@click.option("--system-prompt", help="System prompt.")
@click.option("--max-turns", type=click.IntRange(1), default=12, show_default=True, help="Maximum replies per prompt.")
@click.option("--budget-tokens", type=click.IntRange(1), help="Stop after this many tokens.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON event per line.")
@click.option("-v", "--verbose", is_flag=True, help="Show log messages.")
def command(
    model: str,
    prompt: str | None,
    system_prompt: str | None,
    max_turns: int,
    budget_tokens: int | None,
    as_json: bool,
    verbose: bool,
    **params: Any,
) -> int:
    """Chat with a model that uses your servers.

    Uses the servers of these configuration files, or of all files found. The model is openai:NAME, anthropic:NAME,
    ollama:NAME, or URL#NAME for a server with the API of OpenAI. Set DOVETAIL_MODEL to choose a default. You are asked
    before a tool is called, unless the policy allows it. Without a terminal, the prompt is read from stdin, and calls
    that the policy does not allow are denied.

    \b
    dovetail chat --model ollama:qwen3
    dovetail chat mcp.json --model anthropic:claude-sonnet-5 --policy policy.toml
    echo "What time is it in Oslo?" | dovetail chat mcp.json --model openai:gpt-5.2 --policy policy.toml
    """
    initial_prompt = _read_prompt(prompt)
    try:
        language_model = load_model(model)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None
    host = create_host(HostOptions(**params), consent=create_consent(), model=language_model)
    report_failures(host)
    agent = Agent(host, language_model, system_prompt=system_prompt, max_turns=max_turns, budget_tokens=budget_tokens)

    async def run() -> int:
        try:
            async with host:
                if initial_prompt is not None:
                    return await _run_prompt(agent, initial_prompt, as_json)
                return await _run_conversation(agent, as_json)
        finally:
            await language_model.close()

    with LogPrinter(verbose):
        return run_to_exit_code(run, as_json)


def _read_prompt(prompt: str | None) -> str | None:
    """Return the prompt from --prompt or stdin. Return None if the user will type prompts."""
    if prompt is None and output.is_interactive():
        return None
    content = sys.stdin.read() if prompt is None else prompt
    if not content.strip():
        raise click.UsageError("no prompt. Pass --prompt, pipe the prompt to stdin, or run this command in a terminal")
    return content


async def _run_conversation(agent: Agent, as_json: bool) -> int:
    output.print_note("type /help for a list of commands")
    while (message := await _read_message()) not in ("/quit", "/exit"):
        if message.startswith("/"):
            click.echo(await _run_slash_command(agent, message), err=True)
        elif message:
            try:
                await _run_prompt(agent, message, as_json)
            except MCPError as exc:
                # An error does not end the conversation.
                output.print_error(format_error(exc))
    return error_report.EXIT_OK


async def _read_message() -> str:
    """Read the user's next line. At the end of the input, return `/quit`."""
    with LineReader() as lines:
        try:
            return await lines.read_line_async("> ")
        except EOFError:
            return "/quit"


async def _run_prompt(agent: Agent, prompt: str, as_json: bool) -> int:
    code = error_report.EXIT_OK
    printer = _EventPrinter()
    async with contextlib.aclosing(agent.run(prompt)) as events:
        async for event in events:
            if as_json:
                click.echo(output.format_json_line({"type": event.type, **to_plain(event)}))
            else:
                printer.print(event)
            if isinstance(event, FinishedEvent) and event.reason != "completed":
                output.print_note(f"stopped: {event.reason}")
                code = error_report.EXIT_TOOL_ERROR
    return code


class _EventPrinter:
    """Prints the answer to stdout, and everything else to stderr.

    Text of the model is part of the answer, unless a tool call follows the text.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []  # What the model has written since the last tool call.

    def print(self, event: AgentEvent) -> None:
        match event:
            case TextEvent():
                self._texts.append(output.escape_text(event.text))
            case ToolCallEvent():
                self._print_texts(err=True)
                arguments = json.dumps(to_plain(event.arguments), ensure_ascii=False)
                output.print_note(f"→ {output.escape_line(event.tool)} {_shorten(arguments)}")
            case ToolResultEvent():
                if event.denied_reason:
                    output.print_note(output.escape_line(f"← denied: {translate_options(event.denied_reason)}"))
                    return
                prefix = "failed: " if event.result.is_error else ""
                output.print_note(f"← {prefix}{_shorten(' '.join(_iter_texts(event.result.content)))}")
            case _:
                self._print_texts(err=False)

    def _print_texts(self, *, err: bool) -> None:
        for text in self._texts:
            click.echo(text, err=err)
        self._texts.clear()


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
