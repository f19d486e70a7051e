"""Faults, and the messages between a client and a server that they affect.

This module only selects the messages. `fault_proxy` injects the faults.
"""

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from dovetail.protocol.interfaces.message_tap import Receiver

Action: TypeAlias = Literal["drop", "delay", "corrupt", "kill"]
MessagePredicate: TypeAlias = Callable[[dict[str, Any]], bool]

UNLIMITED: Final = 1 << 62


class Fault:
    """A planned fault. `count` is the number of times that the fault has happened."""

    action: Action
    count: int


class PlannedFault(Fault):
    """A fault that affects only the messages that match its conditions."""

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
            raise ValueError("nth= and times= must be at least 1")
        if to not in get_args(Receiver):
            raise ValueError(f"to= must be 'server' or 'client', not {to!r}")
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
        """Count a message and return whether the fault affects it. For a response, pass the method of its request."""
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
    """Applies faults to the messages of a connection, and remembers the first error."""

    def __init__(self) -> None:
        self.faults: list[PlannedFault] = []
        # Maps the receiver and ID of each open request to its method.
        self._methods: dict[tuple[Receiver, Any], str] = {}
        self._failure: Exception | None = None

    def record_failure(self, exc: Exception) -> None:
        """Store the first exception that a fault raised, for example in its `when` function."""
        self._failure = self._failure or exc

    def raise_failure(self) -> None:
        """Raise the stored exception, if any, and forget it."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def find_due(self, to: Receiver, data: bytes) -> list[PlannedFault]:
        """Return the faults that affect a message."""
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
    """The faults of one test. Add faults before the client runs or while it runs.

    Select the messages with `to`, `method` and `when`. The first fault happens at the `nth` matching message, and
    `times` is the number of messages that are affected. For a response, `method` is the method of its request.
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
        """Close the connection instead of forwarding the message.

        Args:
            to: The receiver of the message: "client" or "server".
            method: Only requests with this method and their responses match. If None, all messages match.
            when: A function that takes the message. The message matches only if it returns True.
            nth: The first matching message that is affected, beginning with 1.
            times: The number of messages that are affected.
        """
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
        """Forward the message later. The messages after it wait, too."""
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
        """Change some bytes of the message, so that it is invalid."""
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
        """Kill the server instead of forwarding the message.

        A server in another process gets SIGKILL. A server in the process of the test loses its sockets, connections and
        sessions.

        Args:
            restart: If False, the server stays stopped.
        """
        return self._add(PlannedFault("kill", to=to, method=method, when=when, nth=nth, times=times, restart=restart))

    def _add(self, fault: PlannedFault) -> Fault:
        self._plan.faults.append(fault)
        return fault

    def clear(self) -> None:
        """Remove all faults."""
        self._plan.faults.clear()


def corrupt_message(data: bytes, message: bytes) -> bytes:
    """Make a message in `data` invalid. The number of bytes stays the same."""
    start = data.rindex(message)
    middle = start + len(message) // 2
    return data[:start] + b"\xff" + data[start + 1 : middle] + b"\x00" + data[middle + 1 :]


def get_plan(faults: Faults) -> FaultPlan:
    """Return the fault plan of a `Faults` object."""
    return faults._plan  # pyright: ignore[reportPrivateUsage]
