"""Faults: which messages between a client and a server they hit, and what happens to them.

Only decides; what stands between the two ends and does it is in `between`.
"""

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from dovetail.protocol.recording_format import Receiver

Action: TypeAlias = Literal["drop", "delay", "corrupt", "kill"]
MessagePredicate: TypeAlias = Callable[[dict[str, Any]], bool]

UNLIMITED: Final = 1 << 62


class Fault:
    """One fault of `Faults`. `count` is how often it has happened."""

    action: Action
    count: int


class PlannedFault(Fault):
    """A fault and the messages it happens to."""

    def __init__(
        self,
        action: Action,
        *,
        to: Receiver,
        nth: int,
        times: int,
        method: str | None,
        when: MessagePredicate | None,
        seconds: float = 0.0,
        restart: bool = True,
    ) -> None:
        if nth < 1 or times < 1:
            raise ValueError("nth and times count from 1")
        if to not in get_args(Receiver):
            raise ValueError(f"to must be 'server' or 'client', not {to!r}")
        self.action = action
        self.seconds = seconds
        self.restart = restart
        self.count = 0
        self._to = to
        self._nth = nth
        self._max_count = times
        self._method = method
        self._when = when
        self._match_count = 0

    def matches(self, to: Receiver, message: dict[str, Any], method: str | None) -> bool:
        """Return whether it happens to this message, and count it. `method` is the method of the request."""
        if to != self._to or (self._method is not None and method != self._method):
            return False
        if self._when is not None and not self._when(message):
            return False
        self._match_count += 1
        if self._match_count < self._nth or self.count >= self._max_count:
            return False
        self.count += 1
        return True


class FaultPlan:
    """Decides which faults happen to a message, and remembers what went wrong in a fault."""

    def __init__(self) -> None:
        self.faults: list[PlannedFault] = []
        self._methods: dict[tuple[Receiver, Any], str] = {}  # of requests, by receiver and id
        self._failure: Exception | None = None

    def record_failure(self, exc: Exception) -> None:
        """Remember the first exception that a fault raised, such as one of its `when`."""
        self._failure = self._failure or exc

    def raise_failure(self) -> None:
        """Raise what went wrong, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def find_due(self, to: Receiver, data: bytes) -> list[PlannedFault]:
        """Return the faults that happen to a message."""
        try:
            message: Any = msgspec.json.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return []
        if not isinstance(message, dict):
            return []
        method = self._find_method(to, message)
        return [fault for fault in self.faults if fault.matches(to, message, method)]

    def _find_method(self, to: Receiver, message: dict[str, Any]) -> str | None:
        method, id = message.get("method"), message.get("id")
        if isinstance(method, str):
            if isinstance(id, int | str):
                self._methods[to, id] = method
            return method
        request_to: Receiver = "client" if to == "server" else "server"
        return self._methods.get((request_to, id)) if isinstance(id, int | str) else None


class Faults:
    """The faults of one test. Add them before or while the client is at work.

    Each happens to the `nth` message that goes `to` the server or to the client, belongs to a request of `method` and
    satisfies `when`, and to as many after it as `times` says. An answer belongs to the method it answers.
    """

    def __init__(self) -> None:
        self._plan = FaultPlan()

    def drop(
        self,
        *,
        to: Receiver = "client",
        method: str | None = None,
        when: MessagePredicate | None = None,
        nth: int = 1,
        times: int = 1,
    ) -> Fault:
        """Close the connection instead of passing the message on: to the client, the work was done in vain."""
        return self._add(PlannedFault("drop", to=to, method=method, when=when, nth=nth, times=times))

    def delay(
        self,
        seconds: float,
        *,
        to: Receiver = "client",
        method: str | None = None,
        when: MessagePredicate | None = None,
        nth: int = 1,
        times: int = UNLIMITED,
    ) -> Fault:
        """Pass the message on later, and what follows it after it."""
        return self._add(PlannedFault("delay", to=to, method=method, when=when, nth=nth, times=times, seconds=seconds))

    def corrupt(
        self,
        *,
        to: Receiver = "client",
        method: str | None = None,
        when: MessagePredicate | None = None,
        nth: int = 1,
        times: int = 1,
    ) -> Fault:
        """Pass the message on with some of its bytes changed, so that it is no message any more."""
        return self._add(PlannedFault("corrupt", to=to, method=method, when=when, nth=nth, times=times))

    def kill(
        self,
        *,
        to: Receiver = "client",
        method: str | None = None,
        when: MessagePredicate | None = None,
        nth: int = 1,
        times: int = 1,
        restart: bool = True,
    ) -> Fault:
        """Kill the server instead of passing the message on.

        A process gets SIGKILL. A server in the test's own process loses its sockets, connections and sessions; without
        `restart` nobody listens there any more.
        """
        return self._add(PlannedFault("kill", to=to, method=method, when=when, nth=nth, times=times, restart=restart))

    def _add(self, fault: PlannedFault) -> Fault:
        self._plan.faults.append(fault)
        return fault

    def clear(self) -> None:
        """Remove all faults."""
        self._plan.faults.clear()


def corrupt_message(data: bytes, message: bytes) -> bytes:
    """The same number of bytes, with a message in them that cannot be read."""
    start = data.rindex(message)
    middle = start + len(message) // 2
    return data[:start] + b"\xff" + data[start + 1 : middle] + b"\x00" + data[middle + 1 :]


def get_plan(faults: Faults) -> FaultPlan:
    """Return the plan behind the faults of a test."""
    return faults._plan  # pyright: ignore[reportPrivateUsage]
