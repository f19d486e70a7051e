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
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, build_opener

from dovetail import Client
from dovetail.auth import ClientCredentials, EnterpriseLogin, OAuth, WorkloadIdentity
from dovetail.errors import Forbidden, LoginFailed
from dovetail.types import ClientCapabilities, CreateMessageRequestParams, ElicitRequestParams

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


def answer(question: ElicitRequestParams) -> dict[str, Any]:
    """Say yes to whatever asks for a yes, and leave the rest to the form's defaults."""
    asked: dict[str, Any] = (question.requested_schema or {}).get("properties", {})
    return {name: True for name, one in asked.items() if one.get("type") == "boolean" and "default" not in one}


def think(question: CreateMessageRequestParams) -> str:
    return "forty-two"


@scenario("elicitation-sep1034-client-defaults")
async def leave_the_defaults(url: str) -> None:
    async with Client(url, elicitation_handler=answer) as client:
        await client.list_tools()
        await client.call("test_client_elicitation_defaults")


@scenario("sep-2322-client-request-state")
async def answer_in_rounds(url: str) -> None:
    async with Client(url, elicitation_handler=answer) as client:
        await client.list_tools()
        await client.call("test_mrtr_echo_state")
        await client.call("test_mrtr_unrelated")
        await client.call("test_mrtr_no_state")
        await client.call("test_mrtr_no_result_type")


# Headers and `_meta`


@scenario("request-metadata")
async def declare_everything(url: str) -> None:
    async with Client(url, elicitation_handler=answer, sampling_handler=think, roots=["/"]) as client:
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
        about = {
            "protocolVersion": client.protocol_version,
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "1"},
        }
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


# Logins


class Stay(HTTPRedirectHandler):
    """Follow nothing."""

    def redirect_request(self, *_: Any) -> None:
        return None


def visit(url: str) -> str:
    """A user who agrees to everything: where the browser is sent when it opens the page."""
    try:
        build_opener(Stay).open(url)
    except HTTPError as redirect:
        with redirect:
            return redirect.headers["location"]
    raise AssertionError("the authorization server asks for more than the suite's do")


def user(**given: Any) -> OAuth:
    return OAuth(
        paste_redirect=visit,
        token_store="memory",
        redirect_uri="http://127.0.0.1:8765/callback",
        client_metadata_url="https://conformance-test.local/client-metadata.json",
        **given,
    )


async def use(url: str, auth: Any) -> None:
    """Whatever one logs in for."""
    async with Client(url, auth=auth) as client:
        for tool in await client.list_tools():
            await client.call_tool(tool.name)


@scenario(
    "auth/2025-03-26-oauth-metadata-backcompat",
    "auth/2025-03-26-oauth-endpoint-fallback",
    "auth/metadata-default",
    "auth/metadata-var1",
    "auth/metadata-var2",
    "auth/metadata-var3",
    "auth/basic-cimd",
    "auth/scope-from-www-authenticate",
    "auth/scope-from-scopes-supported",
    "auth/scope-omitted-when-undefined",
    "auth/scope-step-up",
    "auth/token-endpoint-auth-basic",
    "auth/token-endpoint-auth-post",
    "auth/token-endpoint-auth-none",
    "auth/offline-access-scope",
    "auth/offline-access-not-supported",
    "auth/iss-supported",
    "auth/iss-not-advertised",
)
async def log_in(url: str) -> None:
    await use(url, user())


@scenario("auth/authorization-server-migration")
async def log_in_where_the_server_moved(url: str) -> None:
    async with Client(url, auth=user()) as client:
        (tool,) = await client.list_tools()
        await client.call_tool(tool.name)
        await client.call_tool(tool.name)


@scenario("auth/scope-retry-limit")
async def ask_a_few_times_only(url: str) -> None:
    try:
        await use(url, user())
    except Forbidden:
        return
    raise AssertionError("the suite never lets this one in")


@scenario(
    "auth/resource-mismatch",
    "auth/iss-supported-missing",
    "auth/iss-wrong-issuer",
    "auth/iss-unexpected",
    "auth/iss-normalized",
    "auth/metadata-issuer-mismatch",
)
async def refuse_to_log_in(url: str) -> None:
    try:
        await use(url, user())
    except LoginFailed:
        return
    raise AssertionError("the suite has something to hide in these scenarios")


@scenario("auth/pre-registration")
async def log_in_as_registered(url: str) -> None:
    given = context()
    await use(url, user(**{name: given.get(name) for name in ("client_id", "client_secret", "issuer")}))


@scenario("auth/dpop", "auth/dpop-nonce")
async def log_in_with_a_key(url: str) -> None:
    await use(url, user(dpop=True))


@scenario("auth/client-credentials-jwt")
async def log_in_by_key(url: str) -> None:
    given = context()
    key, algorithm = given["private_key_pem"], given["signing_algorithm"]
    await use(url, ClientCredentials(client_id=given["client_id"], private_key=key, signing_algorithm=algorithm))


@scenario("auth/client-credentials-basic")
async def log_in_by_secret(url: str) -> None:
    given = context()
    await use(url, ClientCredentials(client_id=given["client_id"], client_secret=given["client_secret"]))


@scenario("auth/enterprise-managed-authorization")
async def log_in_by_company(url: str) -> None:
    given = context()
    auth = EnterpriseLogin(
        client_id=given["client_id"],
        client_secret=given["client_secret"],
        idp_client_id=given["idp_client_id"],
        idp_token_endpoint=given["idp_token_endpoint"],
        id_token=given["idp_id_token"],
    )
    await use(url, auth)


@scenario("auth/wif-jwt-bearer")
async def log_in_as_workload(url: str) -> None:
    given = context()
    await use(url, WorkloadIdentity(client_id=given["client_id"], assertion=given["valid_jwt"]))


def context() -> Any:
    """What the suite tells beyond the scenario's name."""
    return json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])


def main() -> None:
    asyncio.run(scenarios[os.environ["MCP_CONFORMANCE_SCENARIO"]](sys.argv[1]))


if __name__ == "__main__":
    main()
