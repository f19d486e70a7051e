"""Count the bytes in the streams of one worker. If there are too many, choose the streams to delete.

The back end deletes a stream when its time to live ends. The budget then stops counting the stream.
"""

from collections import OrderedDict

from dovetail.protocol.shared_state import SharedStateUnavailable, StreamLimits


class StreamBudget:
    """Keeps the total size of a worker's streams below a limit."""

    def __init__(self, limits: StreamLimits) -> None:
        self._limits = limits
        self._total = 0
        # The size and the expiry time of each stream. The stream that has been idle longest is first.
        self._open: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._ended: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def add(self, stream: str, size: int, now: float, *, is_last: bool) -> list[str]:
        """Count an event, and return the streams to delete.

        Raises:
            SharedStateUnavailable: the open streams alone exceed the limit, so the event cannot be stored.
        """
        self._forget_expired(now)
        evicted: list[str] = []
        while self._total + size > self._limits.max_total_bytes and self._ended:
            name, (freed, _) = self._ended.popitem(last=False)
            self._total -= freed
            evicted.append(name)
        if self._total + size > self._limits.max_total_bytes:
            raise SharedStateUnavailable(f"the open streams have more than {self._limits.max_total_bytes} bytes")
        old_size, _ = self._open.pop(stream, (0, 0.0))
        new_size = min(old_size + size, self._limits.max_bytes)
        self._total += new_size - old_size
        (self._ended if is_last else self._open)[stream] = new_size, now + self._limits.get_ttl(is_last=is_last)
        return evicted

    def forget(self, stream: str) -> None:
        """Remove a stream that was deleted."""
        size, _ = self._open.pop(stream, None) or self._ended.pop(stream, (0, 0.0))
        self._total -= size

    def _forget_expired(self, now: float) -> None:
        for streams in (self._open, self._ended):
            while streams and (entry := next(iter(streams.values())))[1] <= now:
                streams.popitem(last=False)
                self._total -= entry[0]
