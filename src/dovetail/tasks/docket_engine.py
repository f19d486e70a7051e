"""A task engine on Docket, a task queue for Redis and Valkey. Docket only carries the IDs of tasks.

If Docket loses an ID or delivers it twice, nothing happens: the task store decides which worker runs a task.

Docket reads its messages with pickle, which can run any code. In our workers, it can only read plain values.
"""

import asyncio
import contextlib
import io
import os
import pickle
from collections.abc import AsyncGenerator
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote, urlencode

from dovetail.cluster.redis.redis_connection import RedisAddress, parse_redis_url
from dovetail.error_context import check_type
from dovetail.log import log
from dovetail.tasks.task_store import RunTask, StopSignal

_FUNCTION: Final = "run_task"
_OPEN_TIMEOUT_S: Final = 2.0  # `submit` waits this long for the connection while the server starts.
_REDELIVERY_S: Final = 30.0  # Docket delivers the IDs of a lost worker again after this time.
_RECONNECT_DELAY_S: Final = 1.0
_SCHEDULE_INTERVAL_S: Final = 3600.0  # how often Docket looks for tasks with a start time, which dovetail does not use


class DocketEngine:
    """Carries tasks to the workers of a queue in Redis or Valkey. Needs the extra `dovetail-mcp[docket]`.

    Args:
        url: The address of Redis, such as `redis://user:password@host:6379/0`. `rediss://` uses TLS.
        name: The name of the queue. Use the name of the server, because each server needs its own queue.
        max_concurrency: How many tasks one process takes from the queue at the same time.
    """

    def __init__(self, url: str, name: str, *, max_concurrency: int = 100) -> None:
        try:
            import docket
            import docket.execution
            import docket.strikelist
        except ImportError:
            raise ImportError("DocketEngine needs pydocket. Run: pip install 'dovetail-mcp[docket]'") from None
        check_type("name", name, str, "the name of the queue")
        check_type("max_concurrency", max_concurrency, int, "an integer")
        if not name or "{" in name or "}" in name:
            raise ValueError(f"name must be a text without braces, not {name!r}")
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency must be at least 1, not {max_concurrency}")
        for module in (docket.execution, docket.strikelist):
            if not isinstance(module.cloudpickle, _PlainPickle):
                setattr(module, "cloudpickle", _PlainPickle(module.cloudpickle))  # noqa: B010
        self._library: Any = docket
        self._url = _format_docket_url(parse_redis_url(url))
        self._name = f"dovetail:{name}"
        self._max_concurrency = max_concurrency
        self._queues: dict[asyncio.AbstractEventLoop, _Queue] = {}

    async def submit(self, id: str) -> None:
        """Send the ID of a task to a worker of the queue."""
        loop = asyncio.get_running_loop()
        queue = self._queues.setdefault(loop, _Queue())
        async with asyncio.timeout(_OPEN_TIMEOUT_S):
            await queue.is_open.wait()
        # Each message has its own key. If the key were the ID, Docket would ignore the ID while a lost worker has it.
        await queue.docket.add(_FUNCTION, key=os.urandom(12).hex())(id)

    async def serve(self, run: RunTask | None, stop: StopSignal) -> None:
        """Run the tasks of the queue until `stop` is set, and then wait for the running ones.

        If this coroutine is cancelled, it cancels the running tasks.
        """
        async with self._open() as docket:
            if run is None:
                await stop.wait()
            else:
                await self._work(docket, run, stop)

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncGenerator[Any]:
        loop = asyncio.get_running_loop()
        # All tasks of Docket run in copies of this context.
        _reads_plain_values.set(True)
        docket = self._library.Docket(
            name=self._name,
            url=self._url,
            # Docket keeps no results. The outcome of a task is in the task store.
            execution_ttl=timedelta(0),
        )
        docket.register(_ignore_task, names=[_FUNCTION])
        async with docket:
            queue = self._queues.setdefault(loop, _Queue())
            queue.docket = docket
            queue.is_open.set()
            try:
                yield docket
            finally:
                del self._queues[loop]

    async def _work(self, docket: Any, run: RunTask, stop: StopSignal) -> None:
        running: set[asyncio.Task[None]] = set()

        async def run_task(id: str) -> None:
            # The function runs in its own task, so that a stop of the server can cancel it and Docket notices nothing.
            task = asyncio.get_running_loop().create_task(_run_safely(run, id))
            running.add(task)
            try:
                await asyncio.wait([task])
            finally:
                running.discard(task)
                task.cancel()

        docket.register(run_task, names=[_FUNCTION])
        worker = self._library.Worker(
            docket,
            # Docket's default name is not unique, because several containers may have the same name.
            name=os.urandom(8).hex(),
            concurrency=self._max_concurrency,
            redelivery_timeout=timedelta(seconds=_REDELIVERY_S),
            reconnection_delay=timedelta(seconds=_RECONNECT_DELAY_S),
            scheduling_resolution=timedelta(seconds=_SCHEDULE_INTERVAL_S),
            schedule_automatic_tasks=False,
        )
        loop = asyncio.get_running_loop()
        async with worker:
            work, stopping = loop.create_task(worker.run_forever()), loop.create_task(_wait_for(stop))
            try:
                await asyncio.wait([work, stopping], return_when=asyncio.FIRST_COMPLETED)
                # Docket now takes no further task, and waits for the running ones.
                work.cancel()
                await asyncio.wait([work])
            finally:
                stopping.cancel()
                if not work.done():
                    for task in running:
                        task.cancel()
                    work.cancel()
                    await asyncio.wait([work])
        if not work.cancelled() and (exc := work.exception()) is not None:
            raise exc


