"""Test how the client sends requests: deadlines, retries and results."""

import asyncio
from typing import Any

import msgspec
import pytest

from dovetail import ClientLimits, RemoteError, Timeouts
from dovetail.client.handlers import InputHandlers
from dovetail.client.pagination import TOOLS
from dovetail.client.reconnect import SendOptions
from dovetail.client.request_sender import CALL_TOOL, RequestOptions, RequestSender
from dovetail.errors import InvalidResult, RequestTimeout
from dovetail.wire.methods import METHODS

TIMES = Timeouts(call=60, request=30, total=600)
READ = METHODS["resources/read"]
FOUND = {"contents": [{"uri": "a", "text": "x"}], "ttlMs": 60_000}


class Keeping:
    """Stands in for the keeper: notes what is sent, and answers what it is told to."""

    current = None
    opened = 1

    def __init__(self, *answers: Any) -> None:
        self.sent: list[tuple[str, Any, SendOptions]] = []
        self._answers = [*answers]

    async def request(self, method: str, params: Any, sending: SendOptions, headers: Any = ()) -> Any:
        self.sent.append((method, params, sending))
        await asyncio.sleep(0)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return msgspec.json.encode(answer)


def requesting(keeping: Keeping, *, cache: bool = True, **limits: Any) -> RequestSender:
    keeper: Any = keeping
    return RequestSender(
        "it", keeper, InputHandlers(), TIMES, ClientLimits(**limits), cache=cache, validate_results=True
    )


DONE = {"content": [], "resultType": "complete"}


@pytest.mark.parametrize(
    ("options", "idle", "total", "safe"),
    [
        (RequestOptions(), 60, 600, False),
        (RequestOptions(timeout=5), 5, 600, False),
        (RequestOptions(timeout=3600), 3600, 3600, False),  # a longer patience is not cut short by the usual total
        (RequestOptions(timeout=5, total_timeout=7), 5, 7, False),
        (RequestOptions(retry=True), 60, 600, True),
    ],
)
async def test_how_a_call_is_sent(options: RequestOptions, idle: float, total: float, safe: bool) -> None:
    keeping = Keeping(DONE)
    await requesting(keeping).send_until_complete(CALL_TOOL, {"name": "go", "arguments": {}}, options)
    ((_, _, sending),) = keeping.sent
    assert (sending.idle_timeout, sending.total_timeout, sending.can_repeat) == (idle, total, safe)


@pytest.mark.parametrize(("timeout", "idle", "total"), [(None, 60, 600), (5, 5, 600), (3600, 3600, 3600)])
async def test_an_unknown_request_has_the_limits_of_a_call(timeout: float | None, idle: float, total: float) -> None:
    keeping = Keeping(DONE)
    await requesting(keeping).send_raw("x/y", {}, timeout)
    ((_, _, sending),) = keeping.sent
    assert (sending.idle_timeout, sending.total_timeout) == (idle, total)


async def test_what_only_reads_has_another_limit_and_may_be_repeated() -> None:
    keeping = Keeping(FOUND)
    one = requesting(keeping)
    await one.send(READ, {"uri": "a"})
    await one.send(READ, {"uri": "a"}, RequestOptions(retry=False))
    assert [(sending.idle_timeout, sending.can_repeat) for _, _, sending in keeping.sent] == [(30, True), (30, False)]


async def test_a_tool_that_was_listed_as_harmless_may_be_repeated() -> None:
    listed = {"name": "peek", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
    keeping = Keeping({"tools": [listed]}, DONE)
    one = requesting(keeping)
    await one.list_all(TOOLS)
    await one.send_until_complete(CALL_TOOL, {"name": "peek", "arguments": {}})
    assert keeping.sent[-1][2].can_repeat


async def test_a_fresh_result_is_not_asked_for_again_nor_by_many_at_once() -> None:
    keeping = Keeping(FOUND)
    one = requesting(keeping)
    await asyncio.gather(*(one.send_cached(READ, {"uri": "a"}) for _ in range(5)))
    await one.send_cached(READ, {"uri": "a"})
    assert len(keeping.sent) == 1
    one.invalidate("notifications/resources/updated")
    await one.send_cached(READ, {"uri": "a"})
    assert len(keeping.sent) == 2
    one.mark_stale()
    await one.send_cached(READ, {"uri": "a"})
    assert len(keeping.sent) == 3


@pytest.mark.parametrize("how", ["off", "options"])
async def test_who_wants_it_new_gets_it_new(how: str) -> None:
    keeping = Keeping(FOUND)
    one = requesting(keeping, cache=how != "off")
    options = {} if how == "off" else {"options": RequestOptions(timeout=5)}
    for _ in range(2):
        await one.send_cached(READ, {"uri": "a"}, **options)
    assert len(keeping.sent) == 2


async def test_a_server_without_the_feature_has_empty_lists_and_other_refusals_are_raised() -> None:
    assert await requesting(Keeping(RemoteError(-32601, "unknown"))).list_all(TOOLS) == []
    with pytest.raises(RemoteError):
        await requesting(Keeping(RemoteError(-32603, "broken"))).list_all(TOOLS)


async def test_a_result_that_is_none_says_where() -> None:
    with pytest.raises(InvalidResult) as caught:
        await requesting(Keeping({"contents": 5})).send(READ, {"uri": "a"})
    assert caught.value.server == "it"
    assert "resources/read" in str(caught.value)


async def test_a_server_that_only_wants_to_be_asked_later_is_asked_again_with_its_state() -> None:
    keeping = Keeping({"resultType": "input_required", "requestState": "s"}, DONE)
    await requesting(keeping, reconnect_delay=0.0).send_until_complete(CALL_TOOL, {"name": "go", "arguments": {}})
    first, second = (params for _, params, _ in keeping.sent)
    assert "requestState" not in first
    assert second == first | {"requestState": "s"}


ASKS_LATER = {"resultType": "input_required", "requestState": "s"}


async def test_one_total_is_over_all_rounds() -> None:
    keeping = Keeping(ASKS_LATER)
    one = requesting(keeping, reconnect_delay=0.02, max_input_rounds=1000)
    async with asyncio.timeout(10):
        with pytest.raises(RequestTimeout, match=r"total.*0\.2 s"):
            await one.send_until_complete(CALL_TOOL, {"name": "go", "arguments": {}}, RequestOptions(total_timeout=0.2))
    totals = [sending.total_timeout for _, _, sending in keeping.sent]
    assert totals[0] == 0.2
    assert totals == sorted(totals, reverse=True)
    assert len(set(totals)) == len(totals) > 1
    assert all(sending.idle_timeout == 60 for _, _, sending in keeping.sent)


async def test_the_time_a_user_takes_is_in_no_total() -> None:
    async def elicit(_: Any) -> dict[str, Any]:
        await asyncio.sleep(0.3)
        return {}

    question = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {"type": "object"}}}
    keeping: Any = Keeping({"resultType": "input_required", "inputRequests": {"q": question}}, DONE)
    one = RequestSender(
        "it",
        keeping,
        InputHandlers(elicitation_handler=elicit),
        TIMES,
        ClientLimits(),
        cache=False,
        validate_results=True,
    )
    await one.send_until_complete(CALL_TOOL, {"name": "go", "arguments": {}}, RequestOptions(total_timeout=0.25))
    assert len(keeping.sent) == 2
    assert 0 < keeping.sent[1][2].total_timeout < 0.25
