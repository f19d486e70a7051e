"""The client the official conformance suite drives: `client.py URL`, one function per scenario.

The suite names the scenario, and sometimes a context, in the environment. Written as any user would write it, with the
public client only, which finds out by itself what the suite's servers speak.
"""

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from dovetail import Client, ClientCapabilities, CreateMessageParams, ElicitParams

SKILLS = "io.modelcontextprotocol/skills"

Scenario = Callable[[str], Awaitable[None]]
scenarios: dict[str, Scenario] = {}


def scenario(*names: str) -> Callable[[Scenario], Scenario]:
    """What to do when the suite asks for one of these."""

    def register(play: Scenario) -> Scenario:
        scenarios.update(dict.fromkeys(names, play))
        return play

    return register


# Tools


@scenario("initialize", "json-schema-ref-no-deref")
async def look(url: str) -> None:
    async with Client(url) as client:
        assert isinstance(await client.list_tools(), list)


@scenario("tools_call")
async def call(url: str) -> None:
    async with Client(url) as client:
        assert [tool.name for tool in await client.list_tools()] == ["add_numbers"]
        assert await client.call("add_numbers", a=5, b=3) == "The sum of 5 and 3 is 8"


@scenario("sse-retry")
async def call_over_a_closed_stream(url: str) -> None:
    async with Client(url) as client:
        await client.list_tools()
        await client.call("test_reconnection")


@scenario("json-schema-2020-12-preservation")
async def echo_a_schema(url: str) -> None:
    async with Client(url) as client:
        tools = {tool.name: tool for tool in await client.list_tools()}
        await client.call("json_schema_echo", schema=tools["json_schema_2020_12_tool"].input_schema)


# Questions of the server


def answer(question: ElicitParams) -> dict[str, Any]:
    """Say yes to whatever asks for a yes, and leave the rest to the form's defaults."""
    asked: dict[str, Any] = (question.requested_schema or {}).get("properties", {})
    return {name: True for name, one in asked.items() if one.get("type") == "boolean" and "default" not in one}


def think(question: CreateMessageParams) -> str:
    return "forty-two"


@scenario("elicitation-sep1034-client-defaults")
async def leave_the_defaults(url: str) -> None:
    async with Client(url, elicit=answer) as client:
        await client.list_tools()
        await client.call("test_client_elicitation_defaults")


@scenario("sep-2322-client-request-state")
async def answer_in_rounds(url: str) -> None:
    async with Client(url, elicit=answer) as client:
        await client.list_tools()
        await client.call("test_mrtr_echo_state")
        await client.call("test_mrtr_unrelated")
        await client.call("test_mrtr_no_state")
        await client.call("test_mrtr_no_result_type")


# Headers and `_meta`


@scenario("request-metadata")
async def declare_everything(url: str) -> None:
    async with Client(url, elicit=answer, sample=think, roots=["/"]) as client:
        await client.list_tools()
        await client.call("add_numbers", a=5, b=3)


@scenario("http-standard-headers")
async def use_every_method(url: str) -> None:
    async with Client(url) as client:
        for tool in await client.list_tools():
            await client.call(tool.name)
        for resource in await client.list_resources():
            await client.read(resource.uri)
        for prompt in await client.list_prompts():
            await client.get_prompt(prompt.name)
        # The suite looks for the headers of these two as well, though nothing of this era sends them.
        about = {"protocolVersion": client.revision, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        await client.request("initialize", about)
        await client.notify("notifications/initialized")


@scenario("http-custom-headers")
async def call_as_told(url: str) -> None:
    async with Client(url) as client:
        await client.list_tools()
        for told in context()["toolCalls"]:
            await client.call_tool(told["name"], told["arguments"])


@scenario("http-invalid-tool-headers")
async def call_what_is_listed(url: str) -> None:
    async with Client(url) as client:
        for tool in await client.list_tools():
            names = tool.input_schema.get("required", [])
            await client.call_tool(tool.name, dict.fromkeys(names, "here"))


# Skills


def knows_skills(url: str) -> Client:
    return Client(url, capabilities=ClientCapabilities(extensions={SKILLS: {}}))


@scenario("sep-2640-client-no-prefetch")
async def list_skills(url: str) -> None:
    async with knows_skills(url) as client:
        assert (await client.request("skills/list"))["skills"]


@scenario("sep-2640-client-verify-digest", "sep-2640-client-verify-size", "sep-2640-client-verify-frontmatter")
async def load_skills(url: str) -> None:
    async with knows_skills(url) as client:
        for skill in (await client.request("skills/list"))["skills"]:
            assert not await loaded(client, skill), "the suite has tampered with every skill of these scenarios"


async def loaded(client: Client, skill: dict[str, Any]) -> bool:
    """Read the files of a skill, up to the first that is not what was announced."""
    for file in skill["resources"]:
        text: str = await client.read(file["uri"])
        data = text.encode()
        if len(data) != file["size"] or f"sha256:{hashlib.sha256(data).hexdigest()}" != file["digest"]:
            return False
        if file["uri"] == skill["uri"] and frontmatter(text) != skill["frontmatter"]:
            return False
    return True


def frontmatter(text: str) -> dict[str, str]:
    """The fields at the head of a file, as far as the suite uses them: one line of text each."""
    _, head, _ = text.split("---\n", 2)
    return dict(line.split(": ", 1) for line in head.splitlines())


def context() -> Any:
    """What the suite tells beyond the scenario's name."""
    return json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])


def main() -> None:
    asyncio.run(scenarios[os.environ["MCP_CONFORMANCE_SCENARIO"]](sys.argv[1]))


if __name__ == "__main__":
    main()
