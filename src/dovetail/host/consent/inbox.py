"""Inbox: questions in a file, which can be answered later or by another process.

Each question has a ticket, and may have a call to make after the answer. If a caller waits, the caller gets the answer.
Otherwise the process that answers makes the call. Each answer is used once.
"""

import asyncio
import contextlib
import json
import secrets
import sqlite3
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dovetail.error_context import clip
from dovetail.errors import InputRequestError
from dovetail.host.consent.consent import (
    RENAMED_KINDS,
    Allow,
    AllowWithChanges,
    AnswerLater,
    ConsentAnswer,
    ConsentHandler,
    ConsentRequest,
    Deny,
)
from dovetail.protocol.sealer import Sealer
from dovetail.storage import Migrations, open_database
from dovetail.wire.base import Struct, field
from dovetail.wire.codec import convert, encode, to_plain

_DEFAULT_TTL_S: Final = 7 * 86400.0
_POLL_INTERVAL_S: Final = 0.2  # how often to check whether another process has answered

_SCHEMA: Final = """
CREATE TABLE asked (
    ticket TEXT PRIMARY KEY, request BLOB NOT NULL, work BLOB, answer BLOB, asked REAL NOT NULL, until REAL NOT NULL
) WITHOUT ROWID
"""


def _use_current_names(database: "sqlite3.Connection") -> None:
    """Rename fields and kinds of format 1."""
    answer_names = {"expires": "expires_in", "exact": "exact_arguments", "dismissed": "cancelled"}
    for ticket, request_data, answer_data in database.execute("SELECT ticket, request, answer FROM asked").fetchall():
        request: dict[str, Any] = json.loads(request_data)
        request["kind"] = RENAMED_KINDS.get(request["kind"], request["kind"])
        answer = None if answer_data is None else json.loads(answer_data)
        if answer is not None and answer["kind"] != "Edit":  # an "Edit" contains values that the user entered
            answer["value"] = {answer_names.get(name, name): value for name, value in answer["value"].items()}
        database.execute(
            "UPDATE asked SET request = ?, answer = ? WHERE ticket = ?",
            (encode(request), None if answer is None else encode(answer), ticket),
        )


_MIGRATIONS: Final[Migrations["sqlite3.Connection"]] = (_use_current_names,)


class DeferredCall(Struct, frozen=True, kw_only=True):
    """A tool call that continues after the user has answered."""

    server: str
    identity: str
    tool: str
    arguments: dict[str, Any]
    fingerprint: str = ""
    pending: str | None = None  # the interrupted request
    questions: dict[str, Any] = field(default_factory=dict[str, Any])
    # answers that the host gave without asking the user
    answers: dict[str, Any] = field(default_factory=dict[str, Any])


class PendingConsent(Struct, frozen=True, kw_only=True):
    """A question that waits for an answer."""

    ticket: str  # pass this ticket to `Host.answer`
    request: ConsentRequest  # the question
    created_at: float  # when the question was asked, in seconds since 1970
    expires_at: float  # when the question expires, in seconds since 1970
    is_durable: bool  # True if the question can be answered after its process has ended


class CallAwaitingConsent(Struct, frozen=True, kw_only=True):
    """A call that needs an answer from the user. `Host.call` returns it instead of a result."""

    ticket: str  # pass this ticket to `Host.answer`
    requests: tuple[ConsentRequest, ...] = ()  # all questions, if the server asked several


