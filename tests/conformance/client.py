"""The client for the official conformance suite: `client.py URL`, one function per scenario.

The suite passes the scenario, and sometimes a context, in the environment. The client uses only public names and
negotiates the protocol version as usual.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, build_opener

from dovetail import Client
from dovetail.auth import ClientCredentials, EnterpriseLogin, OAuth, WorkloadIdentity
from dovetail.errors import Forbidden, LoginFailed, SkillMismatch
from dovetail.types import CreateMessageRequestParams, ElicitRequestParams

Scenario = Callable[[str], Awaitable[None]]
scenarios: dict[str, Scenario] = {}


def scenario(*names: str) -> Callable[[Scenario], Scenario]:
    """Register a function for these scenarios."""

    def register(run: Scenario) -> Scenario:
        scenarios.update(dict.fromkeys(names, run))
        return run

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


# Requests of the server


def answer(question: ElicitRequestParams) -> dict[str, Any]:
    """Answer yes to booleans without a default, and leave the rest to the form's defaults."""
    fields: dict[str, Any] = (question.requested_schema or {}).get("properties", {})
    return {name: True for name, field in fields.items() if field.get("type") == "boolean" and "default" not in field}


def answer_sampling(question: CreateMessageRequestParams) -> str:
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
    async with Client(url, elicitation_handler=answer, sampling_handler=answer_sampling, roots=["/"]) as client:
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
        # The suite also looks for the headers of these two methods, although nothing in this era sends them.
        about = {
            "protocolVersion": client.protocol_version,
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "1"},
        }
        await client.request("initialize", about)
        await client.notify("notifications/initialized")


@scenario("http-custom-headers")
async def call_context_tools(url: str) -> None:
    async with Client(url) as client:
        await client.list_tools()
        for call in context()["toolCalls"]:
            await client.call_tool(call["name"], call["arguments"])


@scenario("http-invalid-tool-headers")
async def call_listed_tools(url: str) -> None:
    async with Client(url) as client:
        for tool in await client.list_tools():
            names = tool.input_schema.get("required", [])
            await client.call_tool(tool.name, dict.fromkeys(names, "here"))


# Skills


@scenario("sep-2640-client-no-prefetch")
async def list_skills(url: str) -> None:
    async with Client(url) as client:
        assert [skill.name for skill in await client.list_skills()] == ["pdf-processing"]


@scenario("sep-2640-client-verify-digest", "sep-2640-client-verify-size", "sep-2640-client-verify-frontmatter")
async def load_skills(url: str) -> None:
    async with Client(url) as client:
        [skill] = await client.list_skills()
        try:
            for path in skill.files:
                await skill.read(path)
        except SkillMismatch:
            return
    raise AssertionError("the suite modifies every skill of these scenarios")


# Logins


class NoRedirects(HTTPRedirectHandler):
    """Follows no redirects."""

    def redirect_request(self, *_: Any) -> None:
        return None


def approve(url: str) -> str:
    """Open a page as a user who agrees to everything, and return the redirect target."""
    try:
        build_opener(NoRedirects).open(url)
    except HTTPError as redirect:
        with redirect:
            return redirect.headers["location"]
    raise AssertionError("the authorization server did not redirect")


def create_oauth(**settings: Any) -> OAuth:
    return OAuth(
        paste_redirect=approve,
        token_store="memory",
        redirect_uri="http://127.0.0.1:8765/callback",
        client_metadata_url="https://conformance-test.local/client-metadata.json",
        **settings,
    )


async def list_and_call_tools(url: str, auth: Any) -> None:
    """List and call tools after a login."""
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
    await list_and_call_tools(url, create_oauth())


@scenario("auth/authorization-server-migration")
async def log_in_where_the_server_moved(url: str) -> None:
    async with Client(url, auth=create_oauth()) as client:
        (tool,) = await client.list_tools()
        await client.call_tool(tool.name)
        await client.call_tool(tool.name)


@scenario("auth/scope-retry-limit")
async def limit_scope_retries(url: str) -> None:
    try:
        await list_and_call_tools(url, create_oauth())
    except Forbidden:
        return
    raise AssertionError("the call must be refused in this scenario")


@scenario(
    "auth/resource-mismatch",
    "auth/iss-supported-missing",
    "auth/iss-wrong-issuer",
    "auth/iss-unexpected",
    "auth/iss-normalized",
    "auth/metadata-issuer-mismatch",
)
async def expect_login_failure(url: str) -> None:
    try:
        await list_and_call_tools(url, create_oauth())
    except LoginFailed:
        return
    raise AssertionError("the login must fail in these scenarios")


@scenario("auth/pre-registration")
async def log_in_as_registered(url: str) -> None:
    settings = context()
    await list_and_call_tools(
        url, create_oauth(**{name: settings.get(name) for name in ("client_id", "client_secret", "issuer")})
    )


@scenario("auth/dpop", "auth/dpop-nonce")
async def log_in_with_a_key(url: str) -> None:
    await list_and_call_tools(url, create_oauth(dpop=True))


@scenario("auth/client-credentials-jwt")
async def log_in_by_key(url: str) -> None:
    settings = context()
    key, algorithm = settings["private_key_pem"], settings["signing_algorithm"]
    await list_and_call_tools(
        url, ClientCredentials(client_id=settings["client_id"], private_key=key, signing_algorithm=algorithm)
    )


@scenario("auth/client-credentials-basic")
async def log_in_by_secret(url: str) -> None:
    settings = context()
    await list_and_call_tools(
        url, ClientCredentials(client_id=settings["client_id"], client_secret=settings["client_secret"])
    )


@scenario("auth/enterprise-managed-authorization")
async def log_in_by_company(url: str) -> None:
    settings = context()
    auth = EnterpriseLogin(
        client_id=settings["client_id"],
        client_secret=settings["client_secret"],
        idp_client_id=settings["idp_client_id"],
        idp_token_endpoint=settings["idp_token_endpoint"],
        id_token=settings["idp_id_token"],
    )
    await list_and_call_tools(url, auth)


@scenario("auth/wif-jwt-bearer")
async def log_in_as_workload(url: str) -> None:
    settings = context()
    await list_and_call_tools(url, WorkloadIdentity(client_id=settings["client_id"], assertion=settings["valid_jwt"]))


def context() -> Any:
    """Return the context of the scenario."""
    return json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])


def main() -> None:
    asyncio.run(scenarios[os.environ["MCP_CONFORMANCE_SCENARIO"]](sys.argv[1]))


if __name__ == "__main__":
    main()
