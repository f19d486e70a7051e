"""Count the bytes in the streams of one worker. If there are too many, choose the streams to delete.

The back end deletes a stream when its time to live ends. The budget then stops counting the stream.
"""

from collections import OrderedDict

from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable, StreamLimits
from dovetail.wire.base import Struct


class _CountedStream(Struct):
    size: int
    last_number: int
    expires_at: float


class StreamBudget:
    """Keeps the total size of a worker's streams below a limit."""

    def __init__(self, limits: StreamLimits) -> None:
        self._limits = limits
        self._total = 0
        # In both, the stream that has been idle longest is first.
        self._open: OrderedDict[str, _CountedStream] = OrderedDict()
        self._ended: OrderedDict[str, _CountedStream] = OrderedDict()

    def find_evictions(self, stream: str, number: int, size: int, now: float) -> list[str]:
        """Return the streams to delete before an event is stored. Call `forget` for each deleted stream.

        Raises:
            SharedStateUnavailable: the open streams alone exceed the limit, so the event cannot be stored.
        """
        self._forget_expired(now)
        counted = self._open.get(stream) or self._ended.get(stream)
        if counted is not None and number <= counted.last_number:
            return []  # The event is repeated and already stored.
        excess = self._total + size - self._limits.max_total_bytes
        evicted: list[str] = []
        for name, ended in self._ended.items():
            if excess <= 0:
                break
            if name != stream:
                evicted.append(name)
                excess -= ended.size
        if excess > 0:
            raise SharedStateUnavailable(f"the open streams have more than {self._limits.max_total_bytes} bytes")
        return evicted

    def count(self, stream: str, number: int, size: int, now: float, *, is_last: bool) -> None:
        """Count an event that was stored. A repeated event counts once."""
        counted = self._open.get(stream) or self._ended.get(stream)
        if counted is not None and number <= counted.last_number:
            return
        self.forget(stream)
        # At least the newest event is stored.
        new_size = max(size, min((0 if counted is None else counted.size) + size, self._limits.max_bytes))
        self._total += new_size
        expires_at = now + self._limits.get_ttl(is_last=is_last)
        (self._ended if is_last else self._open)[stream] = _CountedStream(new_size, number, expires_at)

    def list_open(self, now: float) -> list[str]:
        """Return the streams that have not ended and must still be stored."""
        self._forget_expired(now)
        return list(self._open)

    def forget(self, stream: str) -> None:
        """Remove a stream that was deleted, or that another worker has ended."""
        counted = self._open.pop(stream, None) or self._ended.pop(stream, None)
        if counted is not None:
            self._total -= counted.size

    def _forget_expired(self, now: float) -> None:
        for streams in (self._open, self._ended):
            while streams and next(iter(streams.values())).expires_at <= now:
                _, counted = streams.popitem(last=False)
                self._total -= counted.size
