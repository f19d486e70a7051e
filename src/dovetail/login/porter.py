"""Porter: stands at the door of a guarded server. Has the guard's flows run, and gives out the server's metadata."""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from dovetail.auth.claims import Turned
from dovetail.auth.guard import Guard, Head, guard_for
from dovetail.auth.place import Place, host_name, public, seen
from dovetail.errors import Denied
from dovetail.login.unattended import Unattended
from dovetail.protocol.http import Refusal
from dovetail.protocol.principal import Principal
from dovetail.transports.request import Request, Scope
from dovetail.wire.codec import encode

log = logging.getLogger("dovetail")

_WELL_KNOWN: Final = "/.well-known/"
_PACE: Final = 60.0  # seconds between two warnings


class Porter:
    """The guard of one endpoint, at work."""

    def __init__(self, guard: Guard, path: str, public_url: str | None, needed: Callable[[], Sequence[str]]) -> None:
        self._guard = guard
        self._needed = needed  # the scopes of what the server offers now
        self._path = "/" + path.strip("/")
        self._place = None if public_url is None else public(public_url, self._path)
        self._unattended = Unattended()
        self._told = -_PACE

    def tells(self, path: str, scope: Scope) -> bool:
        """Whether clients look for the metadata at this path."""
        root = scope.get("root_path") or ""
        if _WELL_KNOWN not in scope["path"] and _WELL_KNOWN not in root:
            return False
        place = self._place or seen("http", "here", None, root, self._path)  # of which only the path matters
        return place.describes(path) or place.describes("/" + scope["path"].strip("/"))

    def document(self, path: str, request: Request) -> bytes | None:
        """The metadata, at the paths where clients look for it."""
        if not self.tells(path, request.scope):
            return None
        if request.method not in ("GET", "HEAD"):
            raise Refusal(405, f"{request.method} is not served here", [(b"allow", b"GET")])
        return encode(self._guard.document(self._placed(request).resource, self._needed()))

    async def identify(self, path: str, request: Request) -> Principal:
        """Who is calling."""
        place = self._placed(request)
        request.metadata = place.metadata if self._guard.leads else None
        request.guard_scopes = self._guard.scopes_for
        head = Head(
            method=request.method,
            url=place.at(path),
            authorization=_text(request.headers.get(b"authorization")),
            dpop=_text(request.headers.get(b"dpop")),
            resource=place.resource,
            metadata=place.metadata,
        )
        try:
            return await self._unattended.run(self._guard.admit(head))
        except Denied as denied:
            self._tell(denied)
            raise

    def _tell(self, denied: Denied) -> None:
        """Say in the log what callers are not told: what an operator compares with their settings."""
        cause, now = denied.__cause__, time.monotonic()
        words = f"{cause}: {cause.why}" if isinstance(cause, Turned) and cause.why else str(cause or denied)
        if denied.status != 503:
            log.debug("a caller is turned away: %s", words)
        elif now >= self._told + _PACE:
            self._told = now
            log.warning("callers are turned away: %s", words)

    def _placed(self, request: Request) -> Place:
        if self._place is not None:
            return self._place
        scope = request.scope
        server = scope.get("server") or (None, None)
        host = host_name(request.headers.get(b"host", b""))
        return seen(scope.get("scheme", "http"), host, server[1], scope.get("root_path") or "", self._path)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._unattended.close()


def porter_for(
    auth: Any,
    path: str,
    public_url: str | None,
    allowed_hosts: Collection[str],
    needed: Callable[[], Sequence[str]] = tuple,
) -> Porter:
    """The porter for what an author gave as `auth`."""
    if public_url is None and allowed_hosts:
        raise ValueError(
            "a guarded server must know its address to tell its tokens from others: pass public_url= instead of, or "
            "beside, allowed_hosts="
        )
    return Porter(guard_for(auth), path, public_url, needed)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
