"""The failure table (docs/decisions/shared-state.md): each row in each case, with two workers and a real Redis.

One run of a case serves all rows. Each row prepares its calls, checks what callers see during the failure, and checks
that everything works afterwards. `make test` runs two rows for each case, `make soak` runs all.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from cluster import guarded_rows, service_rows, session_rows
from cluster.failure_row import LOSSES, Row
from cluster.failures import EQUAL_CASES, FailingCluster, check_recovery, run_case

pytestmark = pytest.mark.timeout(300)

CASES = ("away", "slow", "full", *LOSSES, "killed", "paused", "partitioned")

# Rows are prepared in this order. The calls of the last ones run for a few seconds.
ROWS: dict[str, type[Row]] = {
    "rate limits": guarded_rows.RateLimits,
    "running calls": guarded_rows.RunningCalls,
    "proofs": guarded_rows.Proofs,
    "caches": guarded_rows.Caches,
    "consent": service_rows.Consent,
    "parked calls": service_rows.ParkedCalls,
    "logins": service_rows.Logins,
    "sessions": session_rows.Sessions,
    "answers": session_rows.Answers,
    "notices": session_rows.Notices,
    "session notices": session_rows.SessionNotices,
    "cancellation": session_rows.Cancellation,
    "listeners": session_rows.Listeners,
    "sse 2024": session_rows.SSE2024,
    "streams": session_rows.Streams,
    "readers": session_rows.Readers,
    "tasks": service_rows.Tasks,
}

# The rows of each case that run in `make test`.
ROWS_IN_CI = {
    "away": ["logins", "streams"],
    "slow": ["running calls", "answers"],
    "full": ["proofs", "sessions"],
    "flushed": ["consent", "notices"],
    "failed over": ["sessions", "tasks"],
    "restored": ["caches", "answers"],
    "killed": ["parked calls", "streams"],
    "paused": ["answers", "session notices"],
    "partitioned": ["rate limits", "cancellation"],
}
# How long a failure lasts in `make soak`. A worker is lost after 5 seconds.
DURATIONS_S = {"away": 3.0, "full": 3.0, "paused": 7.0, "partitioned": 7.0}

Outcomes = dict[str, BaseException | None]


@contextlib.asynccontextmanager
async def open_rows(cluster: FailingCluster, names: list[str]) -> AsyncGenerator[dict[str, Row]]:
    async with contextlib.AsyncExitStack() as stack:
        rows: dict[str, Row] = {}
        for name in names:
            session = await stack.enter_async_context(cluster.open_session(name))
            rows[name] = ROWS[name](cluster, session)
        yield rows


async def run_rows(case: str, names: list[str], folder: Path, *, with_recovery: bool) -> Outcomes:
    """Run a case for some rows. Return the error of each row, and that of the recovery."""
    outcomes: Outcomes = dict.fromkeys([*names, "recovery"])

    async def run(name: str, step: Any) -> None:
        if outcomes[name] is None:
            try:
                async with asyncio.timeout(60):
                    await step()
            except Exception as exc:
                outcomes[name] = exc

    features = sorted({feature for name in names for feature in ROWS[name].features})
    async with run_case(case, folder, features) as cluster, open_rows(cluster, names) as rows:
        for name, row in rows.items():
            await run(name, row.prepare)
        begin = time.monotonic()
        await cluster.begin()
        async with asyncio.TaskGroup() as group:
            for name, row in rows.items():
                group.create_task(run(name, row.check_during))
        if with_recovery:
            await asyncio.sleep(max(0.0, begin + DURATIONS_S.get(case, 0.0) - time.monotonic()))
        await cluster.end()
        await cluster.wait_for_recovery()
        if with_recovery:
            await run("recovery", lambda: check_recovery(cluster))
        async with asyncio.TaskGroup() as group:
            for name, row in rows.items():
                group.create_task(run(name, row.check_after))
        if case != "killed" and (errors := cluster.pool.read_errors()):
            outcomes["recovery"] = outcomes["recovery"] or AssertionError("\n".join(errors))
    return outcomes


def raise_error(outcomes: Outcomes, name: str) -> None:
    if (error := outcomes[name]) is not None:
        raise error


async def test_two_rows_of_each_case(tmp_path: Path) -> None:
    """All cases run at the same time, because they wait most of the time."""

    async def run(case: str) -> Outcomes:
        folder = tmp_path / case.replace(" ", "-")
        folder.mkdir()
        return await run_rows(case, ROWS_IN_CI[case], folder, with_recovery=case == "away")

    for case, outcomes in zip(CASES, await asyncio.gather(*map(run, CASES)), strict=True):
        for name, error in outcomes.items():
            if error is not None:
                raise AssertionError(f"{case}, {name}") from error


@pytest.mark.soak
async def test_a_cut_between_two_primaries_never_lets_a_proof_be_used_twice(tmp_path: Path) -> None:
    async with run_case("failed over", tmp_path, ["guarded"]) as cluster, open_rows(cluster, ["proofs"]) as rows:
        row = rows["proofs"]
        assert isinstance(row, guarded_rows.Proofs)
        await row.prepare()
        assert cluster.redis.execute("CONFIG", "SET", "min-replicas-to-write", "1") == b"+OK"
        cluster.move_to_replica(1)  # The asker still reaches the former primary.
        await row.check_split()
        cluster.move_to_replica(0)
        cluster.redis.kill()
        await cluster.end()
        await cluster.wait_for_recovery()
        await row.check_after()


_outcomes_by_case: dict[str, Outcomes] = {}


@pytest.mark.soak
@pytest.mark.parametrize("row", [*ROWS, "recovery"])
@pytest.mark.parametrize("case", [*CASES, *EQUAL_CASES])
async def test_every_cell(case: str, row: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    if case not in _outcomes_by_case:
        folder = tmp_path_factory.mktemp("case")
        _outcomes_by_case[case] = await run_rows(case, list(ROWS), folder, with_recovery=True)
    raise_error(_outcomes_by_case[case], row)
