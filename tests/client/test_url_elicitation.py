"""Test requests that need a visited URL first: the user is asked once and the request is sent again."""

import asyncio
from typing import Any

import pytest

from dovetail import Client, ClientLimits, ElicitationCancelled, ElicitationDeclined, MCPError, RemoteError, Timeouts
from dovetail.errors import InputRequestError
from dovetail.types import ElicitRequestParams
from support.fake_service import wait_until
from support.scripted_server import ErrorReply, Messages, ScriptedServer, serve_on_socket, serve_over_http, text_result

PATIENT = Timeouts(request=300)
PAGE = {"mode": "url", "message": "Log in", "url": "https://example.com/login", "elicitationId": "v1"}


def required(*pages: Any) -> ErrorReply:
    return ErrorReply(-32042, "visit first", {"elicitations": [*pages]})


class Served:
    """A call that is refused until the pages of each refusal were visited."""

    def __init__(self, *refusals: Any) -> None:
        self._refusals = [*refusals]
        self.calls: list[Any] = []

    def __call__(self, message: dict[str, Any]) -> Any:
        self.calls.append(message["params"]["name"])
        return self._refusals.pop(0) if self._refusals else text_result("done")


def over(id: str) -> bytes:
    """The notice that a visit is over, as a line."""
    return (
        b'{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"%s"}}\n'
        % id.encode()
    )


async def test_the_user_is_asked_and_the_call_made_again_when_the_visit_is_over() -> None:
    asked: list[ElicitRequestParams] = []
    served = Served(required(PAGE))
    script = ScriptedServer("handshake", {"tools/call": served, "ping": Messages([over("another"), over("v1"), {}])})
    async with serve_on_socket(script) as at:

        async def visit(question: ElicitRequestParams) -> bool:
            asked.append(question)
            return True

        async with Client(at, url_elicitation_handler=visit, timeout=PATIENT) as one, asyncio.timeout(20):
            calling = asyncio.create_task(one.call("go"))
            await wait_until(lambda: asked)
            assert not calling.done()
            await one.ping()  # which brings the notice
            assert await calling == "done"
    assert [(one.url, one.message) for one in asked] == [(PAGE["url"], "Log in")]
    assert served.calls == ["go", "go"]


async def test_a_visit_that_is_over_before_the_user_says_so_is_not_waited_for() -> None:
    script = ScriptedServer("handshake", {"tools/call": Served(required(PAGE)), "ping": Messages([over("v1"), {}])})
    async with serve_on_socket(script) as at:

        async def visit(_: ElicitRequestParams) -> None:
            await one.ping()

        async with Client(at, url_elicitation_handler=visit, timeout=PATIENT) as one, asyncio.timeout(20):
            assert await one.call("go") == "done"


@pytest.mark.parametrize("on", [serve_on_socket, serve_over_http])
async def test_a_server_that_never_says_so_is_asked_again_in_time_and_the_user_is_not(on: Any) -> None:
    asked: list[Any] = []
    served = Served(required(PAGE), required(PAGE), required(PAGE))
    soon = Timeouts(request=0.05)
    script = ScriptedServer("handshake", {"tools/call": served})
    async with on(script) as at, Client(at, url_elicitation_handler=asked.append, timeout=soon) as one:
        assert await one.call("go") == "done"
    assert len(asked) == 1
    assert len(served.calls) == 4


async def test_other_requests_may_want_it_too_and_several_pages_are_asked_for_in_order() -> None:
    asked: list[Any] = []
    pages = [{"mode": "url", "message": name, "url": "https://example.com"} for name in "ab"]
    left = [required(*pages)]
    prompt = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}]}
    script = ScriptedServer("handshake", {"prompts/get": lambda _: left.pop() if left else prompt})
    async with serve_on_socket(script) as at, Client(at, url_elicitation_handler=asked.append, timeout=PATIENT) as one:
        assert len((await one.get_prompt("p")).messages) == 1
    assert [one.message for one in asked] == ["a", "b"]


@pytest.mark.parametrize("no", [ElicitationDeclined, ElicitationCancelled])
async def test_a_user_who_says_no_ends_the_call(no: type[MCPError]) -> None:
    def refuse(_: ElicitRequestParams) -> None:
        raise no

    served = Served(required(PAGE))
    script = ScriptedServer("handshake", {"tools/call": served})
    async with (
        serve_on_socket(script) as at,
        Client(at, name="it", url_elicitation_handler=refuse, timeout=PATIENT) as one,
    ):
        with pytest.raises(no, match="it: tools/call"):
            await one.call("go")
    assert served.calls == ["go"]


async def test_a_server_that_is_never_content_is_not_asked_for_ever() -> None:
    fresh = iter(range(100))
    script = ScriptedServer("handshake", {"tools/call": lambda _: required(PAGE | {"elicitationId": str(next(fresh))})})
    options = {"timeout": Timeouts(request=0.01), "limits": ClientLimits(max_input_rounds=3)}
    async with serve_on_socket(script) as at, Client(at, url_elicitation_handler=lambda _: True, **options) as one:
        with pytest.raises(InputRequestError, match="3"):
            await one.call("go")
    assert script.count("tools/call") == 4


@pytest.mark.parametrize(
    "data",
    [None, [], {}, {"elicitations": []}, {"elicitations": 5}, {"elicitations": [{"mode": "url"}]},
     {"elicitations": [{"message": "a form", "requestedSchema": {}}]}],
)  # fmt: skip
async def test_a_demand_that_does_not_say_what_it_wants_is_the_error_it_is(data: Any) -> None:
    script = ScriptedServer("handshake", {"tools/call": ErrorReply(-32042, "visit first", data)})
    async with (
        serve_on_socket(script) as at,
        Client(at, url_elicitation_handler=lambda _: True, timeout=PATIENT) as one,
    ):
        with pytest.raises(RemoteError, match="visit first"):
            await one.call("go")
    assert script.count("tools/call") == 1


async def test_without_a_handler_the_error_says_what_is_missing() -> None:
    script = ScriptedServer("handshake", {"tools/call": required(PAGE)})
    async with serve_on_socket(script) as at, Client(at, timeout=PATIENT) as one:
        with pytest.raises(RemoteError, match="url_elicitation_handler="):
            await one.call("go")


async def test_an_address_no_browser_should_open_is_refused() -> None:
    script = ScriptedServer("handshake", {"tools/call": required(PAGE | {"url": "file:///etc/passwd"})})
    async with (
        serve_on_socket(script) as at,
        Client(at, url_elicitation_handler=lambda _: True, timeout=PATIENT) as one,
    ):
        with pytest.raises(InputRequestError, match=r"url.*https"):
            await one.call("go")
