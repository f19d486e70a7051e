"""Subscriptions to the resources of remote mounted servers.

Clients that use a session (protocol version 2025-11 or older) subscribe with `watch`. Sessions of one principal share
the subscription to a resource. In later versions, a subscription lasts as long as its request.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from dovetail.errors import MCPError, ServerBusy, TransportError
from dovetail.log import log
from dovetail.mounts.local_server import LocalServer
from dovetail.mounts.resolver import LIST_TIMEOUT_S, Mount, MountResolver, format_failure
from dovetail.protocol.limits import CallerBusy
from dovetail.protocol.principal import Principal
from dovetail.protocol.uri_key import uri_key

_MAX_WATCHES: Final = 4096
_MAX_WATCHES_PER_ORIGIN: Final = 1024  # the maximum number of subscriptions for one principal or address


class RemoteSubscription:
    """A subscription to resources of remote servers."""

    def __init__(self, uris: Sequence[str], principal: Principal | None) -> None:
        self.uris = uris
        self.principal = principal
        self.holder_count = 0  # the number of sessions that share the subscription
        self._stop_callbacks: list[Callable[[], None]] = []
        self._is_ended = False

    def add_stop_callback(self, stop: Callable[[], None]) -> None:
        """Add a function that stops the updates of one server.

        If the subscription has already ended, the function is called immediately.
        """
        self._stop_callbacks.append(stop)
        if self._is_ended:
            self.end()

    def end(self) -> None:
        self._is_ended = True
        stop_callbacks, self._stop_callbacks = self._stop_callbacks, []
        for stop in stop_callbacks:
            stop()


class RemoteSubscriptions:
    """A server's subscriptions to the resources of remote servers that it mounts."""

    def __init__(self, mounts: Sequence[Mount], resolver: MountResolver, report_update: Callable[[str], None]) -> None:
        self._mounts = mounts
        self._resolver = resolver
        # This function sends the update of a resource to the clients of this server.
        self._report_update = report_update
        self._open_subscriptions: set[RemoteSubscription] = set()
        # A key is a normalized URI and the principal of the sessions that share the subscription.
        self._watched: dict[tuple[str, Principal | None], RemoteSubscription] = {}
        self._counts_by_origin: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, uri: str, principal: Principal | None, origin: str | None) -> Callable[[], None] | None:
        """Subscribe a session to a resource, and return a function that ends the subscription.

        Return None if the resource cannot belong to a remote server.

        Raises:
            ServerBusy: there are too many subscriptions, in total or for this principal or address.
        """
        stops: list[Callable[[], None]] = []
        try:
            for mount, inner_uri in self._resolver.find_candidates("resource", uri):
                if mount.target.is_remote:
                    stops.append(self._watch_remote(uri, principal, origin))
                    break
                if isinstance(mount.target, LocalServer):
                    stop = mount.target.server.watch_resource(inner_uri, principal, origin)
                    stops += [] if stop is None else [stop]
        except ServerBusy:
            _call_all(stops)
            raise
        return (lambda: _call_all(stops)) if stops else None

    def _watch_remote(self, uri: str, principal: Principal | None, origin: str | None) -> Callable[[], None]:
        if origin is not None and self._counts_by_origin[origin] >= _MAX_WATCHES_PER_ORIGIN:
            raise CallerBusy(f"Too many subscriptions. The limit is {_MAX_WATCHES_PER_ORIGIN}")
        key = uri_key(uri), principal
        subscription = self._watched.get(key)
        if subscription is None:
            if len(self._watched) >= _MAX_WATCHES:
                raise ServerBusy("Too many subscriptions")
            subscription = self._watched[key] = RemoteSubscription([uri], principal)
            self._start_task(self._open_watched(key, subscription))
        subscription.holder_count += 1
        if origin is not None:
            self._counts_by_origin[origin] += 1

        def stop() -> None:
            subscription.holder_count -= 1
            if origin is not None:
                self._counts_by_origin[origin] -= 1
                if not self._counts_by_origin[origin]:
                    del self._counts_by_origin[origin]
            if not subscription.holder_count:
                self._drop_watched(key, subscription)

        return stop

    async def _open_watched(self, key: tuple[str, Principal | None], subscription: RemoteSubscription) -> None:
        if not await self.open(subscription):
            # The next session that subscribes to the resource will try again.
            self._drop_watched(key, subscription)

    def _drop_watched(self, key: tuple[str, Principal | None], subscription: RemoteSubscription) -> None:
        if self._watched.get(key) is subscription:
            del self._watched[key]
        self.end(subscription)

    async def open(self, subscription: RemoteSubscription) -> set[str]:
        """Subscribe to resources on all remote mounts that may have them. Return the accepted URIs."""
        self._open_subscriptions.add(subscription)
        accepted_uris = await asyncio.gather(*(self._subscribe(mount, subscription) for mount in tuple(self._mounts)))
        return {uri for uris in accepted_uris for uri in uris}

    def end(self, subscription: RemoteSubscription) -> None:
        self._open_subscriptions.discard(subscription)
        subscription.end()

    def end_watched(self) -> None:
        """End the subscriptions of all client sessions."""
        for key, subscription in tuple(self._watched.items()):
            self._drop_watched(key, subscription)

    def add_mount(self, mount: Mount) -> None:
        """Repeat all open subscriptions on a newly mounted server."""
        for subscription in tuple(self._open_subscriptions):
            self._start_task(self._resubscribe(mount, subscription))

    async def _resubscribe(self, mount: Mount, subscription: RemoteSubscription) -> None:
        """Repeat a subscription on a new mount. Report each resource as updated, because updates may have been lost."""
        for uri in await self._subscribe(mount, subscription):
            self._report_update(uri)

    async def _subscribe(self, mount: Mount, subscription: RemoteSubscription) -> list[str]:
        """Subscribe to the resources of one remote server, and return the URIs that the server accepted.

        If the server does not respond, log this and return an empty list, so that other servers are not affected.
        """
        inner_uris: dict[str, str] = {}  # by URI key
        uris_by_key: dict[str, list[str]] = {}
        for uri in subscription.uris if mount.target.is_remote else ():
            inner_uri = mount.name_map.to_inner("resource", uri)
            if inner_uri is not None:
                inner_uris.setdefault(uri_key(inner_uri), inner_uri)
                uris_by_key.setdefault(uri_key(inner_uri), []).append(uri)
        if not inner_uris or (mount.is_unavailable and not mount.can_retry):
            return []
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                watch = await mount.target.watch_resources([*inner_uris.values()], subscription.principal)
        except (MCPError, TimeoutError) as exc:
            if isinstance(exc, TimeoutError | TransportError):
                mount.mark_unavailable(exc)
            log.warning("cannot subscribe to updates of %s: %s", mount.target.name, format_failure(exc))
            return []
        subscription.add_stop_callback(watch.stop)
        # The accepted URI may be spelled differently from the requested URI.
        accepted_keys = dict.fromkeys(map(uri_key, watch.uris))
        return [uri for key in accepted_keys for uri in uris_by_key.get(key, ())]

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _call_all(stops: list[Callable[[], None]]) -> None:
    """Call each function and remove it from the list, so that no function is called twice."""
    while stops:
        stops.pop()()