class Inbox:
    """A file of open questions. Each has a ticket, and often a call that continues after the answer."""

    def __init__(self, path: str | Path, ttl: float, secret_key: str | bytes | None) -> None:
        self._ttl_s = ttl
        self._sealer = None if secret_key is None else Sealer(secret_key, purpose="inbox")
        self._lock = threading.Lock()
        self._answer_events: dict[str, asyncio.Event] = {}  # wake callers in this process that wait for an answer
        self._database = open_database(path, _SCHEMA, _MIGRATIONS)
        # Close the file even if close() is never called.
        weakref.finalize(self, self._database.close)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    async def wait(self, ticket: str) -> ConsentAnswer:
        """Wait for the answer. Another process may give it."""
        answer_event = self._answer_events[ticket] = asyncio.Event()
        try:
            while True:
                answer = self._take_answer(ticket)
                if answer is not None:
                    return answer
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_INTERVAL_S):
                        await answer_event.wait()
        finally:
            del self._answer_events[ticket]
            self._execute("DELETE FROM asked WHERE ticket = ?", ticket)  # no caller waits for this answer any more

    async def put(self, request: ConsentRequest, deferred_call: DeferredCall | None = None) -> str:
        """Store a question and return its ticket."""
        ticket = f"tkt_{secrets.token_urlsafe(12)}"
        now = time.time()
        self._execute("DELETE FROM asked WHERE until <= ?", now)
        self._execute(
            "INSERT INTO asked VALUES (?, ?, ?, NULL, ?, ?)",
            ticket,
            encode(request),
            None if deferred_call is None else self._seal(ticket, deferred_call),
            now,
            now + self._ttl_s,
        )
        return ticket

    async def attach(self, ticket: str, deferred_call: DeferredCall) -> None:
        """Store the call that continues after the answer."""
        self._execute("UPDATE asked SET work = ? WHERE ticket = ?", self._seal(ticket, deferred_call), ticket)

    @property
    def open_questions(self) -> int:
        """Return how many questions are open."""
        rows = self._execute("SELECT COUNT(*) FROM asked WHERE answer IS NULL AND until > ?", time.time())
        return rows[0][0]

    async def items(self) -> list[PendingConsent]:
        """Return the open questions, oldest first."""
        rows = self._execute(
            "SELECT ticket, request, asked, until, work IS NOT NULL FROM asked"
            " WHERE answer IS NULL AND until > ? ORDER BY asked, ticket",
            time.time(),
        )
        return [
            PendingConsent(
                ticket=ticket,
                request=_decode_request(request),
                created_at=created_at,
                expires_at=expires_at,
                is_durable=bool(is_durable),
            )
            for ticket, request, created_at, expires_at, is_durable in rows
        ]

    async def find(self, ticket: str) -> tuple[ConsentRequest, DeferredCall] | None:
        """Return a question and its call, and keep them in the file. Return None if the ticket has no call."""
        rows = self._execute(
            "SELECT request, work FROM asked WHERE ticket = ? AND work IS NOT NULL AND until > ?", ticket, time.time()
        )
        return (
            None
            if not rows
            else (_decode_request(rows[0][0]), convert(json.loads(self._open(ticket, rows[0][1])), DeferredCall))
        )

    async def take(self, ticket: str) -> bool:
        """Remove a question from the file, before its call continues. Return False if another process was faster."""
        return bool(self._execute("DELETE FROM asked WHERE ticket = ? AND work IS NOT NULL RETURNING ticket", ticket))

    async def answer(self, ticket: str, answer: ConsentAnswer) -> bool:
        """Store the answer. Return whether a caller may be waiting for it."""
        rows = self._execute(
            "UPDATE asked SET answer = ? WHERE ticket = ? AND work IS NULL AND answer IS NULL AND until > ?"
            " RETURNING ticket",
            encode({"kind": _get_stored_kind(answer), "value": answer}),
            ticket,
            time.time(),
        )
        if rows and ticket in self._answer_events:
            self._answer_events[ticket].set()
        return bool(rows)

    def _take_answer(self, ticket: str) -> ConsentAnswer | None:
        rows = self._execute("DELETE FROM asked WHERE ticket = ? AND answer IS NOT NULL RETURNING answer", ticket)
        if rows:
            return _decode_answer(json.loads(rows[0][0]))
        if not self._execute("SELECT 1 FROM asked WHERE ticket = ? AND until > ?", ticket, time.time()):
            return Deny("the question expired without an answer", cancelled=True)
        return None

    def _execute(self, statement: str, *values: Any) -> list[Any]:
        with self._lock:
            return self._database.execute(statement, values).fetchall()

    def _seal(self, ticket: str, deferred_call: DeferredCall) -> bytes:
        data = encode(deferred_call)
        return data if self._sealer is None else self._sealer.seal(data, ticket.encode())

    def _open(self, ticket: str, data: bytes) -> bytes:
        """Return the stored call. Raise UnsealError if the call was sealed with another key or by another version."""
        return data if self._sealer is None else self._sealer.open(data, ticket.encode(), time.time())


