"""One host with three servers of different kinds. The user decides which calls are allowed.

Run `dovetail run examples/booking.py --http` in another terminal, then `python examples/host.py examples/host.json`. It
lists the tools of all servers. With `--model ollama:qwen3 --prompt "…"`, a model uses the tools, and you are asked for
consent. With `--port 8484`, the host serves all servers as one.
"""

import argparse
import asyncio

from dovetail import Host, Policy, rule
from dovetail.agent import Agent, load_model
from dovetail.host import TerminalConsent

POLICY = Policy(
    "ask",
    rules=[
        rule("allow", server="files", tool=["read_*", "list_*"]),
        rule(
            "deny", server="files", tool=["write_*", "edit_*", "move_*", "create_*"], reason="files are only read here"
        ),
        rule("hide", tool="directory_tree"),
    ],
    limits={"*": {"timeout": 60, "max_result_bytes": 100_000}},
)


async def converse(agent: Agent, prompt: str) -> None:
    """Answer a prompt. The policy decides about each call, or else the user at the terminal."""
    async for event in agent.run(prompt):
        match event.type:
            case "text":
                print(event.text)
            case "tool_call":
                print(f"→ {event.tool} {dict(event.arguments)}")
            case "tool_result":
                print(f"← {event.result.text}")
            case "finished":
                print(f"{event.reason} after {event.usage.turns} turns, {event.usage.total_tokens} tokens", flush=True)
            case _:
                pass


async def main(args: argparse.Namespace) -> None:
    """Open the host. It starts a server when it is needed, and stops all of them at the end of the block."""
    model = load_model(args.model) if args.model else None
    # The first list waits for servers that npx or uvx must download first.
    async with Host.from_config(
        args.config, policy=POLICY, consent=TerminalConsent(), model=model, ready_timeout=60
    ) as host:
        for tool in await host.list_tools():
            print(f"{tool.full_name}  ({tool.tokens} tokens)")
        for server in host.servers:
            print(f"{server.name} is {server.state}", flush=True)
        if model is not None and args.prompt:
            await converse(Agent(host, model, budget_tokens=100_000), args.prompt)
        if args.port is not None:
            await host.serve("http", port=args.port)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("--model")
    parser.add_argument("--prompt")
    parser.add_argument("--port", type=int)
    asyncio.run(main(parser.parse_args()))
