"""The supervisor of one server: starts it when it is needed, watches it, and stops it when it is idle.

A server that keeps failing is left alone for a while. Its state and the reason for it are data, and its last lists
stay known while it is stopped.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from dovetail.client.client import Client, get_session, mount_client
from dovetail.client.mounted_client import InputFilter, MountedClient
from dovetail.client.subscription import ChangeEvent
from dovetail.error_context import add_context, clip
from dovetail.errors import AuthError, MCPError, ProcessStartError, RequestTimeout, TransportError
from dovetail.host.config.secret_lookup import SecretNotFound, mask_error
from dovetail.host.events import HostEvent
from dovetail.host.list_cache import ListCache, fetch_definitions, has_change_notices
from dovetail.host.server_settings import ServerSettings, ServerState
from dovetail.protocol.mountable import ChangeCallback, ItemKind
from dovetail.wire.revisions import is_stateless

log = logging.getLogger("dovetail")

T = TypeVar("T")

_MAX_LIST_ATTEMPTS: Final = 2
_STOP_TIMEOUT_S: Final = 5.0  # seconds a server may take to leave before the host goes on without it


class ResourceSubscription:
    """Resources that somebody wants to hear of."""

    def __init__(self, uris: tuple[str, ...]) -> None:
        self.uris = uris
        self.task: asyncio.Task[Any]


class ServerSupervisor:
    """The work of a host for one server. `ManagedServer` is the user's view of it."""

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
        mask: Callable[[str], str] = str,
        input_filter: InputFilter | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.identity = identity  # which command or URL it is
        self.source = source
        self.state: ServerState = "idle" if enabled else "disabled"
        self.last_error: MCPError | None = None
        self.shared = False  # whether callers of a gateway may use it too
        self.screen = input_filter  # looks at what it asks them
        self._create_client = create_client
        self._emit = emit
        self._authorize_start = authorize_start  # whatever must agree before it is started
        self._find_start_obstacle = find_start_obstacle  # why it may not be started at all, if so
        self._mask = mask  # takes secrets out of what is told
        self._client: Client | None = None
        self._mounted_client: MountedClient | None = None
        self._is_announced = False  # whether the server that runs was told of them
        self._start_task: asyncio.Task[Client] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._close_tasks: set[asyncio.Task[None]] = set()
        self._list_cache = ListCache(name, emit)
        self._list_tasks: dict[ItemKind, asyncio.Task[dict[str, Any]]] = {}
        self._subscriptions: list[ResourceSubscription] = []
        self._use_count = 0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._failure_count = 0
        self._retry_at = 0.0
        self._has_change_notices = False  # whether the server tells of changes

    def sibling(
        self, create_client: Callable[[], Client | Awaitable[Client]], settings: ServerSettings
    ) -> "ServerSupervisor":
        """The same server once more, for somebody else; who hears of the one hears of the other."""
        sibling = ServerSupervisor(
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
        )
        sibling._list_cache.change_callbacks = self._list_cache.change_callbacks
        return sibling

    def __repr__(self) -> str:
        return f"<{self.name}: {self.state}{f', {clip(str(self.last_error))}' if self.last_error else ''}>"

    # State

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
    def client(self) -> Client | None:
        """The client, while there is one."""
        return self._client

    @property
    def known(self) -> Mapping[ItemKind, dict[str, Any]]:
        """What it offered last."""
        return self._list_cache.items_by_kind

    @property
    def asleep(self) -> bool:
        """Whether it is not running and was not asked to."""
        return self._client is None and (self._start_task is None or self._start_task.done())

    # Starting

    async def ready(self) -> Client:
        """The client, connected; all who wait share one start. What failed just now is not tried again at once."""
        if self._client is not None:
            return self._client
        start_task = self._start_task
        if start_task is None or start_task.done():
            self._check_startable()
            start_task = self._start_task = asyncio.get_running_loop().create_task(self._start())
            start_task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await self._await_shared(start_task)

    async def _await_shared(self, task: "asyncio.Task[T]") -> T:
        """What a task brings that others wait for too."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not _is_being_cancelled():
                raise add_context(ProcessStartError("it was stopped meanwhile"), server=self.name) from None
            raise

    def _check_startable(self) -> None:
        if obstacle := self._find_start_obstacle():
            raise add_context(ProcessStartError(obstacle), server=self.name)
        if self.state == "disabled":
            raise add_context(ProcessStartError("it is disabled"), server=self.name)
        wait = self._retry_at - asyncio.get_running_loop().time()
        if self._failure_count and wait > 0:
            obstacle = f": {self.last_error.args[0]}" if self.last_error is not None and self.last_error.args else ""
            raise add_context(
                ProcessStartError(
                    f"it failed {self._failure_count} times and is tried again in {wait:.0f} s{obstacle}"
                ),
                server=self.name,
                stderr=None if self.last_error is None else self.last_error.stderr,
                hint=f"host.restart({self.name!r}) tries at once",
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
        self._client, self._mounted_client = client, mounted_client
        self._is_announced = is_announced or is_stateless(
            client.protocol_version or ""
        )  # a stateless one is told with each request
        self._list_cache.invalidate()
        self._set_state("ready")
        self._has_change_notices = has_change_notices(client)
        if self._has_change_notices:
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
                    RequestTimeout(f"it was not ready within {self.settings.start_timeout:g} s"), server=self.name
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
        """Count it, and say when to try again: after a loss at once, then less and less often."""
        self._failure_count += 1
        first_delay, max_delay = self.settings.restart_delay, self.settings.max_restart_delay
        doublings = self._failure_count - 1 - (1 if was_connected else 0)
        delay = (
            max_delay
            if self._failure_count >= self.settings.max_restarts
            else min(first_delay * 2**doublings, max_delay)
            if doublings >= 0
            else 0.0
        )
        self._retry_at = asyncio.get_running_loop().time() + delay
        self._set_state("unauthorized" if isinstance(exc, AuthError) else "failed", exc)
        return exc

    # While it runs

    def _on_connection_change(self, error: TransportError | None) -> None:
        """The client lost its server, or has one again: it looks after that itself, unless it goes on and on."""
        if self._client is None:
            return
        self._list_cache.invalidate()
        if error is None:
            self._set_state("ready")
            return
        self._record_failure(error, was_connected=True)
        if self._failure_count >= self.settings.max_restarts:
            self._detach_client()
        else:
            self._set_state("degraded", error)

    @asynccontextmanager
    async def using(self) -> AsyncGenerator[Client]:
        """The client for one request; how that ends says how the server is doing."""
        self._use_count += 1
        try:
            client = self._client or await self.ready()
            try:
                yield client
            except AuthError as exc:
                self._set_state("unauthorized", exc)
                raise
            except TransportError as exc:
                if self.state == "ready":
                    self._set_state("degraded", exc)
                raise
            self._failure_count = 0
            if self.state in ("degraded", "unauthorized") and self._client is client:
                self._set_state("ready")
        finally:
            self._use_count -= 1
            if self.settings.idle_timeout is not None:
                self._schedule_idle_stop()

    async def _watch_lists(self, client: Client) -> None:
        with contextlib.suppress(MCPError):
            async with client.listen() as changes:
                async for change in changes:
                    self._handle_change(change)
        self._has_change_notices = False  # from now on only looking tells

    def _handle_change(self, change: ChangeEvent) -> None:
        self._list_cache.handle_change(change.kind, change.uri, change)

    def follow(self, callback: ChangeCallback) -> Callable[[], None]:
        """Hear of the server's changes; call what is returned to stop."""
        return self._list_cache.add_callback(callback)

    async def subscribe(self, uris: Sequence[str]) -> Callable[[], None]:
        """Hear of these resources too, after a new start as well; the server stays awake for it."""
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
        self._use_count += 1
        subscription.task = self.spawn(self._forward_updates(listener))
        subscription.task.add_done_callback(lambda _: self._release_use())

    async def _reopen_subscription(self, subscription: ResourceSubscription) -> None:
        """What is wanted of a server that was started anew; nobody knows what was missed meanwhile."""
        await self._open_subscription(subscription)
        if subscription not in self._subscriptions:
            subscription.task.cancel()
        for uri in subscription.uris:
            self._handle_change(ChangeEvent("resource", uri, maybe_missed=True))

    async def _forward_updates(self, listener: Any) -> None:
        with contextlib.suppress(MCPError):
            async with listener:
                async for change in listener:
                    self._handle_change(change)

    def _release_use(self) -> None:
        self._use_count -= 1
        self._schedule_idle_stop()

    # What it offers

    async def listed(self, kind: ItemKind) -> Mapping[str, Any]:
        """What it offers, by name or URI. Asleep, or out of reach: what it offered last."""
        if self.state == "disabled":
            return {}
        if kind in self.known and (self.asleep or self._is_fresh(kind)):
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
        """Return a list if it is known to be current, else None."""
        return self._list_cache.items_by_kind[kind] if self._is_fresh(kind) else None

    async def current(self, kind: ItemKind) -> Mapping[str, Any]:
        """What it offers now, and not what it offered before it changed, slept or was started anew."""
        for _ in range(_MAX_LIST_ATTEMPTS):  # what changes while it is told is told again
            if self._is_fresh(kind):
                break
            await self._fetch_list(kind)
        return self.known[kind]

    async def _fetch_list(self, kind: ItemKind) -> dict[str, Any]:
        """Its list; all who want it share one."""
        list_task = self._list_tasks.get(kind)
        if list_task is None or list_task.done():
            list_task = self._list_tasks[kind] = self.spawn(self._run_list(kind))
        return await self._await_shared(list_task)

    def _is_fresh(self, kind: ItemKind) -> bool:
        fetched_at = self._list_cache.fetched_at.get(kind)
        if fetched_at is None or self._client is None:
            return False
        return self._has_change_notices or asyncio.get_running_loop().time() - fetched_at < self.settings.list_ttl

    async def _run_list(self, kind: ItemKind) -> dict[str, Any]:
        client = await self.ready()
        started_at, change_count = asyncio.get_running_loop().time(), self._list_cache.get_change_count(kind)
        try:
            async with asyncio.timeout(self.settings.list_timeout):
                await client.connect()  # what it offers is told when it opens
                items = await fetch_definitions(client, kind)
        except TimeoutError:
            timeout_error = RequestTimeout(f"it did not list its {kind}s within {self.settings.list_timeout:g} s")
            raise self._mark_degraded(add_context(timeout_error, server=self.name)) from None
        except MCPError as exc:
            raise self._mark_degraded(exc) from exc.__cause__
        self._list_cache.update(kind, items, started_at, change_count)
        self._schedule_idle_stop()
        return items

    def _mark_degraded(self, exc: MCPError) -> MCPError:
        if self.state == "ready":
            self._set_state("unauthorized" if isinstance(exc, AuthError) else "degraded", exc)
        return exc

    # For a gateway

    async def forwarding(self) -> MountedClient:
        """The server as something to forward requests to, by one who uses it."""
        if self._client is None:
            await self.ready()
        if not self._is_announced and self._can_restart:
            await self.stop()  # what it was told when it was started, of this host alone, it is told anew
            await self.ready()
        assert self._mounted_client is not None
        return self._mounted_client

    @property
    def uses(self) -> int:
        """How many calls and subscriptions use it now."""
        return self._use_count

    @property
    def _can_restart(self) -> bool:
        """Whether it can be started anew at nobody's cost but that of one who uses it."""
        return self._use_count <= 1 and all(task.done() for task in self._list_tasks.values())

    async def answer(self, input_requests: Mapping[str, Any]) -> dict[str, Any]:
        """Answers to what the server asks within a result, as its client gives them."""
        return await (await self.ready()).answer_input_requests(input_requests)

    # Stopping

    def _schedule_idle_stop(self) -> None:
        """Stop it after a while without use."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        idle_timeout = self.settings.idle_timeout
        if idle_timeout is not None and not self._use_count and self._client is not None:
            self._idle_timer = asyncio.get_running_loop().call_later(
                idle_timeout, lambda: self.spawn(self._stop_if_idle())
            )

    async def _stop_if_idle(self) -> None:
        if not self._use_count and self._client is not None:
            await self.stop()

    async def stop(self) -> None:
        """Leave the server, in bounded time; it is started again when it is needed."""
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
        """Start it anew, now, however often it failed before."""
        await self.stop()
        self._failure_count, self._retry_at = 0, 0.0
        if self.state == "disabled":
            self._set_state("idle")
        await self.ready()

    async def disable(self) -> None:
        """Stop it, and leave it so."""
        await self.stop()
        self._set_state("disabled")

    def _detach_client(self) -> None:
        """Begin to leave the server; whoever uses it next gets a new client."""
        client, self._client = self._client, None
        mounted_client, self._mounted_client = self._mounted_client, None
        if client is not None:
            get_session(client).on_connection = None
            task = asyncio.get_running_loop().create_task(self._close_client(client, mounted_client))
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
            log.warning("%s did not leave in an orderly way: %s", self.name, exc)

    def spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        """Work that ends with the server, if not before."""
        task = asyncio.get_running_loop().create_task(coroutine)
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