class FileConsent:
    """Stores questions in a file, so that they can be answered later or by another process.

    Args:
        path: The SQLite file of the questions.
        ttl: Seconds until a question expires.
        secret_key: At least 16 bytes, to encrypt the calls that wait.
    """

    def __init__(self, path: str | Path, *, ttl: float = _DEFAULT_TTL_S, secret_key: str | bytes | None = None) -> None:
        self._inbox = Inbox(path, ttl, secret_key)

    def close(self) -> None:
        """Close the file."""
        self._inbox.close()

    async def ask(self, request: ConsentRequest) -> ConsentAnswer:
        """Store the question. If the caller waits, wait for the answer."""
        ticket = await self._inbox.put(request)
        return await self._inbox.wait(ticket) if request.wait else AnswerLater(ticket)


def get_inbox(consent_handler: ConsentHandler) -> Inbox | None:
    """Return the inbox of a consent handler, or None if it has none."""
    if isinstance(consent_handler, FileConsent):
        return consent_handler._inbox  # pyright: ignore[reportPrivateUsage]
    return None


def _decode_request(data: bytes) -> ConsentRequest:
    return convert(json.loads(data), ConsentRequest)


# These names are part of the file format. They stay the same when a class is renamed.
_ANSWER_TYPES: Final[Mapping[str, Any]] = {"Allow": Allow, "Deny": Deny, "Edit": AllowWithChanges}


def _get_stored_kind(answer: ConsentAnswer) -> str:
    return next(kind for kind, answer_type in _ANSWER_TYPES.items() if isinstance(answer, answer_type))


def _decode_answer(stored: Mapping[str, Any]) -> ConsentAnswer:
    return convert(stored["value"], _ANSWER_TYPES[stored["kind"]])


def build_responses(deferred_call: DeferredCall, answer: ConsentAnswer) -> dict[str, Any]:
    """Return the user's answer in the form that the server expects. For several questions, it has one entry per key.

    Raises:
        InputRequestError: the answer does not match the questions.
    """
    input_responses: dict[str, Any] = dict(deferred_call.answers)
    if isinstance(answer, Deny):
        return input_responses | {
            key: {"action": "cancel" if answer.cancelled else "decline"} for key in deferred_call.questions
        }
    value = to_plain(answer.value) if isinstance(answer, AllowWithChanges) else True
    return input_responses | {
        key: _build_response(key, deferred_call.questions[key], response_value)
        for key, response_value in _values_by_key(deferred_call, value).items()
    }


def _values_by_key(deferred_call: DeferredCall, value: Any) -> dict[str, Any]:
    if len(deferred_call.questions) == 1:
        return dict.fromkeys(deferred_call.questions, value)
    if isinstance(value, dict) and value.keys() == deferred_call.questions.keys():
        return value
    raise InputRequestError(
        "the server asked several questions. Pass a dict with an answer for each key: "
        f"{', '.join(map(clip, deferred_call.questions))}"
    )


def _build_response(key: str, input_request: Mapping[str, Any], value: Any) -> dict[str, Any]:
    if value is False or value is None:
        return {"action": "decline"}
    if (input_request.get("params") or {}).get("mode") == "url":
        return {"action": "accept"}
    if not isinstance(value, dict):
        raise InputRequestError(
            f"the question {clip(key)} is a form. Answer it with AllowWithChanges({{...}}) or Deny()"
        )
    return {"action": "accept", "content": value}
