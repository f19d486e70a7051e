"""Run the tasks of a server in Celery workers, with Redis as the broker. Needs `celery[redis]` and a Redis server.

In this folder, run `celery --app celery_tasks:queue worker --pool threads` and `python celery_tasks.py`.
"""

import asyncio
import os
import threading
from concurrent.futures import Future
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
        self._running: set[Future[None]] = set()

    async def submit(self, id: str) -> None:
        """Send an ID to the Celery workers."""
        await asyncio.to_thread(run_task.apply_async, [id], retry=False)

    async def serve(self, run: RunTask | None, stop: StopSignal) -> None:
        """Let this process run tasks until it stops. Only Celery workers receive IDs."""
        if run:
            self._run, self._loop = run, asyncio.get_running_loop()
            self._is_serving.set()
        await stop.wait()
        await asyncio.gather(*map(asyncio.wrap_future, [*self._running]))

    def run_received(self, id: str) -> None:
        """Run a task in the event loop of this process, and wait for its end."""
        self._is_serving.wait()
        future = asyncio.run_coroutine_threadsafe(self._run(id), self._loop)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        future.result()


engine = CeleryEngine()
app = Server("primes", tasks=TaskOptions(store=os.environ.get("TASKS", "tasks.sqlite"), engine=engine))


@app.tool(task=True)
def count_primes(below: int, ctx: Context) -> int:
    """Count the primes below a number."""
    count = 0
    for number in range(2, below):
        if number % 1000 == 0:
            ctx.wait(ctx.progress(number, below, f"{count} primes"))
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
    worker_shutdown.connect(lambda **_: asyncio.run_coroutine_threadsafe(app.stop(), loop).result(), weak=False)


if __name__ == "__main__":
    app.run("http", port=int(os.environ.get("PORT", "8000")))
