"""Two failures at once (docs/decisions/shared-state.md has the table of single ones), with real workers and Redis."""

import asyncio
import time
from pathlib import Path

import pytest

from cluster.failure_row import read_messages, read_status
from cluster.failures import LOST_AFTER_S, FailingCluster, repeat_until, run_case
from cluster.raw_client import RawSession
from cluster.session_rows import WORKER_LOST, Answers, Streams

pytestmark = [pytest.mark.soak, pytest.mark.timeout(120)]


async def check_lost_reply(row: Streams, receiver_session: RawSession) -> None:
    """Check that a reader gets the stored events and then one error that names the loss."""
    response = await receiver_session.get(row.stored_id, row.cluster.receiver)
    assert response.status == 200
    *events, reply = await read_messages(response)
    assert [event["method"] for event in events] == ["notifications/progress"] * len(events)
    assert (reply["id"], reply["error"]["code"]) == (row.number, WORKER_LOST)


async def test_a_flush_and_a_killed_worker(tmp_path: Path) -> None:
    async with run_case("flushed", tmp_path) as cluster, cluster.open_session("streams") as session:
        streams, answers = Streams(cluster, session), Answers(cluster, session)
        await streams.prepare()
        await answers.prepare()
        await cluster.begin()
        cluster.asker_process.kill()

        async def is_deleted() -> bool:
            status = await read_status(await session.get(streams.stored_id, cluster.receiver))
            assert status in (400, 503)
            return status == 400

        async def is_accepted() -> bool:
            result = {"action": "accept", "content": {"value": "yes"}}
            status = await session.answer(answers.question, result, cluster.receiver)
            assert status in (202, 503)
            return status == 202

        assert await repeat_until(is_deleted, 6)
        assert await repeat_until(is_accepted, 7)


async def test_a_full_redis_and_a_killed_worker(tmp_path: Path) -> None:
    async with run_case("full", tmp_path) as cluster, cluster.open_session("streams") as session:
        streams = Streams(cluster, session)
        await streams.prepare()
        await cluster.begin()
        cluster.asker_process.kill()
        for _ in range(2):
            await check_lost_reply(streams, session)


async def test_no_redis_and_a_killed_worker(tmp_path: Path) -> None:
    async with run_case("away", tmp_path) as cluster, cluster.open_session("streams") as session:
        streams = Streams(cluster, session)
        await streams.prepare()
        await cluster.begin()
        cluster.asker_process.kill()
        assert await read_status(await session.get(streams.stored_id, cluster.receiver)) == 503
        await cluster.end()

        async def is_back() -> bool:
            return await read_status(await session.get(streams.finished_ids[1], cluster.receiver)) == 200

        assert await repeat_until(is_back, 5)
        begin = time.monotonic()
        await check_lost_reply(streams, session)
        assert time.monotonic() - begin < LOST_AFTER_S


async def start_asker(cluster: FailingCluster) -> int:
    """Start the asker, and return its exit code."""
    cluster.asker_process.start()
    process = cluster.asker_process.process
    assert process is not None
    return await asyncio.to_thread(process.wait, 30)


async def test_a_worker_does_not_start_without_redis(tmp_path: Path) -> None:
    async with run_case("away", tmp_path) as cluster:
        await cluster.begin()
        cluster.asker_process.kill()
        assert await start_asker(cluster) != 0
        assert cluster.proxies[0].url.removeprefix("redis://") in cluster.asker_process.log


async def test_a_worker_without_redis_stops_as_usual(tmp_path: Path) -> None:
    async with run_case("partitioned", tmp_path) as cluster, cluster.open_session() as session:
        answers = Answers(cluster, session)
        await answers.prepare()
        await cluster.begin()
        assert await asyncio.to_thread(cluster.asker_process.stop) == 0
        # The other worker accepts the answer, and drops it.
        result = {"action": "accept", "content": {"value": "yes"}}
        assert await session.answer(answers.question, result, cluster.receiver) == 202
        await cluster.end()
        assert (await session.call("echo", cluster.receiver, token="after")).startswith("after ")
