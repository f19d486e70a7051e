"""Test the rules that every task store follows: versions, leases, limits, expiry, watchers and encryption."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dovetail.tasks.task_record import (
    TaskCaller,
    TaskLease,
    TaskRecord,
    TaskStoreUnavailable,
    encode_record,
)
from dovetail.tasks.task_rules import (
    answer_requests,
    ask_client,
    complete_task,
    is_expired,
    report_progress,
    request_cancel,
)
from dovetail.tasks.task_store import TaskConflict, TaskLimits, TaskStore, TaskStoreFull, change_task
from dovetail.wire.base import replace
from dovetail.wire.codec import decode
from dovetail.wire.input_required import InputRequest
from support.task_records import SERVER, make_record
from tasks.conftest import KEY, OpenStore

NOW = 1_760_000_000.0
DAY_S = 86_400.0
QUESTION = {"q": InputRequest(method="elicitation/create", params={"message": "Name?"})}
ACCEPT = {"q": {"action": "accept", "content": {"name": "Ada"}}}


async def test_a_record_is_returned_as_it_was_stored(store: TaskStore) -> None:
    record = make_record(owner="ada", arguments={"a": [1, None]}, max_retries=2)
    await store.create(record)
    assert await store.get(record.id) == record
    assert await store.get("unknown") is None


class NewerLease(TaskLease, kw_only=True, frozen=True):
    """A lease of a newer release."""

    region: str


class NewerCaller(TaskCaller, kw_only=True, frozen=True):
    """A caller of a newer release."""

    tenant: str


class NewerRecord(TaskRecord, kw_only=True, frozen=True):
    """A record of a newer release."""

    priority: int


NEWER_MEMBERS = {
    "caller": NewerCaller(protocol_version="x", tenant="acme"),
    "lease": NewerLease(holder="w", expires_at=NOW + 30, region="eu"),
    "priority": 3,
}


@pytest.mark.parametrize("change", ["change", "claim"])
async def test_a_change_keeps_what_a_newer_release_has_added(store: Any, change: str) -> None:
    known = make_record(now=NOW, max_retries=1)
    names = [name for name in TaskRecord.__struct_fields__ if name not in NEWER_MEMBERS]
    newer = NewerRecord(**{name: getattr(known, name) for name in names}, **NEWER_MEMBERS)
    await store.create(newer)
    if change == "change":
        record = await store.get(newer.id)
        assert record.lease == TaskLease(holder="w", expires_at=NOW + 30)
        record = await store.change(replace(record, status_message="half"))
        await store.change(replace(record, status_message="done"))
    else:
        assert await store.claim(newer.id, "other", NOW + 40, 30) is not None
    # The record that the newer release reads.
    stored = decode(encode_record(await store.get(newer.id)))["record"]
    assert stored["priority"] == 3
    assert stored["caller"] == {"protocol_version": "x", "tenant": "acme"}
    assert stored["lease"]["region"] == "eu"
    assert stored["lease"]["holder"] == ("w" if change == "change" else "other")
    assert stored.get("status_message") == ("done" if change == "change" else None)


async def test_another_store_sees_a_record_at_once(open_store: OpenStore) -> None:
    first, second, record = open_store(), open_store(), make_record()
    await first.create(record)
    assert await second.get(record.id) == record
    changed = await second.change(replace(record, status_message="x"))
    assert (changed.version, await first.get(record.id)) == (2, changed)


async def test_an_id_is_used_only_once(store: TaskStore) -> None:
    record = make_record()
    await store.create(record)
    with pytest.raises(TaskConflict) as caught:
        await store.create(replace(record, tool="other"))
    assert caught.value.current == record


async def test_only_the_newest_version_can_be_changed(store: TaskStore) -> None:
    record = make_record()
    await store.create(record)
    changed = await store.change(replace(record, status_message="first"))
    with pytest.raises(TaskConflict) as caught:
        await store.change(replace(record, status_message="second"))
    assert caught.value.current == changed == await store.get(record.id)
    with pytest.raises(TaskConflict) as caught:
        await store.change(make_record())
    assert caught.value.current is None


async def test_concurrent_changes_are_all_kept(open_store: OpenStore) -> None:
    stores, record = [open_store(), open_store()], make_record(once_values={})
    await stores[0].create(record)

    def add(name: str) -> Callable[[TaskRecord], TaskRecord]:
        return lambda record: replace(record, once_values=record.once_values | {name: 1})

    await asyncio.gather(*(change_task(stores[n % 2], record.id, add(str(n))) for n in range(20)))
    stored = await stores[0].get(record.id)
    assert stored is not None
    assert (len(stored.once_values), stored.version) == (20, 21)


async def test_changes_at_the_same_time_fail_and_succeed_on_their_own(store: TaskStore) -> None:
    records = [make_record() for _ in range(250)]
    creations = [store.create(record) for record in (*records, *records)]
    outcomes = await asyncio.gather(*creations, store.change(make_record()), return_exceptions=True)
    assert outcomes[:250] == [None] * 250
    assert {type(outcome) for outcome in outcomes[250:]} == {TaskConflict}
    assert [await store.get(record.id) for record in records] == records


async def test_a_cancelled_request_does_not_stop_the_others(store: TaskStore) -> None:
    records = [make_record() for _ in range(20)]
    async with asyncio.TaskGroup() as tasks:
        creations = [tasks.create_task(store.create(record)) for record in records]
        await asyncio.sleep(0)
        creations[7].cancel()
    stored = [await store.get(record.id) for record in records]
    assert [*stored[:7], *stored[8:]] == [*records[:7], *records[8:]]


async def test_the_number_of_tasks_is_limited(store: TaskStore) -> None:
    limits = TaskLimits(max_tasks=5, max_tasks_per_owner=2)
    for owner in ("ada", "ada", None, None, None):
        await store.create(make_record(owner=owner), limits)
    with pytest.raises(TaskStoreFull):
        await store.create(make_record(owner="ada"), limits)
    with pytest.raises(TaskStoreFull):
        await store.create(make_record(), limits)
    await store.create(make_record(owner="eve"), TaskLimits(max_tasks=6))


async def test_the_size_of_all_tasks_is_limited(store: TaskStore) -> None:
    limits = TaskLimits(max_bytes=100_000)
    large = {"text": "x" * 30_000}
    for _ in range(3):
        await store.create(make_record(now=NOW, arguments=large, status="completed", result={}), limits)
    with pytest.raises(TaskStoreFull):
        await store.create(make_record(now=NOW, arguments=large), limits)
    await store.create(make_record(now=NOW), limits)
    await store.expire(NOW + 4000)
    await store.create(make_record(now=NOW, arguments=large), limits)


async def test_tasks_that_have_ended_do_not_count_for_their_owner(store: TaskStore) -> None:
    limits = TaskLimits(max_tasks_per_owner=1)
    for _ in range(3):
        await store.create(record := make_record(owner="ada"), limits)
        await store.change(complete_task(record, {}, NOW))
    await store.create(make_record(owner="ada"), limits)
    with pytest.raises(TaskStoreFull):
        await store.create(make_record(owner="ada"), limits)


async def test_only_one_worker_gets_a_task(open_store: OpenStore) -> None:
    stores, record = [open_store(), open_store()], make_record(now=NOW)
    await stores[0].create(record)
    claims = await asyncio.gather(*(stores[n % 2].claim(record.id, f"w{n}", NOW, 30.0) for n in range(8)))
    (claimed,) = [claim for claim in claims if claim is not None]
    assert (claimed.attempt, claimed.version) == (1, 2)
    assert await stores[1].get(record.id) == claimed
    assert await stores[0].claim("unknown", "w", NOW, 30.0) is None


async def test_due_tasks_are_those_without_a_valid_lease(store: TaskStore) -> None:
    first, second, other = make_record(now=NOW), make_record(now=NOW + 1), make_record(now=NOW, server="other")
    for record in (second, first, other):
        await store.create(record)
    assert await store.list_due(SERVER, NOW + 2, 10) == [first.id, second.id]
    assert await store.list_due(SERVER, NOW + 2, 1) == [first.id]
    await store.claim(first.id, "w", NOW + 2, 30.0)
    assert await store.list_due(SERVER, NOW + 2, 10) == [second.id]
    assert await store.list_due(SERVER, NOW + 32, 10) == [second.id, first.id]
    await change_task(store, second.id, lambda record: complete_task(record, {}, NOW + 3))
    assert await store.list_due(SERVER, NOW + 1000, 10) == [first.id]


async def test_a_renewed_lease_is_valid_longer_and_keeps_the_version(store: TaskStore) -> None:
    record = make_record(now=NOW)
    await store.create(record)
    claimed = await store.claim(record.id, "w", NOW, 30.0)
    assert claimed is not None
    assert await store.renew({record.id: "w", "unknown": "w"}, NOW + 20, 30.0) == {record.id: False}
    assert await store.list_due(SERVER, NOW + 40, 10) == []
    renewed = await store.get(record.id)
    assert renewed is not None
    assert renewed.lease is not None
    assert (renewed.version, renewed.lease.expires_at) == (claimed.version, NOW + 50)
    # A change with the older lease does not shorten the lease.
    changed = await store.change(replace(claimed, status_message="x"))
    assert changed.lease == renewed.lease
    assert await store.list_due(SERVER, NOW + 40, 10) == []
    assert await store.list_due(SERVER, NOW + 50, 10) == [record.id]


async def test_a_renewal_reports_lost_leases_and_cancelled_tasks(store: TaskStore) -> None:
    lost, cancelled = make_record(now=NOW, max_retries=1), make_record(now=NOW)
    for record in (lost, cancelled):
        await store.create(record)
        await store.claim(record.id, "w", NOW, 30.0)
    assert await store.claim(lost.id, "other", NOW + 31, 30.0) is not None
    await change_task(store, cancelled.id, lambda record: request_cancel(record, NOW))
    assert await store.renew({lost.id: "w", cancelled.id: "w"}, NOW + 32, 30.0) == {cancelled.id: True}
    assert await store.renew({}, NOW, 30.0) == {}


async def test_a_claim_of_a_lost_task_without_retries_fails_it(store: TaskStore) -> None:
    record = make_record(now=NOW)
    await store.create(record)
    await store.claim(record.id, "w", NOW, 30.0)
    assert await store.claim(record.id, "other", NOW + 31, 30.0) is None
    stored = await store.get(record.id)
    assert stored is not None
    assert (stored.status, stored.lease) == ("failed", None)
    assert await store.list_due(SERVER, NOW + 1000, 10) == []


async def test_a_task_that_waits_for_an_answer_is_due_after_the_answer(store: TaskStore) -> None:
    record = make_record(now=NOW)
    await store.create(record)
    await store.claim(record.id, "w", NOW, 30.0)
    await change_task(store, record.id, lambda record: ask_client(record, QUESTION, NOW)[0])
    await store.renew({record.id: "w"}, NOW + 1, 30.0)
    assert await store.list_due(SERVER, NOW + 1000, 10) == []
    await change_task(store, record.id, lambda record: answer_requests(record, ACCEPT, NOW + 1000))
    assert await store.list_due(SERVER, NOW + 1000, 10) == [record.id]


async def test_expired_tasks_are_deleted_in_batches(store: TaskStore) -> None:
    records = [make_record(now=NOW, status="completed", result={}) for _ in range(450)]
    kept = [make_record(now=NOW, expires_at=NOW + 5000), make_record(now=NOW, expires_at=None, retention=None)]
    await asyncio.gather(*(store.create(record) for record in (*records, *kept)))
    assert await store.expire(NOW + 3599) == 0
    assert await store.expire(NOW + 3600) == 450
    assert [await store.get(record.id) for record in kept] == kept
    assert await store.get(records[0].id) is None


@pytest.mark.parametrize("status", ["working", "input_required"])
async def test_a_task_that_has_not_ended_is_kept_for_days(store: TaskStore, status: Any) -> None:
    record = make_record(now=NOW, status=status)
    await store.create(record)
    assert await store.expire(NOW + 3600 + 6 * DAY_S) == 0
    assert not is_expired(record, NOW + 3600 + 6 * DAY_S)
    assert await store.expire(NOW + 3600 + 7 * DAY_S) == 1
    assert is_expired(record, NOW + 3600 + 7 * DAY_S)


async def test_a_running_task_does_not_expire(store: TaskStore) -> None:
    record = make_record(now=NOW, retention=100.0, expires_at=NOW + 100)
    await store.create(record)
    await store.claim(record.id, "w", NOW, 30.0)
    await store.renew({record.id: "w"}, NOW + 40, 30.0)
    stored = await store.get(record.id)
    assert stored is not None
    assert stored.expires_at == NOW + 100
    await store.renew({record.id: "w"}, NOW + 80, 30.0)
    stored = await store.get(record.id)
    assert stored is not None
    assert stored.expires_at == NOW + 180
    await store.renew({record.id: "w"}, NOW + 90, 8 * DAY_S)
    assert await store.expire(NOW + 180 + 7 * DAY_S) == 0
    assert await store.expire(NOW + 90 + 8 * DAY_S) == 1


async def take(changed_ids: AsyncIterator[str], expected: str) -> None:
    async with asyncio.timeout(10):
        assert await anext(changed_ids) == expected


async def test_a_watcher_sees_each_change_of_this_process(store: TaskStore) -> None:
    record = make_record()
    await store.create(record)
    with store.watch([record.id]) as changed_ids:
        await take(changed_ids, record.id)
        for number in range(3):
            await change_task(store, record.id, lambda record, n=number: report_progress(record, NOW, message=str(n)))
            await take(changed_ids, record.id)
        await store.expire(time.time() + 1e6)
        await take(changed_ids, record.id)
        assert await store.get(record.id) is None


async def test_watchers_do_not_see_other_tasks(open_store: OpenStore) -> None:
    store, first, second = open_store(), make_record(), make_record()
    await store.create(first)
    await store.create(second)
    with store.watch([first.id]) as one, store.watch([second.id]) as two:
        await take(one, first.id)
        await take(two, second.id)
        await change_task(store, second.id, lambda record: report_progress(record, NOW, message="x"))
        await take(two, second.id)


async def test_keys_can_be_rotated(open_store: OpenStore) -> None:
    old, new = make_record(), make_record()
    await open_store(secret_keys=[KEY]).create(old)
    store = open_store(secret_keys=["another secret key", KEY])
    await store.create(new)
    assert [await store.get(record.id) for record in (old, new)] == [old, new]


async def test_a_store_with_keys_refuses_records_that_are_not_encrypted(open_store: OpenStore) -> None:
    forged = make_record(now=NOW, owner="ada")
    await open_store().create(forged)
    store = open_store(secret_keys=[KEY])
    with pytest.raises(TaskStoreUnavailable):
        await store.get(forged.id)
    assert await store.claim(forged.id, "w", NOW + 1, 30.0) is None


@pytest.mark.parametrize("options", [{}, {"secret_keys": ["another secret key"]}])
async def test_a_record_with_an_unknown_key_cannot_be_read_and_does_not_block_others(
    open_store: OpenStore, options: Any
) -> None:
    record, other = make_record(now=NOW), make_record(now=NOW + 1)
    await open_store(secret_keys=[KEY]).create(record)
    store = open_store(**options)
    await store.create(other)
    with pytest.raises(TaskStoreUnavailable):
        await store.get(record.id)
    for id in await store.list_due(SERVER, NOW + 2, 1):
        assert await store.claim(id, "w", NOW + 2, 30.0) is None
    assert await store.list_due(SERVER, NOW + 10, 10) == [other.id]
    # A worker with the key can still run the task.
    assert await open_store(secret_keys=[KEY]).claim(record.id, "w", NOW + 100, 30.0) is not None


async def test_a_closed_store_opens_again(open_store: OpenStore) -> None:
    store, record = open_store(), make_record()
    await store.create(record)
    await store.close()
    await store.close()
    assert await store.get(record.id) == record


async def test_tasks_are_listed_by_time_status_and_prefix(store: Any) -> None:
    for number, id in enumerate(("ab1", "ab2", "b1")):
        await store.create(make_record(id=id, now=NOW + number))
    await change_task(store, "ab2", lambda record: complete_task(record, {}, NOW))
    assert await store.list_ids() == ["b1", "ab2", "ab1"]
    assert await store.list_ids(limit=1) == ["b1"]
    assert await store.list_ids(prefix="ab") == ["ab2", "ab1"]
    assert await store.list_ids(prefix="ab", statuses=["working", "failed"]) == ["ab1"]
    assert await store.list_ids(statuses=["completed"]) == ["ab2"]
    assert await store.list_ids(prefix="c") == []


async def test_a_task_is_due_for_a_worker_whose_clock_is_behind(store: TaskStore) -> None:
    record = make_record(now=NOW)
    await store.create(record)
    claimed = await store.claim(record.id, "w", NOW - 100, 30.0)
    assert claimed is not None
    assert await store.claim(record.id, "v", NOW - 90, 30.0) is None
