"""Test what only the Redis task store does: changes in other processes, a lost, full or empty Redis, and its keys."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import redis

from dovetail.cluster.envelope import hash_name
from dovetail.extensions import TaskOptions
from dovetail.tasks import redis_task_store
from dovetail.tasks.redis_task_store import RedisTaskStore
from dovetail.tasks.task_record import TaskRecord, TaskStoreUnavailable
from dovetail.tasks.task_rules import answer_requests, ask_client, claim_task, complete_task, report_progress
from dovetail.tasks.task_store import TaskConflict, TaskStoreFull, change_task
from dovetail.wire.base import replace
from dovetail.wire.input_required import InputRequest
from support.redis_servers import EACH_KIND, RedisServer
from support.task_records import SERVER, make_record
from tasks.conftest import KEY

NOW = 1_760_000_000.0
QUESTION = {"q": InputRequest(method="elicitation/create", params={"message": "Name?"})}
ACCEPT = {"q": {"action": "accept", "content": {"name": "Ada"}}}

Open = Callable[..., RedisTaskStore]


@pytest.fixture
def redis_server(tmp_path: Path) -> Generator[RedisServer]:
    """Yield a server that one test may stop, fill or empty."""
    with RedisServer(tmp_path) as server:
        yield server


@pytest.fixture
async def open_store(redis_server: RedisServer) -> AsyncIterator[Open]:
    stores: list[RedisTaskStore] = []

    def open_store(**options: Any) -> RedisTaskStore:
        stores.append(RedisTaskStore(redis_server.url, **({"timeout": 1.0} | options)))
        return stores[-1]

    yield open_store
    for store in stores:
        await store.close()


@pytest.fixture
def polls_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_task_store, "_POLL_INTERVAL_S", 3600.0)


def connect(server: RedisServer) -> Any:
    return redis.Redis(unix_socket_path=server.path)


async def take_until(changed_ids: AsyncIterator[str], store: RedisTaskStore, message: str) -> None:
    """Read changes until a task has a message. The watcher may report a task without a change."""
    async with asyncio.timeout(10):
        async for id in changed_ids:
            record = await store.get(id)
            if record is not None and record.status_message == message:
                return


async def report(store: RedisTaskStore, id: str, message: str) -> None:
    await change_task(store, id, lambda record: report_progress(record, NOW, message=message))


# Changes


@pytest.mark.usefixtures("polls_never")
async def test_a_watcher_hears_of_changes_in_another_process_at_once(open_store: Open) -> None:
    store, other, records = open_store(), open_store(), [make_record(), make_record()]
    for record in records:
        await store.create(record)
    with store.watch([record.id for record in records]) as changed_ids:
        for number in range(3):
            await report(other, records[number % 2].id, f"{number}")
            await take_until(changed_ids, store, f"{number}")
        await other.expire(time.time() + 1e7)
        async with asyncio.timeout(10):
            while any([await store.get(record.id) for record in records]):
                await anext(changed_ids)


@pytest.mark.usefixtures("polls_never")
async def test_no_change_is_missed_while_the_connection_is_lost(open_store: Open, redis_server: RedisServer) -> None:
    store, other, record = open_store(), open_store(), make_record()
    await store.create(record)
    with store.watch([record.id]) as changed_ids:
        await report(other, record.id, "first")
        await take_until(changed_ids, store, "first")
        redis_server.execute("CLIENT", "KILL", "TYPE", "pubsub")
        await report(other, record.id, "second")
        await take_until(changed_ids, store, "second")
        await report(other, record.id, "third")
        await take_until(changed_ids, store, "third")


async def test_the_poll_finds_changes_whose_message_was_lost(
    open_store: Open, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
) -> None:
    monkeypatch.setattr(redis_task_store, "_POLL_INTERVAL_S", 0.05)
    redis_server.execute("ACL", "SETUSER", "quiet", "on", "nopass", "~*", "resetchannels", "+@all")
    url = redis_server.url.replace("unix://", "unix://quiet:x@")
    store, other, record = RedisTaskStore(url), open_store(), make_record()
    await store.create(record)
    with store.watch([record.id]) as changed_ids:
        await anext(changed_ids)
        await report(other, record.id, "done")
        await take_until(changed_ids, store, "done")
    await store.close()


def test_each_event_loop_has_its_own_connections(redis_server: RedisServer) -> None:
    store, record, is_watching = RedisTaskStore(redis_server.url), make_record(), threading.Event()
    seen: list[str] = []

    async def create() -> None:
        await store.create(record)
        await store.close()

    async def watch() -> None:
        with store.watch([record.id]) as changed_ids:
            await anext(changed_ids)
            is_watching.set()
            await take_until(changed_ids, store, "x")
            seen.append(record.id)
        await store.close()

    async def change() -> None:
        await asyncio.to_thread(is_watching.wait, 10)
        await report(store, record.id, "x")
        await store.close()

    asyncio.run(create())
    thread = threading.Thread(target=asyncio.run, args=(watch(),))
    thread.start()
    asyncio.run(change())
    thread.join(20)
    assert seen == [record.id]


async def test_a_lease_that_is_renewed_during_a_claim_is_not_taken(
    open_store: Open, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, record = open_store(), make_record(now=NOW, max_retries=1)
    await store.create(record)
    await store.claim(record.id, "w", NOW, 30.0)

    async def renew() -> None:
        other = RedisTaskStore(redis_server.url)
        assert await other.renew({record.id: "w"}, NOW + 31, 30.0) == {record.id: False}
        await other.close()

    def renew_first(current: TaskRecord, *args: Any) -> TaskRecord | None:
        monkeypatch.undo()
        thread = threading.Thread(target=asyncio.run, args=(renew(),))
        thread.start()
        thread.join(10)
        return claim_task(current, *args)

    monkeypatch.setattr(redis_task_store, "claim_task", renew_first)
    assert await store.claim(record.id, "other", NOW + 31, 30.0) is None
    assert await store.renew({record.id: "w"}, NOW + 32, 30.0) == {record.id: False}


# Problems of Redis


async def test_an_unreachable_redis_makes_the_store_unavailable_until_it_returns(
    open_store: Open, redis_server: RedisServer
) -> None:
    store, record = open_store(), make_record()
    await store.create(record)
    redis_server.pause()
    with pytest.raises(TaskStoreUnavailable):
        await store.get(record.id)
    redis_server.resume()
    assert await store.get(record.id) == record
    redis_server.kill()
    with pytest.raises(TaskStoreUnavailable):
        await store.create(make_record())
    redis_server.start()
    await store.create(make_record())


async def test_a_full_redis_takes_no_new_tasks_but_stores_results(open_store: Open, redis_server: RedisServer) -> None:
    store, record = open_store(), make_record(now=NOW)
    await store.create(record)
    client = connect(redis_server)
    client.config_set("maxmemory", 1)
    with pytest.raises(TaskStoreFull):
        await store.create(make_record())
    claimed = await store.claim(record.id, "w", NOW, 30.0)
    assert claimed is not None
    assert await store.renew({record.id: "w"}, NOW + 10, 30.0) == {record.id: False}
    await change_task(store, record.id, lambda record: complete_task(record, {"text": "x" * 1000}, NOW))
    assert await store.expire(NOW + 1e6) == 1
    client.close()


async def test_after_a_flush_no_task_exists_and_nothing_brings_one_back(
    open_store: Open, redis_server: RedisServer
) -> None:
    store, running, waiting = open_store(), make_record(now=NOW), make_record(now=NOW)
    await store.create(running)
    await store.create(waiting)
    claimed = await store.claim(running.id, "w", NOW, 30.0)
    assert claimed is not None
    redis_server.execute("FLUSHALL")
    assert [await store.get(record.id) for record in (running, waiting)] == [None, None]
    assert await store.claim(waiting.id, "w", NOW, 30.0) is None
    assert await store.renew({running.id: "w"}, NOW, 30.0) == {}
    with pytest.raises(TaskConflict) as caught:
        await store.change(complete_task(claimed, {}, NOW))
    assert caught.value.current is None
    assert await store.list_due(SERVER, NOW + 1e6, 10) == []
    assert connect(redis_server).keys() == []


@pytest.mark.parametrize("kind", EACH_KIND)
async def test_a_killed_redis_with_appendfsync_always_has_every_task_that_was_reported(
    tmp_path: Path, kind: str
) -> None:
    with RedisServer(tmp_path, kind, "--appendonly", "yes", "--appendfsync", "always") as server:
        store, reported, completed = RedisTaskStore(server.url, timeout=1.0), list[str](), list[str]()
        has_completed = asyncio.Event()

        async def work() -> None:
            while True:
                record = make_record(arguments={"text": "x" * 500})
                await store.create(record)
                reported.append(record.id)
                await store.claim(record.id, "w", time.time(), 600.0)
                await change_task(store, record.id, lambda record: complete_task(record, {"text": "y"}, time.time()))
                completed.append(record.id)
                if len(completed) >= 100:
                    has_completed.set()

        work_tasks = [asyncio.get_running_loop().create_task(work()) for _ in range(8)]
        async with asyncio.timeout(20):
            await has_completed.wait()
            await asyncio.to_thread(server.kill)
            await asyncio.wait(work_tasks)
        assert {type(task.exception()) for task in work_tasks} == {TaskStoreUnavailable}
        server.start()
        records = {id: await store.get(id) for id in reported}
        assert [id for id, record in records.items() if record is None] == []
        assert {record.status for id, record in records.items() if id in completed and record is not None} == {
            "completed"
        }
        await store.close()


# Keys, formats and encryption


async def live_a_life(store: RedisTaskStore, record: TaskRecord) -> None:
    await store.create(record)
    await store.claim(record.id, "w", time.time(), 30.0)
    await change_task(store, record.id, lambda record: ask_client(record, QUESTION, NOW)[0])
    await change_task(store, record.id, lambda record: answer_requests(record, ACCEPT, NOW))
    await change_task(store, record.id, lambda record: complete_task(record, {"text": "plain-result"}, NOW))


def read_all(server: RedisServer) -> bytes:
    client = connect(server)
    keys = client.keys()
    values = [client.hgetall(key) if client.type(key) == b"hash" else {} for key in keys]
    return b"\n".join([*keys, *(part for value in values for pair in value.items() for part in pair)])


async def test_encrypted_tasks_contain_no_plain_text(open_store: Open, redis_server: RedisServer) -> None:
    record = make_record(owner="ada@example.com", tool="plain-tool", arguments={"password": "plain-argument"})
    words = [b"plain-argument", b"password", b"plain-tool", b"ada@example.com", b"Name?", b"Ada", b"plain-result"]
    words.append(record.id.encode())
    await live_a_life(open_store(secret_keys=[KEY]), record)
    content = read_all(redis_server)
    assert [word for word in words if word in content] == []
    redis_server.execute("FLUSHALL")
    # The same words are found if the records are not encrypted.
    await live_a_life(open_store(), record)
    content = read_all(redis_server)
    assert [word for word in words if word not in content] == []


async def test_an_encrypted_record_is_valid_only_for_its_own_task(open_store: Open, redis_server: RedisServer) -> None:
    store, first, second = open_store(secret_keys=[KEY]), make_record(owner="ada"), make_record(owner="eve")
    await store.create(first)
    await store.create(second)
    client = connect(redis_server)
    first_key, second_key = (client.keys(f"*task:{hash_name(record.id)}")[0] for record in (first, second))
    client.hset(second_key, "record", client.hget(first_key, "record"))
    client.close()
    assert await store.get(first.id) == first
    with pytest.raises(TaskStoreUnavailable):
        await store.get(second.id)


async def test_every_key_has_an_end_after_that_of_its_tasks(open_store: Open, redis_server: RedisServer) -> None:
    store, client = open_store(), connect(redis_server)
    records = [make_record(owner="ada"), make_record(), make_record(status="completed", result={})]
    for record in records:
        await store.create(record)
    await store.claim(records[0].id, "w", time.time(), 30.0)
    await change_task(store, records[1].id, lambda record: complete_task(record, {}, time.time()))
    await store.expire(time.time())
    lifetimes = {key: client.ttl(key) for key in client.scan_iter()}
    assert min(lifetimes.values()) > 3600
    assert max(lifetimes.values()) <= 3600 + 7 * 86_400 + 3600
    # Keys that are shared with a task without an end have no end.
    await store.create(replace(make_record(owner="ada"), expires_at=None, retention=None))
    assert {client.ttl(key) for key in client.scan_iter() if b"task:" not in key} == {-1}
    client.close()


async def test_a_deleted_task_leaves_nothing_behind(open_store: Open, redis_server: RedisServer) -> None:
    store, client = open_store(), connect(redis_server)
    record = make_record(owner="ada", now=NOW)
    await live_a_life(store, record)
    await store.create(make_record(owner="ada", now=NOW))
    await store.expire(NOW + 1e8)
    assert {key.rpartition(b":")[2]: client.get(key) for key in client.scan_iter()} == {b"bytes": b"0", b"format": b"1"}
    client.close()


async def test_tasks_of_a_newer_format_are_refused_and_not_changed(open_store: Open, redis_server: RedisServer) -> None:
    store, record = open_store(), make_record(now=NOW)
    await store.create(record)
    client = connect(redis_server)
    (key,) = client.keys("*format")
    client.set(key, "99")
    before = read_all(redis_server)
    for attempt in (
        store.create(make_record()),
        store.change(record),
        store.claim(record.id, "w", NOW, 30.0),
        store.renew({record.id: "w"}, NOW, 30.0),
        store.list_due(SERVER, NOW, 10),
        store.expire(NOW + 1e9),
    ):
        with pytest.raises(TaskStoreUnavailable):
            await attempt
    assert read_all(redis_server) == before
    client.close()


async def test_two_prefixes_share_no_tasks(open_store: Open) -> None:
    store, other, record = open_store(), open_store(prefix="other"), make_record(now=NOW)
    await store.create(record)
    assert await other.get(record.id) is None
    assert await other.list_due(SERVER, NOW + 1, 10) == []


@pytest.mark.parametrize("url", ["http://127.0.0.1", "redis://127.0.0.1/x", "redis+sentinel://127.0.0.1"])
def test_an_invalid_url_is_refused_when_it_is_set(url: str) -> None:
    with pytest.raises(ValueError, match=r"Redis|Sentinel"):
        TaskOptions(store=url)


@pytest.mark.parametrize("prefix", ["", "a{b", "a}"])
def test_an_invalid_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        RedisTaskStore("redis://127.0.0.1", prefix=prefix)


def test_the_location_does_not_contain_the_password() -> None:
    assert RedisTaskStore("redis://user:secret@127.0.0.1:6379/2").location == "redis://127.0.0.1:6379"


def test_the_options_do_not_show_a_password() -> None:
    shown = repr(TaskOptions(store="redis://user:topsecret@127.0.0.1:6379/0", ttl=60.0))
    assert "topsecret" not in shown
    assert "127.0.0.1" in shown
    assert "ttl=60.0" in shown
    assert repr(TaskOptions()).startswith("TaskOptions(store=None")
