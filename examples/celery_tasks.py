"""Run the tasks of a server in Celery workers, with Redis as the broker. Needs `celery[redis]` and a Redis server.

In this folder, run `celery --app celery_tasks:queue worker --pool threads` and `python celery_tasks.py`. Then call the
tool `count_primes` at http://127.0.0.1:8000/mcp with a client that supports tasks.
"""

import argparse
import asyncio
import os
import threading
from typing import Any

from celery import Celery
from celery.signals import worker_init, worker_shutdown

from dovetail import Context, Server
from dovetail.extensions import RunTask, StopSignal, TaskOptions

queue = Celery("celery_tasks", broker=os.environ.get("BROKER_URL", "redis://127.0.0.1:6379/0"))


class CeleryEngine:
    """Carries the IDs of tasks through Celery. Everything else about a task is in the task store."""

    def __init__(self) -> None:
        self._is_serving = threading.Event()

    async def submit(self, id: str) -> None:
        """Send an ID to the Celery workers."""
        await asyncio.to_thread(run_task.apply_async, [id], retry=False)

    async def serve(self, run: RunTask, stop: StopSignal) -> None:
        """Let this process run tasks until it stops. Only Celery workers receive IDs."""
        self._run, self._loop = run, asyncio.get_running_loop()
        self._is_serving.set()
        await stop.wait()

    def run_received(self, id: str) -> None:
        """Run a task in the event loop of this process, and wait until the task has ended or waits for an answer."""
        self._is_serving.wait()
        asyncio.run_coroutine_threadsafe(self._run(id), self._loop).result()


engine = CeleryEngine()
# The server and the workers share the file, so they run on one machine.
app = Server("primes", tasks=TaskOptions(store=os.environ.get("TASKS", "tasks.sqlite"), engine=engine))


@app.tool(task=True)
async def count_primes(below: int, ctx: Context) -> int:
    """Count the primes below a number."""
    count = 0
    for number in range(2, below):
        if number % 1000 == 0:
            await ctx.progress(number, below, f"{count} primes")
        count += all(number % divisor for divisor in range(2, int(number**0.5) + 1))
    return count


@queue.task(name="run_task", ignore_result=True)
def run_task(id: str) -> None:
    """Run a task in a Celery worker."""
    engine.run_received(id)


@worker_init.connect
def start(**_: Any) -> None:
    """Start the server without a transport, in a thread of the Celery worker."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    asyncio.run_coroutine_threadsafe(app.start(), loop).result()
    stop = lambda **_: asyncio.run_coroutine_threadsafe(app.stop(), loop).result()  # noqa: E731
    worker_shutdown.connect(stop, weak=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    app.run("http", port=parser.parse_args().port)