# True while the running code belongs to an engine. A program may also use Docket for other purposes.
_reads_plain_values: Final[ContextVar[bool]] = ContextVar("_reads_plain_values", default=False)


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"refused {module_name}.{global_name}")


class _PlainPickle:
    """Replaces the module `cloudpickle` in Docket. In an engine, it reads only texts, numbers, tuples and dicts."""

    def __init__(self, cloudpickle: Any) -> None:
        self._cloudpickle = cloudpickle
        self.dumps = cloudpickle.dumps

    def loads(self, data: bytes) -> Any:
        if not _reads_plain_values.get():
            return self._cloudpickle.loads(data)
        try:
            return _PlainUnpickler(io.BytesIO(data)).load()
        except Exception as exc:
            log.warning("ignored a message in the queue of tasks that dovetail did not send: %s", exc)
            return ()


class _Queue:
    docket: Any

    def __init__(self) -> None:
        self.is_open = asyncio.Event()


async def _ignore_task(id: str) -> None:
    """Do nothing. Docket needs a function with this name in processes that only submit tasks."""


async def _wait_for(stop: StopSignal) -> None:
    await stop.wait()


async def _run_safely(run: RunTask, id: str) -> None:
    try:
        await run(id)
    except Exception:
        # The task is due again when its lease has expired.
        log.exception("a task could not be run")


def _format_docket_url(address: RedisAddress) -> str:
    """Return the URL that Docket passes to redis-py. The names of its options differ from ours."""
    options: dict[str, str] = {}
    if address.ca_file is not None:
        options["ssl_ca_certs"] = address.ca_file
    credentials = ""
    if address.username is not None or address.password is not None:
        credentials = f"{quote(address.username or '', safe='')}:{quote(address.password or '', safe='')}@"
    if address.path is not None:
        options["db"] = str(address.database)
        return f"unix://{credentials}{quote(address.path)}?{urlencode(options)}"
    scheme = "rediss" if address.uses_tls else "redis"
    hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in address.hosts)
    path = f"/{address.database}"
    if address.sentinel_service is not None:
        scheme += "+sentinel"
        path = f"/{quote(address.sentinel_service, safe='')}{path}"
        if address.sentinel_password is not None:
            options["sentinel_password"] = address.sentinel_password
    query = f"?{urlencode(options)}" if options else ""
    return f"{scheme}://{credentials}{hosts}{path}{query}"
