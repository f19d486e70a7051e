"""Check that every answer, event and notice of many clients is explained by one sequential server."""

from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from cluster.history import History, find_violations
from cluster.load import count_operations, open_clients, run_load
from cluster.server_pool import run_servers
from support.redis_servers import RedisServer

pytestmark = pytest.mark.timeout(900)


async def check_history(folder: Path, operation_count: int, *, workers: int = 4, **options: Any) -> History:
    history = History()
    with run_servers(folder, workers, **options) as pool:
        async with open_clients(pool.addresses, history, 16) as clients:
            await run_load(clients, lambda: sum(c.session.request_count for c in clients) >= operation_count)
            assert await count_operations(clients) >= operation_count
            assert sum(client.resume_count for client in clients) > operation_count // 100
        effects = pool.read_effects()
        assert find_violations(history, effects) == []
        assert history.count("answered") + history.count("cancelled") == len(history.operations)
        assert len(pool.read_processes()) == workers
        assert pool.read_errors() == []
    return history


async def test_one_process_explains_its_history(tmp_path: Path) -> None:
    history = await check_history(tmp_path, 500, workers=1)
    assert {operation.kind for operation in history.operations} >= {
        "echo",
        "climb",
        "ask",
        "sample",
        "narrate",
        "touch",
    }


@pytest.fixture
def redis_server(tmp_path: Path) -> Generator[RedisServer]:
    with RedisServer(tmp_path) as server:
        yield server


async def test_local_workers_explain_their_history(tmp_path: Path) -> None:
    await check_history(tmp_path, 5_000, cluster="local")


async def test_workers_with_redis_explain_their_history(tmp_path: Path, redis_server: RedisServer) -> None:
    await check_history(tmp_path, 5_000, cluster=redis_server.url)


@pytest.mark.soak
async def test_local_workers_explain_a_long_history(tmp_path: Path) -> None:
    await check_history(tmp_path, 100_000, cluster="local")


@pytest.mark.soak
async def test_workers_with_redis_explain_a_long_history(tmp_path: Path, redis_server: RedisServer) -> None:
    await check_history(tmp_path, 100_000, cluster=redis_server.url)


# The model itself: it finds each kind of error.


def create_history() -> tuple[History, Counter[tuple[str, str]]]:
    """Return a correct history of one client."""
    history = History()
    client = history.add_client("c")
    climb = history.begin(client, "climb", "a", steps=2)
    climb.messages = [create_progress("a", 1), create_progress("a", 2)]
    climb.event_ids = ["s-1", "s-2", "s-3"]
    history.end(climb, "answered", "a 1")
    level = history.begin(client, "set_level", "b", level="warning")
    history.end(level, "answered")
    narrate = history.begin(client, "narrate", "d")
    narrate.messages = [{"method": "notifications/message", "params": {"level": "warning", "data": "d warning"}}]
    history.end(narrate, "answered", "d 1")
    ask = history.begin(client, "ask", "e")
    ask.messages = [{"id": 1, "method": "elicitation/create", "params": {"message": "e"}}]
    history.end(ask, "answered", "e answer-e 1")
    subscribe = history.begin(client, "subscribe", "f", uri="item://1")
    history.end(subscribe, "answered")
    touch = history.begin(client, "touch", "g", uri="item://1")
    history.end(touch, "answered", "g 1")
    client.notices = [{"method": "notifications/resources/updated", "params": {"uri": "item://1"}}]
    return history, Counter(dict.fromkeys((("a", "climb"), ("d", "narrate"), ("e", "ask"), ("g", "touch")), 1))


def create_progress(token: str, step: int) -> Any:
    return {"method": "notifications/progress", "params": {"progressToken": token, "message": f"{token} {step}"}}


def test_a_correct_history_has_no_violations() -> None:
    assert find_violations(*create_history()) == []


def _lose_event(history: History) -> None:
    del history.operations[0].messages[0]


def _repeat_event(history: History) -> None:
    history.operations[0].messages.append(history.operations[0].messages[-1])


def _mix_up_calls(history: History) -> None:
    history.operations[0].messages[0] = create_progress("z", 1)


def _mix_up_progress_tokens(history: History) -> None:
    history.operations[0].messages[0]["params"]["progressToken"] = "z"


def _mix_up_results(history: History) -> None:
    history.operations[0].text = "z 1"


def _repeat_event_id(history: History) -> None:
    history.operations[0].event_ids.append("s-1")


def _ignore_level(history: History) -> None:
    message = {"method": "notifications/message", "params": {"level": "debug", "data": "d debug"}}
    history.operations[2].messages.insert(0, message)


def _mix_up_answers(history: History) -> None:
    history.operations[3].text = "e answer-z 1"


def _repeat_question(history: History) -> None:
    history.operations[3].messages *= 2


def _lose_notice(history: History) -> None:
    history.clients[0].notices.clear()


def _repeat_notice(history: History) -> None:
    history.clients[0].notices *= 2


def _send_foreign_notice(history: History) -> None:
    history.clients[0].notices[0]["params"]["uri"] = "item://2"


def _leave_call_open(history: History) -> None:
    history.operations[0].outcome = "open"


@pytest.mark.parametrize(
    "damage",
    [
        _lose_event, _repeat_event, _mix_up_calls, _mix_up_progress_tokens, _mix_up_results, _repeat_event_id,
        _ignore_level, _mix_up_answers, _repeat_question, _lose_notice, _repeat_notice, _send_foreign_notice,
        _leave_call_open,
    ],
)  # fmt: skip
def test_the_model_finds_each_error(damage: Any) -> None:
    history, effects = create_history()
    damage(history)
    assert find_violations(history, effects)


@pytest.mark.parametrize("count", [0, 2])
def test_the_model_finds_a_call_that_ran_twice_or_never(count: int) -> None:
    history, effects = create_history()
    effects["a", "climb"] = count
    assert find_violations(history, effects)
