"""A server whose tasks run only in the processes of `dovetail worker`. Each tool writes its steps to a file.

The environment contains the URL of Redis, the path of the file with the steps, and the engine.
"""

import asyncio
import os

from dovetail import Context, Server
from dovetail.extensions import DocketEngine, TaskConfig, TaskOptions
from dovetail.tasks import docket_engine, task_worker, tasks_extension

URL = os.environ["TASKS_URL"]

# Lost workers must be found within the time of a test.
task_worker.DEFAULT_OPTIONS = task_worker.WorkerOptions(lease_seconds=0.8, due_interval=0.05, park_after=0.1)
docket_engine._REDELIVERY_S = 1.0  # pyright: ignore[reportPrivateUsage]
tasks_extension._HAND_OVER_TIMEOUT_S = 0.5  # pyright: ignore[reportPrivateUsage]

app = Server(
    "working",
    tasks=TaskOptions(
        store=URL,
        engine=DocketEngine(URL, "working") if os.environ["TASKS_ENGINE"] == "docket" else None,
        workers_only=True,
        poll_interval=0.02,
    ),
    secret_keys=["a secret key for the tests of tasks"],
)


def write_step(step: str, key: str, ctx: Context) -> None:
    line = f"{step} {key} {ctx.attempt} {os.getpid()}\n"
    with open(os.environ["TASKS_STEPS"], "ab", buffering=0) as steps:
        steps.write(line.encode())


async def work(key: str, seconds: float, ctx: Context) -> str:
    write_step("start", key, ctx)
    await asyncio.sleep(seconds)
    write_step("end", key, ctx)
    return key


@app.tool(task=True)
async def run_once(key: str, seconds: float, ctx: Context) -> str:
    """Work without retries."""
    return await work(key, seconds, ctx)


@app.tool(task=TaskConfig(max_retries=2))
async def retry(key: str, seconds: float, ctx: Context) -> str:
    """Work with two retries."""
    return await work(key, seconds if ctx.attempt == 1 else 0.0, ctx)


@app.tool(task=True)
async def ask(key: str, ctx: Context) -> str:
    """Ask a question."""
    write_step("start", key, ctx)
    return await ctx.elicit("Which one?", str)
