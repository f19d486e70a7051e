"""`dovetail chat`: a conversation with a model that uses all configured servers, with the user's consent."""

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import click

from dovetail.cli import exits, text
from dovetail.cli.hosting import consent, host_options, made, telling
from dovetail.cli.keyboard import Keyboard
from dovetail.cli.speaking import finished, logged
from dovetail.errors import MCPError
from dovetail.host.agent import Agent, AgentEvent, Answered, Called, Done, Said
from dovetail.host.models.named import SPELLINGS, named
from dovetail.host.policy import Question
from dovetail.wire.codec import plain
from dovetail.wire.content import TextContent

_HELP = """\
/tools          what the model can use
/servers        the servers, and their states
/policy [TOOL]  the rules; or what they say of a tool, and why
/usage          what was used so far
/quit           the end, as is Ctrl-D"""
_SHORT = 200


@click.command("chat")
@host_options
@click.option("--model", required=True, envvar="DOVETAIL_MODEL", help=f"{SPELLINGS}; or set DOVETAIL_MODEL.")
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
    keyboard = Keyboard()
    said = _said(prompt)
    try:
        mind = named(model)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None
    host = made(files, policy, journal, servers, consent=consent(keyboard), model=mind)
    telling(host)
    agent = Agent(host, mind, system=system, max_turns=max_turns, budget_tokens=budget_tokens)

    async def run() -> int:
        with keyboard:
            async with host:
                if said is not None:
                    return await _answer(agent, said, as_json)
                return await _talk(agent, keyboard, as_json)

    with logged(verbose):
        return finished(run, as_json)


def _said(prompt: str | None) -> str | None:
    """The one prompt there is to answer; None for a conversation at the terminal."""
    if prompt is None and text.somebody():
        return None
    said = sys.stdin.read() if prompt is None else prompt
    if not said.strip():
        raise click.UsageError("there is no prompt: give --prompt, write it to standard input, or sit at a terminal")
    return said


async def _talk(agent: Agent, keyboard: Keyboard, as_json: bool) -> int:
    text.note("/help tells what else there is than talking")
    while typed := await keyboard.line("> "):
        said = typed.strip()
        if said in ("/quit", "/exit"):
            break
        if said.startswith("/"):
            click.echo(await _told(agent, said), err=True)
        elif said:
            try:
                await _answer(agent, said, as_json)
            except MCPError as exc:  # the next prompt may fare better
                text.fail(str(exc))
    return exits.OK


async def _answer(agent: Agent, prompt: str, as_json: bool) -> int:
    code = exits.OK
    async with contextlib.aclosing(agent.run(prompt)) as events:
        async for event in events:
            if as_json:
                click.echo(text.record({"type": event.type, **plain(event)}))
            else:
                _show(event)
            if isinstance(event, Done) and event.reason != "finished":
                text.note(f"stopped: {event.reason}")
                code = exits.TOOL
    return code


def _show(event: AgentEvent) -> None:
    match event:
        case Said():
            click.echo(text.safe(event.text))
        case Called():
            text.note(f"→ {event.tool} {_brief(json.dumps(plain(event.arguments), ensure_ascii=False))}")
        case Answered():
            failed = "refused: " if event.denied else "failed: " if event.result.is_error else ""
            words = event.denied or " ".join(_words(event.result.content))
            text.note(f"← {failed}{_brief(words)}")
        case _:
            pass


def _words(content: Any) -> Iterator[str]:
    for block in content:
        yield block.text if isinstance(block, TextContent) else f"[{block.type}]"


def _brief(words: str) -> str:
    return text.line(words if len(words) <= _SHORT else f"{words[: _SHORT - 1]}…")


async def _told(agent: Agent, said: str) -> str:
    host = agent.host
    word, _, rest = said.partition(" ")
    match word:
        case "/tools":
            catalog = await host.catalog()
            rows = [(one.full, str(one.tokens), one.declaration.description or "") for one in catalog.tools]
            return text.table(rows, ("tool", "tokens", "description")) or "no tools"
        case "/servers":
            rows = [(one.name, one.state, str(one.reason or one.source)) for one in host.servers]
            return text.table(rows, ("server", "state", "from, or what is wrong")) or "no servers"
        case "/policy":
            server, _, tool = rest.strip().partition(".")
            return text.safe(host.policy.explain(Question(server=server, tool=tool) if server else None))
        case "/usage":
            used = agent.spent
            money = "" if not used.usd else f", {used.usd:.4f} USD"
            return f"{used.turns} replies, {used.input} tokens in, {used.output} out{money}"
        case _:
            return _HELP
