"""Member: one server of a host. It is started when it is needed, watched, stopped when idle, and left alone for a
while when it keeps failing; its state and the reason for it are data.

What it offered last stays known while it sleeps. Nothing here knows of any other server.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, TypeAlias, TypeVar

from dovetail.client.forwarding import Forwarding, Screen
from dovetail.client.listening import Change
from dovetail.connect import Client
from dovetail.errors import (
    AuthError,
    CannotStart,
    MCPError,
    RequestTimeout,
    TransportError,
    Unauthorized,
    clip,
)
from dovetail.host.events import Event
from dovetail.host.learned import Learned, declared, tells
from dovetail.host.secrets import Unresolved, cleaned
from dovetail.host.terms import Terms
from dovetail.protocol.mounting import Hear, Kind
from dovetail.wire.revisions import stateless

log = logging.getLogger("dovetail")

T = TypeVar("T")
State: TypeAlias = Literal["idle", "starting", "ready", "degraded", "needs_login", "failed", "disabled"]

_LOOKS: Final = 2
_SETTLED: Final = 5.0  # seconds a server may take to leave before the host goes on without it


class Wish:
    """Resources that somebody wants to hear of."""

    def __init__(self, uris: tuple[str, ...]) -> None:
        self.uris = uris
        self.task: asyncio.Task[Any]


class Member:
    """One server, from its first use to its last."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Client | Awaitable[Client]],
        settings: Terms,
        tell: Callable[[Event], None],
        *,
        identity: str = "",
        source: str = "",
        enabled: bool = True,
        permit: Callable[[], Awaitable[None]] | None = None,
        barred: Callable[[], str] = str,
        mask: Callable[[str], str] = str,
        screen: Screen | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.identity = identity  # which command or URL it is
        self.source = source
        self.state: State = "idle" if enabled else "disabled"
        self.reason: MCPError | None = None
        self.shared = False  # whether callers of a gateway may use it too
        self.screen = screen  # looks at what it asks them
        self._make = make
        self._tell = tell
        self._permit = permit  # whatever must agree before it is started
        self._barred = barred  # why it may not be started at all, if so
        self._mask = mask  # takes secrets out of what is told
        self._client: Client | None = None
        self._forwarding: Forwarding | None = None
        self._announced = False  # whether the server that runs was told of them
        self._starting: asyncio.Task[Client] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._learned = Learned(name, tell)
        self._listing: dict[Kind, asyncio.Task[dict[str, Any]]] = {}
        self._wishes: list[Wish] = []
        self._uses = 0
        self._idle: asyncio.TimerHandle | None = None
        self._failures = 0
        self._not_before = 0.0
        self._hears = False  # whether the server tells of changes

    def sibling(self, make: Callable[[], Client | Awaitable[Client]], settings: Terms) -> "Member":
        """The same server once more, for somebody else; who hears of the one hears of the other."""
        made = Member(
            self.name,
            make,
            settings,
            self._tell,
            identity=self.identity,
            source=self.source,
            permit=self._permit,
            barred=self._barred,
            mask=self._mask,
            screen=self.screen,
        )
        made._learned.hearers = self._learned.hearers
        return made

    def __repr__(self) -> str:
        return f"<{self.name}: {self.state}{f', {clip(str(self.reason))}' if self.reason else ''}>"

    # State

    def _set(self, state: State, reason: MCPError | None = None) -> None:
        if reason is not None:
            cleaned(reason, self._mask)
        old, self.state, self.reason = self.state, state, reason
        if old != state or reason is not None:
            told = None if reason is None else str(reason)
            self._tell(Event(kind="server.state", server=self.name, old=old, new=state, reason=told, details=reason))

    @property
    def client(self) -> Client | None:
        """The client, while there is one."""
        return self._client

    @property
    def known(self) -> Mapping[Kind, dict[str, Any]]:
        """What it offered last."""
        return self._learned.known

    @property
    def asleep(self) -> bool:
        """Whether it is not running and was not asked to."""
        return self._client is None and (self._starting is None or self._starting.done())

    # Starting

    async def ready(self) -> Client:
        """The client, connected; all who wait share one start. What failed just now is not tried again at once."""
        if self._client is not None:
            return self._client
        starting = self._starting
        if starting is None or starting.done():
            self._check()
            starting = self._starting = asyncio.get_running_loop().create_task(self._start())
            starting.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await self._shared(starting)

    async def _shared(self, task: "asyncio.Task[T]") -> T:
        """What a task brings that others wait for too."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not _cancelling():
                raise CannotStart("it was stopped meanwhile").at(server=self.name) from None
            raise

    def _check(self) -> None:
        if why := self._barred():
            raise CannotStart(why).at(server=self.name)
        if self.state == "disabled":
            raise CannotStart("it is disabled").at(server=self.name)
        wait = self._not_before - asyncio.get_running_loop().time()
        if self._failures and wait > 0:
            why = f": {self.reason.args[0]}" if self.reason is not None and self.reason.args else ""
            raise CannotStart(f"it failed {self._failures} times and is tried again in {wait:.0f} s{why}").at(
                server=self.name,
                stderr=None if self.reason is None else self.reason.stderr,
                hint=f"host.restart({self.name!r}) tries at once",
            )

    async def _start(self) -> Client:
        self._set("starting")
        client: Client | None = None
        forwarding: Forwarding | None = None
        try:
            if self._permit is not None:
                await self._permit()
            async with asyncio.timeout(self.settings.start_time):
                made = self._make()
                client = await made if isinstance(made, Awaitable) else made
                client.on_connection = self._connection
                announced = self.shared
                forwarding = client.mountable(shared=True, announced=announced, screen=self.screen)
                await client.connect()
        except asyncio.CancelledError:
            await self._closed(client, forwarding)
            raise
        except Exception as exc:
            await self._closed(client, forwarding)
            failed = self._failed(self._told(exc))
            raise failed from failed.__cause__
        self._client, self._forwarding = client, forwarding
        self._announced = announced or stateless(client.revision or "")  # a stateless one is told with each request
        self._learned.stale()
        self._set("ready")
        self._hears = tells(client)
        if self._hears:
            self.spawn(self._hear(client))
        for wish in self._wishes:
            self.spawn(self._attend_again(wish))
        self._rest()
        return client

    def _told(self, exc: Exception) -> MCPError:
        match exc:
            case MCPError():
                return exc
            case TimeoutError():
                return RequestTimeout(f"it was not ready within {self.settings.start_time:g} s").at(server=self.name)
            case Unresolved():
                return CannotStart(str(exc)).at(server=self.name)
            case KeyError():
                return CannotStart(f"{clip(str(exc.args[0]))} is not set").at(server=self.name)
            case _:
                return CannotStart(clip(self._mask(str(exc)), 500) or type(exc).__name__).at(server=self.name)

    def _failed(self, exc: MCPError, *, lost: bool = False) -> MCPError:
        """Count it, and say when to try again: after a loss at once, then less and less often."""
        self._failures += 1
        first, most = self.settings.backoff
        steps = self._failures - 1 - (1 if lost else 0)
        wait = most if self._failures >= self.settings.give_up else min(first * 2**steps, most) if steps >= 0 else 0.0
        self._not_before = asyncio.get_running_loop().time() + wait
        self._set("needs_login" if isinstance(exc, AuthError | Unauthorized) else "failed", exc)
        return exc

    # While it runs

    def _connection(self, why: TransportError | None) -> None:
        """The client lost its server, or has one again: it looks after that itself, unless it goes on and on."""
        if self._client is None:
            return
        self._learned.stale()
        if why is None:
            self._set("ready")
            return
        self._failed(why, lost=True)
        if self._failures >= self.settings.give_up:
            self._let_go()
        else:
            self._set("degraded", why)

    @asynccontextmanager
    async def using(self) -> AsyncGenerator[Client]:
        """The client for one request; how that ends says how the server is doing."""
        self._uses += 1
        try:
            client = await self.ready()
            try:
                yield client
            except (AuthError, Unauthorized) as exc:
                self._set("needs_login", exc)
                raise
            except TransportError as exc:
                if self.state == "ready":
                    self._set("degraded", exc)
                raise
            self._failures = 0
            if self.state in ("degraded", "needs_login") and self._client is client:
                self._set("ready")
        finally:
            self._uses -= 1
            self._rest()

    async def _hear(self, client: Client) -> None:
        with contextlib.suppress(MCPError):
            async with client.listen() as changes:
                async for change in changes:
                    self._changed(change)
        self._hears = False  # from now on only looking tells

    def _changed(self, change: Change) -> None:
        self._learned.changed(change.kind, change.uri, change)

    def follow(self, hear: Hear) -> Callable[[], None]:
        """Hear of the server's changes; call what is returned to stop."""
        return self._learned.follow(hear)

    async def subscribe(self, uris: Sequence[str]) -> Callable[[], None]:
        """Hear of these resources too, after a new start as well; the server stays awake for it."""
        wish = Wish(tuple(uris))
        await self._attend(wish)
        self._wishes.append(wish)

        def stop() -> None:
            if wish in self._wishes:
                self._wishes.remove(wish)
                wish.task.cancel()

        return stop

    async def _attend(self, wish: Wish) -> None:
        listening = (await self.ready()).listen(tools=False, prompts=False, resources=False, uris=wish.uris)
        await listening.__aenter__()
        self._uses += 1
        wish.task = self.spawn(self._subscribed(listening))
        wish.task.add_done_callback(lambda _: self._released())

    async def _attend_again(self, wish: Wish) -> None:
        """What is wanted of a server that was started anew; nobody knows what was missed meanwhile."""
        await self._attend(wish)
        if wish not in self._wishes:
            wish.task.cancel()
        for uri in wish.uris:
            self._changed(Change("resource", uri, missed=True))

    async def _subscribed(self, listening: Any) -> None:
        with contextlib.suppress(MCPError):
            async with listening:
                async for change in listening:
                    self._changed(change)

    def _released(self) -> None:
        self._uses -= 1
        self._rest()

    # What it offers

    async def listed(self, kind: Kind) -> Mapping[str, Any]:
        """What it offers, by name or URI. Asleep, or out of reach: what it offered last."""
        if self.state == "disabled":
            return {}
        if kind in self.known and (self.asleep or self._is_fresh(kind)):
            return self.known[kind]
        try:
            return await self._looked(kind)
        except asyncio.CancelledError:
            self._learned.missed(kind)
            raise
        except MCPError:
            self._learned.missed(kind)
            if kind in self.known:
                return self.known[kind]
            raise

    async def current(self, kind: Kind) -> Mapping[str, Any]:
        """What it offers now, and not what it offered before it changed, slept or was started anew."""
        for _ in range(_LOOKS):  # what changes while it is told is told again
            if self._is_fresh(kind):
                break
            await self._looked(kind)
        return self.known[kind]

    async def _looked(self, kind: Kind) -> dict[str, Any]:
        """Its list; all who want it share one."""
        listing = self._listing.get(kind)
        if listing is None or listing.done():
            listing = self._listing[kind] = self.spawn(self._list(kind))
        return await self._shared(listing)

    def _is_fresh(self, kind: Kind) -> bool:
        since = self._learned.since(kind)
        if since is None or self._client is None:
            return False
        return self._hears or asyncio.get_running_loop().time() - since < self.settings.list_life

    async def _list(self, kind: Kind) -> dict[str, Any]:
        client = await self.ready()
        now, news = asyncio.get_running_loop().time(), self._learned.news(kind)
        try:
            async with asyncio.timeout(self.settings.list_time):
                await client.connect()  # what it offers is told when it opens
                found = await declared(client, kind)
        except TimeoutError:
            why = RequestTimeout(f"it did not list its {kind}s within {self.settings.list_time:g} s")
            raise self._degraded(why.at(server=self.name)) from None
        except MCPError as exc:
            raise self._degraded(exc) from exc.__cause__
        self._learned.learn(kind, found, now, news)
        self._rest()
        return found

    def _degraded(self, exc: MCPError) -> MCPError:
        if self.state == "ready":
            self._set("needs_login" if isinstance(exc, AuthError | Unauthorized) else "degraded", exc)
        return exc

    # For a gateway

    async def forwarding(self) -> Forwarding:
        """The server as something to forward requests to, by one who uses it."""
        await self.ready()
        if not self._announced and self._undisturbed:
            await self.stop()  # what it was told when it was started, of this host alone, it is told anew
            await self.ready()
        assert self._forwarding is not None
        return self._forwarding

    @property
    def uses(self) -> int:
        """How many calls and subscriptions use it now."""
        return self._uses

    @property
    def _undisturbed(self) -> bool:
        """Whether it can be started anew at nobody's cost but that of one who uses it."""
        return self._uses <= 1 and all(one.done() for one in self._listing.values())

    async def answer(self, questions: Mapping[str, Any]) -> dict[str, Any]:
        """Answers to what the server asks within a result, as its client gives them."""
        return await (await self.ready()).answer(questions)

    # Stopping

    def _rest(self) -> None:
        """Stop it after a while without use."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        wait = self.settings.idle_stop
        if wait is not None and not self._uses and self._client is not None:
            self._idle = asyncio.get_running_loop().call_later(wait, lambda: self.spawn(self._sleep()))

    async def _sleep(self) -> None:
        if not self._uses and self._client is not None:
            await self.stop()

    async def stop(self) -> None:
        """Leave the server, in bounded time; it is started again when it is needed."""
        if self._idle is not None:
            self._idle.cancel()
        starting, self._starting = self._starting, None
        self._let_go()
        tasks = {one for one in self._tasks if one is not asyncio.current_task()}
        if starting is not None and not starting.done():
            tasks.add(starting)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_SETTLED)
        if self._closing:
            await asyncio.wait(tuple(self._closing))
        if self.state != "disabled":
            self._set("idle")

    async def restart(self) -> None:
        """Start it anew, now, however often it failed before."""
        await self.stop()
        self._failures, self._not_before = 0, 0.0
        if self.state == "disabled":
            self._set("idle")
        await self.ready()

    async def disable(self) -> None:
        """Stop it, and leave it so."""
        await self.stop()
        self._set("disabled")

    def _let_go(self) -> None:
        """Begin to leave the server; whoever uses it next gets a new client."""
        client, self._client = self._client, None
        forwarding, self._forwarding = self._forwarding, None
        if client is not None:
            client.on_connection = None
            task = asyncio.get_running_loop().create_task(self._close(client, forwarding))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _closed(self, client: Client | None, forwarding: Forwarding | None) -> None:
        if client is not None:
            client.on_connection = None
            await asyncio.shield(self._close(client, forwarding))

    async def _close(self, client: Client, forwarding: Forwarding | None) -> None:
        try:
            async with asyncio.timeout(client.timeouts.close + _SETTLED):
                await (client.close() if forwarding is None else forwarding.stop())
        except (MCPError, TimeoutError) as exc:
            log.warning("%s did not leave in an orderly way: %s", self.name, exc)

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Work that ends with the server, if not before."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None and not isinstance(exc, MCPError):
            log.error("something failed while %s was looked after", self.name, exc_info=exc)


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
