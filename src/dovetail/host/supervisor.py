"""A supervisor starts one server when it is needed, watches it, and stops it when it is idle.

After repeated failures, the supervisor waits before the next start. The last known lists of a stopped
server stay available.
"""

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from dovetail.callbacks import add_callback
from dovetail.client.client import Client, get_session, mount_client
from dovetail.client.subscription import ChangeEvent
from dovetail.error_context import add_context, clip
from dovetail.errors import AuthError, MCPError, ProcessStartError, RequestTimeout, TransportError
from dovetail.host.config.secret_lookup import SecretNotFound, mask_error
from dovetail.host.events import HostEvent
from dovetail.host.list_cache import ListCache, fetch_definitions, get_announced_kinds
from dovetail.host.server_settings import ServerSettings, ServerState
from dovetail.log import log, log_and_suppress, log_failure
from dovetail.mounts.mounted_client import InputFilter, MountedClient
from dovetail.protocol.client_messages import ASSUMED_CAPABILITIES
from dovetail.protocol.exchange import ChangeCallback
from dovetail.protocol.item_kinds import ItemKind
from dovetail.wire.lifecycle import TASKS_EXTENSION
from dovetail.wire.revisions import is_stateless

T = TypeVar("T")

_MAX_LIST_ATTEMPTS: Final = 2
_STOP_TIMEOUT_S: Final = 5.0  # the maximum seconds for stopping a server


class ResourceSubscription:
    """A subscription to resources of the server."""

    def __init__(self, uris: tuple[str, ...]) -> None:
        self.uris = uris
        self.task: asyncio.Task[Any]


class StartDelay:
    """The time until a server may start again. It grows with each failure."""

    def __init__(self, settings: ServerSettings) -> None:
        self.failure_count = 0
        self._settings = settings
        self._retry_at = 0.0

    @property
    def remaining_s(self) -> float:
        """Return the seconds until the next start is allowed. Without failures, the server may start at once."""
        return self._retry_at - asyncio.get_running_loop().time() if self.failure_count else 0.0

    @property
    def is_exhausted(self) -> bool:
        """Return whether the server has failed as often as its settings allow."""
        return self.failure_count >= self._settings.max_restarts

    def add_failure(self, *, was_connected: bool) -> None:
        """Count a failure. After a lost connection, the first delay is 0."""
        self.failure_count += 1
        first_delay, max_delay = self._settings.restart_delay, self._settings.max_restart_delay
        doublings = self.failure_count - 1 - (1 if was_connected else 0)
        delay = (
            max_delay if self.is_exhausted else min(first_delay * 2**doublings, max_delay) if doublings >= 0 else 0.0
        )
        self._retry_at = asyncio.get_running_loop().time() + delay

    def reset(self) -> None:
        """Forget all failures, and allow a start at once."""
        self.failure_count, self._retry_at = 0, 0.0


