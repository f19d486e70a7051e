"""Journal: what a host did and why, one JSON object a line, in the format of recordings.

Append only, by several processes at once; secrets masked, arguments by their shape unless values are wanted; ASCII, so
that nothing a server says acts on the terminal that shows it. A full file is moved aside, the oldest forgotten.
"""

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from dovetail.errors import clip
from dovetail.host.ledger import locked
from dovetail.host.policy import Decision, Question
from dovetail.host.secrets import Secrets
from dovetail.protocol.channel import Headers
from dovetail.protocol.limits import MiB
from dovetail.protocol.recording import FORMAT, Event, Frame, Heading, Tap, To, frame, read_all
from dovetail.wire.codec import encode, plain
from dovetail.wire.shape import replace

log = logging.getLogger("dovetail")

# Counted from there, the times of all processes and runs are in one order.
_BEGAN: Final = "1970-01-01T00:00:00Z"
_DEEPEST: Final = 6
_MEMBERS: Final = 50
_LONGEST: Final = 16 * 1024  # of the values of one call
_TEXT: Final = 1000

_TYPES: Final = {bool: "boolean", int: "integer", float: "number"}


class Journal:
    """One file, and `keep` older ones beside it, each of `max_bytes` at most.

    `values` writes what arguments are, not only their shape. `secrets` masks what it has looked up.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        values: bool = False,
        secrets: Secrets | None = None,
        max_bytes: int = 8 * MiB,
        keep: int = 5,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = Path(path)
        self.lost = 0  # lines that could not be written
        self._values = values
        self._masks = [(secrets or Secrets({})).mask]
        self._max_bytes = max_bytes
        self._keep = keep
        self._clock = clock
        self._lock = threading.Lock()
        self._handle = -1

    def call(
        self, question: Question, outcome: str, ms: float, *, error: str = "", result_bytes: int | None = None
    ) -> None:
        """A call that is over."""
        self.event(
            "call",
            question.server,
            **_about(question),
            arguments=self._arguments(question.arguments),
            outcome=outcome,
            ms=round(ms, 1),
            error=error or None,
            result_bytes=result_bytes,
        )

    def decision(self, question: Question, decision: Decision) -> None:
        """What the policy said, and why."""
        self.event(
            "decision",
            question.server,
            **_about(question),
            arguments=self._arguments(question.arguments),
            verdict=decision.verdict,
            tier=decision.tier,
            reason=decision.reason,
        )

    def consent(self, question: Question, answer: str, *, reason: str | None = None) -> None:
        """What the user, or whoever speaks for the user, answered."""
        self.event("consent", question.server, **_about(question), answer=answer, reason=reason)

    def state(self, server: str, old: str, new: str, reason: str | None = None) -> None:
        """A server that is in another state now."""
        self.event("state", server, old=old, new=new, reason=reason)

    def event(self, event: str, server: str = "", **facts: Any) -> None:
        """Anything else that happened; facts that are None are left out."""
        told = self._masked({name: value for name, value in facts.items() if value is not None})
        bounded = {name: _bounded(value) for name, value in told.items()}  # a secret that was cut could not be found
        self._write(Event(event=event, at=self._now(), server=server, facts=bounded))

    def mask(self, secrets: Secrets) -> None:
        """Mask what somebody else has looked up, too."""
        self._masks.append(secrets.mask)

    def _masked(self, value: Any) -> Any:
        for mask in self._masks:
            value = mask(value)
        return value

    def tap(self, server: str) -> Tap:
        """Where a client's messages can be sent to be kept here too, values and all, secrets masked."""

        def keep(to: To, data: bytes, headers: Headers) -> None:
            made = frame(self._now(), to, data, headers)
            text = None if made.text is None else self._masked(made.text)
            message = self._masked(made.message) if made.text is None else made.message
            self._write(replace(made, server=server, message=message, text=text))

        return keep

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._let_go()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _now(self) -> float:
        return round(self._clock(), 6)

    def _arguments(self, arguments: Mapping[str, Any] | None) -> Any:
        if arguments is None:
            return None
        if not self._values:
            return shape(arguments)
        return dict(arguments) if len(encode(arguments)) <= _LONGEST else {"…": shape(arguments)}

    def _write(self, part: Event | Frame) -> None:
        line = _ascii(part)
        with self._lock:
            try:
                self._open(len(line))
                _append(self._handle, line)
            except OSError as exc:
                if not self.lost:
                    log.error("the journal cannot be written: %s", exc)
                self.lost += 1
                self._let_go()

    def _open(self, coming: int) -> None:
        """Have the file that is there now, with room for one line more."""
        if self._handle >= 0 and not self._current():
            self._let_go()
        if self._handle < 0:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._handle = _begun(self.path)
        if os.fstat(self._handle).st_size + coming > self._max_bytes:
            with locked(self.path):
                if self._current():  # otherwise another process was faster
                    _rotate(self.path, self._keep)
                self._let_go()
                self._handle = _begun(self.path)

    def _current(self) -> bool:
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        mine = os.fstat(self._handle)
        return (there.st_ino, there.st_dev) == (mine.st_ino, mine.st_dev)

    def _let_go(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def read_journal(path: str | Path) -> Iterator[Heading | Frame | Event]:
    """Everything that a journal and its older files hold, oldest first."""
    place = Path(path)
    older = sorted(place.parent.glob(f"{place.name}.[0-9]*"), key=lambda one: -int(one.suffix[1:]))
    for one in [*older, place]:
        with contextlib.suppress(FileNotFoundError):
            yield from read_all(one.read_bytes().splitlines())


def shape(value: Any, depth: int = 0) -> Any:
    """What a value looks like, without what it says: names, types, lengths."""
    if isinstance(value, str):
        return f"string({len(value)})"
    if isinstance(value, Mapping):
        if depth == _DEEPEST:
            return f"object({len(value)})"
        named = {clip(str(name), 64): shape(one, depth + 1) for name, one in [*value.items()][:_MEMBERS]}
        return named | ({"…": len(value)} if len(value) > _MEMBERS else {})
    if isinstance(value, list | tuple):
        return [f"array({len(value)})", *(shape(one, depth + 1) for one in value[:1] if depth < _DEEPEST)]
    return _TYPES.get(type(value), "null")


def _about(question: Question) -> dict[str, Any]:
    return {"kind": question.kind, "tool": question.tool or None}


def _bounded(value: Any) -> Any:
    return value if not isinstance(value, str) or len(value) <= _TEXT else value[: _TEXT - 1] + "…"


def _ascii(part: Event | Frame | Heading) -> bytes:
    return json.dumps(plain(part), separators=(",", ":")).replace("\x7f", "\\u007f").encode("ascii") + b"\n"


def _begun(path: Path) -> int:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if os.fstat(handle).st_size == 0:  # two processes may both say so, which costs a line
        _append(handle, _ascii(Heading(recording=FORMAT, began=_BEGAN)))
    return handle


def _append(handle: int, line: bytes) -> None:
    """In one go, so that lines of several processes do not mix."""
    if os.write(handle, line) != len(line):
        raise OSError("the disk is full")


def _rotate(path: Path, keep: int) -> None:
    for number in range(keep, 0, -1):
        older = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        with contextlib.suppress(FileNotFoundError):
            os.replace(older, path.with_name(f"{path.name}.{number}"))
    if keep == 0:
        path.unlink(missing_ok=True)