class ServerSupervisor:
    """Starts, watches and restarts one server of a host. Users see a `ManagedServer`."""

    def __init__(
        self,
        name: str,
        create_client: Callable[[], Client | Awaitable[Client]],
        settings: ServerSettings,
        emit: Callable[[HostEvent], None],
        *,
        identity: str = "",
        source: str = "",
        enabled: bool = True,
        authorize_start: Callable[[], Awaitable[None]] | None = None,
        find_start_obstacle: Callable[[], str] = str,
        mask: Callable[[Any], Any] = lambda value: value,
        input_filter: InputFilter | None = None,
        change_callbacks: dict[object, ChangeCallback] | None = None,
        context: contextvars.Context | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.identity = identity  # a digest of the server's command or URL
        self.source = source
        self.state: ServerState = "idle" if enabled else "disabled"
        self.last_error: MCPError | None = None
        self.shared = False
        self.screen = input_filter  # a function that checks the server's input requests to gateway callers
        self._create_client = create_client
        # The server lives longer than the request that starts it, so its tasks must not use the request's context.
        self._context = contextvars.copy_context() if context is None else context
        self._emit = emit
        self._authorize_start = authorize_start  # a function that raises an error if the server must not start
        self._find_start_obstacle = find_start_obstacle  # returns the reason why the server cannot start, or ""
        self._mask = mask  # a function that masks secrets in messages
        self.client: Client | None = None
        self._mounted_client: MountedClient | None = None
        # Sends the requests of gateway callers to the server.
        # None if the server was started without the capabilities of gateway callers.
        self.forwarder: MountedClient | None = None
        self.may_have_tasks = True  # False if the server is known not to run calls as tasks
        self._start_task: asyncio.Task[Client] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._close_tasks: set[asyncio.Task[None]] = set()
        self._change_callbacks = {} if change_callbacks is None else change_callbacks
        self._list_cache = ListCache(name, emit, self._change_callbacks)
        self._list_tasks: dict[ItemKind, asyncio.Task[dict[str, Any]]] = {}
        self._is_slow = False  # True if the last list arrived after `list_timeout`.
        self._subscriptions: list[ResourceSubscription] = []
        self.use_count = 0  # the number of running calls and subscriptions
        self._idle_timer: asyncio.TimerHandle | None = None
        self._start_delay = StartDelay(settings)
        # The kinds of items for which the server sends change notifications.
        self._announced_kinds: frozenset[ItemKind] = frozenset()

    def sibling(
        self, create_client: Callable[[], Client | Awaitable[Client]], settings: ServerSettings
    ) -> "ServerSupervisor":
        """Create a second supervisor for the same server, with a different client and the same callbacks."""
        return ServerSupervisor(
            self.name,
            create_client,
            settings,
            self._emit,
            identity=self.identity,
            source=self.source,
            authorize_start=self._authorize_start,
            find_start_obstacle=self._find_start_obstacle,
            mask=self._mask,
            input_filter=self.screen,
            change_callbacks=self._change_callbacks,
            context=self._context,
        )

    def __repr__(self) -> str:
        return f"<{self.name}: {self.state}{f', {clip(str(self.last_error))}' if self.last_error else ''}>"

    def _set_state(self, state: ServerState, reason: MCPError | None = None) -> None:
        if reason is not None:
            mask_error(reason, self._mask)
        previous_state, self.state, self.last_error = self.state, state, reason
        if previous_state != state or reason is not None:
            reason_text = None if reason is None else str(reason)
            self._emit(
                HostEvent(
                    kind="server.state",
                    server=self.name,
                    previous_state=previous_state,
                    state=state,
                    reason=reason_text,
                    details=reason,
                )
            )

    @property
    def known(self) -> Mapping[ItemKind, dict[str, Any]]:
        """Return the last known items of the server for each kind of item."""
        return self._list_cache.items_by_kind

    @property
    def asleep(self) -> bool:
        """Return whether the server is neither running nor starting."""
        return self.client is None and (self._start_task is None or self._start_task.done())

    async def ready(self) -> Client:
        """Start the server if needed, and return its client.

        Concurrent callers share one start. After a failure, raise an error until the delay has passed.
        """
        if self.client is not None:
            return self.client
        start_task = self._start_task
        if start_task is None or start_task.done():
            self._check_startable()
            start_task = self._start_task = asyncio.get_running_loop().create_task(
                self._start(), context=self._context.copy()
            )
            start_task.add_done_callback(log_failure)
        return await self._await_shared(start_task)

    async def _await_shared(self, task: "asyncio.Task[T]") -> T:
        """Wait for a task. Do not cancel the task, because other callers may wait for it."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not _is_being_cancelled():
                raise add_context(
                    ProcessStartError("the server was stopped while it was starting"), server=self.name
                ) from None
            raise

    def _check_startable(self) -> None:
        if obstacle := self._find_start_obstacle():
            raise add_context(ProcessStartError(obstacle), server=self.name)
        if self.state == "disabled":
            raise add_context(ProcessStartError("the server is disabled"), server=self.name)
        wait = self._start_delay.remaining_s
        if wait > 0:
            obstacle = f": {self.last_error.args[0]}" if self.last_error is not None and self.last_error.args else ""
            raise add_context(
                ProcessStartError(
                    f"the server failed {self._start_delay.failure_count} times. "
                    f"The next attempt is in {wait:.0f} s{obstacle}"
                ),
                server=self.name,
                stderr=None if self.last_error is None else self.last_error.stderr,
                hint=f"call host.restart({self.name!r}) to try immediately",
            )

    async def _start(self) -> Client:
        self._set_state("starting")
        client: Client | None = None
        mounted_client: MountedClient | None = None
        try:
            if self._authorize_start is not None:
                await self._authorize_start()
            async with asyncio.timeout(self.settings.start_timeout):
                created = self._create_client()
                client = await created if isinstance(created, Awaitable) else created
                get_session(client).on_connection = self._on_connection_change
                is_announced = self.shared
                mounted_client = mount_client(
                    client, is_shared=True, declare_all=is_announced, input_filter=self.screen
                )
                await client.connect()
        except asyncio.CancelledError:
            await self._close_shielded(client, mounted_client)
            raise
        except Exception as exc:
            await self._close_shielded(client, mounted_client)
            start_error = self._record_failure(self._to_start_error(exc))
            raise start_error from start_error.__cause__
        self.client, self._mounted_client = client, mounted_client
        # A stateless server gets the capabilities with each request, so it always has a forwarder.
        if is_announced or is_stateless(client.protocol_version or ""):
            self.forwarder = mounted_client
        self._list_cache.invalidate()
        self._is_slow = False
        self._set_state("ready")
        self._announced_kinds = get_announced_kinds(client)
        if self._announced_kinds:
            self.spawn(self._watch_lists(client))
        for subscription in self._subscriptions:
            self.spawn(self._reopen_subscription(subscription))
        self._schedule_idle_stop()
        return client

    def _to_start_error(self, exc: Exception) -> MCPError:
        match exc:
            case MCPError():
                return exc
            case TimeoutError():
                return add_context(
                    RequestTimeout(f"the server was not ready within {self.settings.start_timeout:g} s"),
                    server=self.name,
                )
            case SecretNotFound():
                return add_context(ProcessStartError(str(exc)), server=self.name)
            case KeyError():
                return add_context(ProcessStartError(f"{clip(str(exc.args[0]))} is not set"), server=self.name)
            case _:
                return add_context(
                    ProcessStartError(clip(self._mask(str(exc)), 500) or type(exc).__name__), server=self.name
                )

    def _record_failure(self, exc: MCPError, *, was_connected: bool = False) -> MCPError:
        self._start_delay.add_failure(was_connected=was_connected)
        self._set_state("unauthorized" if isinstance(exc, AuthError) else "failed", exc)
        return exc

    def check_tasks(self) -> bool:
        """Return whether the server may run calls as tasks. Remember the answer for this connection."""
        if self.client is not None and self.client.is_connected:
            capabilities = self.client.server_capabilities
            self.may_have_tasks = capabilities is ASSUMED_CAPABILITIES or TASKS_EXTENSION in (
                capabilities.extensions or {}
            )
        return self.may_have_tasks

    def _on_connection_change(self, error: TransportError | None) -> None:
        self.may_have_tasks = True  # After a restart, the server may be a newer version.
        if self.client is None:
            return
        self._list_cache.invalidate()
        if error is None:
            self._set_state("ready")
            return
        self._record_failure(error, was_connected=True)
        if self._start_delay.is_exhausted:
            self._detach_client()
        else:
            self._set_state("degraded", error)

    @asynccontextmanager
    async def using(self) -> AsyncGenerator[Client]:
        """Yield the client of the server. If a request fails, update the state of the server."""
        self.use_count += 1
        client: Client | None = None
        error: BaseException | None = None
        try:
            client = self.client or await self.ready()
            yield client
        except BaseException as exc:
            error = exc
            raise
        finally:
            self.end_use(client, error)

    def end_use(self, client: Client | None, error: BaseException | None) -> None:
        """Mark one request to the server as finished. `error` is the error of the request, or None."""
        if client is None:
            pass  # The failed start was counted before.
        elif error is None:
            if self._start_delay.failure_count:
                self._start_delay.reset()
            if self.state in ("degraded", "unauthorized") and self.client is client:
                self._set_state("ready")
        elif isinstance(error, AuthError):
            self._set_state("unauthorized", error)
        elif isinstance(error, TransportError) and self.state == "ready":
            self._set_state("degraded", error)
        self.use_count -= 1
        if self.settings.idle_timeout is not None:
            self._schedule_idle_stop()

    async def _watch_lists(self, client: Client) -> None:
        with log_and_suppress(MCPError):
            async with client.listen() as changes:
                async for change in changes:
                    self._handle_change(change)
        self._announced_kinds = frozenset()  # Without change notifications, cached lists expire.

    def _handle_change(self, change: ChangeEvent) -> None:
        self._list_cache.handle_change(change.kind, change.uri, change)

    def follow(self, callback: ChangeCallback) -> Callable[[], None]:
        """Call a function for each change on the server. The returned function removes the callback."""
        return add_callback(self._change_callbacks, callback)

    async def subscribe(self, uris: Sequence[str]) -> Callable[[], None]:
        """Subscribe to resources of the server. The returned function ends the subscription.

        The subscription keeps the server running, and continues after a restart.
        """
        subscription = ResourceSubscription(tuple(uris))
        await self._open_subscription(subscription)
        self._subscriptions.append(subscription)

        def stop() -> None:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)
                subscription.task.cancel()

        return stop

    async def _open_subscription(self, subscription: ResourceSubscription) -> None:
        listener = (await self.ready()).listen(tools=False, prompts=False, resources=False, uris=subscription.uris)
        await listener.__aenter__()
        self.use_count += 1
        subscription.task = self.spawn(self._forward_updates(listener))
        subscription.task.add_done_callback(lambda _: self._release_use())

    async def _reopen_subscription(self, subscription: ResourceSubscription) -> None:
        """Subscribe again after a restart. Report all resources as changed, because updates may have been lost."""
        await self._open_subscription(subscription)
        if subscription not in self._subscriptions:
            subscription.task.cancel()
        for uri in subscription.uris:
            self._handle_change(ChangeEvent("resource", uri, maybe_missed=True))

    async def _forward_updates(self, listener: Any) -> None:
        with log_and_suppress(MCPError):
            async with listener:
                async for change in listener:
                    self._handle_change(change)

    def _release_use(self) -> None:
        self.use_count -= 1
        self._schedule_idle_stop()

    async def list_within(self, kind: ItemKind, max_wait_s: float) -> Mapping[str, Any]:
        """Return the items of a kind as a dict. If the server is slow or fails, return the last known items.

        After a slow response, lists do not wait for the server until it has listed its items in the background.
        """
        try:
            async with asyncio.timeout(0 if self._is_slow else max_wait_s):
                return await self.listed(kind)
        except MCPError:  # The list may have arrived after `list_timeout`.
            pass
        except TimeoutError:
            self._is_slow = True
        return self.known.get(kind, {})

    async def listed(self, kind: ItemKind) -> Mapping[str, Any]:
        """Return the items of a kind as a dict. If the server is stopped or fails, return the last known items."""
        if self.state == "disabled":
            return {}
        if kind in self.known and (self.asleep or self.get_fresh(kind) is not None):
            return self.known[kind]
        try:
            return await self._fetch_list(kind)
        except asyncio.CancelledError:
            self._list_cache.mark_awaited(kind)
            raise
        except MCPError:
            self._list_cache.mark_awaited(kind)
            if kind in self.known:
                return self.known[kind]
            raise

    def get_fresh(self, kind: ItemKind) -> Mapping[str, Any] | None:
        """Return the items of a kind if they are certainly current. Otherwise return None."""
        fetched_at = self._list_cache.fetched_at.get(kind)
        if fetched_at is None or self.client is None:
            return None
        if kind in self._announced_kinds or asyncio.get_running_loop().time() - fetched_at < self.settings.list_ttl:
            return self._list_cache.items_by_kind[kind]
        return None

    async def current(self, kind: ItemKind) -> Mapping[str, Any]:
        """Return the current items of a kind. Fetch them if they may have changed."""
        if self.get_fresh(kind) is None:
            for _ in range(_MAX_LIST_ATTEMPTS):
                await self._fetch_list(kind)
                if kind in self._list_cache.fetched_at:  # No change of the list was reported during the request.
                    break
        return self.known[kind]

    async def _fetch_list(self, kind: ItemKind) -> dict[str, Any]:
        """Fetch a list from the server. Concurrent callers share one request."""
        list_task = self._list_tasks.get(kind)
        if list_task is None or list_task.done():
            list_task = self._list_tasks[kind] = self.spawn(self._run_list(kind))
        return await self._await_shared(list_task)

    async def _run_list(self, kind: ItemKind) -> dict[str, Any]:
        client = await self.ready()
        try:
            async with asyncio.timeout(self.settings.list_timeout):
                await client.connect()  # The capabilities are unknown before the connection is open.
                started_at, version = asyncio.get_running_loop().time(), self._list_cache.get_version(kind)
                items, ambiguous_names = await fetch_definitions(client, kind)
        except TimeoutError:
            timeout_error = RequestTimeout(
                f"the server did not list its {kind}s within {self.settings.list_timeout:g} s"
            )
            raise self._mark_degraded(add_context(timeout_error, server=self.name)) from None
        except MCPError as exc:
            raise self._mark_degraded(exc) from exc.__cause__
        self._is_slow = False
        self._list_cache.report_ambiguous(kind, ambiguous_names)
        self._list_cache.update(kind, items, started_at, version)
        self._schedule_idle_stop()
        return items

    def _mark_degraded(self, exc: MCPError) -> MCPError:
        if self.state == "ready":
            self._set_state("unauthorized" if isinstance(exc, AuthError) else "degraded", exc)
        return exc

    async def get_forwarder(self) -> MountedClient:
        """Return the client that forwards requests of gateway callers. Restart the server if needed."""
        if self.client is None:
            await self.ready()
        if self.forwarder is None and self._can_restart:
            # The server was started without the capabilities of gateway callers.
            await self.stop()
            await self.ready()
        assert self._mounted_client is not None
        return self._mounted_client

    @property
    def _can_restart(self) -> bool:
        return self.use_count <= 1 and all(task.done() for task in self._list_tasks.values())

    async def answer(self, input_requests: Mapping[str, Any]) -> dict[str, Any]:
        """Answer the server's input requests with the handlers of the client."""
        return await (await self.ready()).answer_input_requests(input_requests)

    def _schedule_idle_stop(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        idle_timeout = self.settings.idle_timeout
        if idle_timeout is not None and not self.use_count and self.client is not None:
            self._idle_timer = asyncio.get_running_loop().call_later(
                idle_timeout, lambda: self.spawn(self._stop_if_idle()), context=self._context
            )

    async def _stop_if_idle(self) -> None:
        if not self.use_count and self.client is not None:
            await self.stop()

    async def stop(self) -> None:
        """Stop the server within a time limit. The server starts again on the next use."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        start_task, self._start_task = self._start_task, None
        self._detach_client()
        tasks = {task for task in self._tasks if task is not asyncio.current_task()}
        if start_task is not None and not start_task.done():
            tasks.add(start_task)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_TIMEOUT_S)
        if self._close_tasks:
            await asyncio.wait(tuple(self._close_tasks))
        if self.state != "disabled":
            self._set_state("idle")

    async def restart(self) -> None:
        """Restart the server immediately, even if it has failed and its next start is scheduled for later."""
        await self.stop()
        self._start_delay.reset()
        if self.state == "disabled":
            self._set_state("idle")
        await self.ready()

    async def disable(self) -> None:
        """Stop the server. The server stays stopped until `restart` is called."""
        await self.stop()
        self._set_state("disabled")

    def _detach_client(self) -> None:
        """Close the client in the background. The next request gets a new client."""
        client, self.client = self.client, None
        mounted_client, self._mounted_client = self._mounted_client, None
        self.forwarder = None
        if client is not None:
            get_session(client).on_connection = None
            task = asyncio.get_running_loop().create_task(
                self._close_client(client, mounted_client), context=self._context.copy()
            )
            self._close_tasks.add(task)
            task.add_done_callback(self._close_tasks.discard)

    async def _close_shielded(self, client: Client | None, mounted_client: MountedClient | None) -> None:
        if client is not None:
            get_session(client).on_connection = None
            await asyncio.shield(self._close_client(client, mounted_client))

    async def _close_client(self, client: Client, mounted_client: MountedClient | None) -> None:
        try:
            async with asyncio.timeout(get_session(client).timeouts.close + _STOP_TIMEOUT_S):
                await (client.close() if mounted_client is None else mounted_client.stop())
        except (MCPError, TimeoutError) as exc:
            log.warning("error while stopping %s: %s", self.name, exc)

    def spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        """Run a coroutine as a task, in the context of the server. The task is cancelled when the server stops."""
        task = asyncio.get_running_loop().create_task(coroutine, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None and not isinstance(exc, MCPError):
            log.error("error while supervising %s", self.name, exc_info=exc)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
