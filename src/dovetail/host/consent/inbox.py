"""A file of consent requests, which the user can answer later or in another process.

Each consent request has a ticket, and may have a tool call that continues after the answer. If a caller waits, the
caller gets the answer. Otherwise the process that answers makes the call. Each answer is used once.
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
from dovetail.storage import Migrations, open_database, report_damage
from dovetail.wire.base import Struct, field
from dovetail.wire.codec import convert, encode, to_plain

_DEFAULT_TTL_S: Final = 7 * 86400.0
_POLL_INTERVAL_S: Final = 0.2  # how often a waiting caller checks for an answer from another process

_SCHEMA: Final = """
CREATE TABLE asked (
    ticket TEXT PRIMARY KEY, request BLOB NOT NULL, work BLOB, answer BLOB, asked REAL NOT NULL, until REAL NOT NULL
) WITHOUT ROWID
"""


def _use_current_names(database: "sqlite3.Connection") -> None:
    """Replace the field and kind names of file format version 1 with the current names."""
    answer_names = {"expires": "expires_in", "exact": "exact_arguments", "dismissed": "cancelled"}
    for ticket, request_data, answer_data in database.execute("SELECT ticket, request, answer FROM asked").fetchall():
        request: dict[str, Any] = json.loads(request_data)
        request["kind"] = RENAMED_KINDS.get(request["kind"], request["kind"])
        answer = None if answer_data is None else json.loads(answer_data)
        # An "Edit" contains arguments or form fields of a server, so their names do not change.
        if answer is not None and answer["kind"] != "Edit":
            answer["value"] = {answer_names.get(name, name): value for name, value in answer["value"].items()}
        database.execute(
            "UPDATE asked SET request = ?, answer = ? WHERE ticket = ?",
            (encode(request), None if answer is None else encode(answer), ticket),
        )


def _allow_skills(database: "sqlite3.Connection") -> None:
    """Convert to version 3, which adds questions about skills. Older questions stay unchanged."""


_MIGRATIONS: Final[Migrations["sqlite3.Connection"]] = (_use_current_names, _allow_skills)


class DeferredSkill(Struct, frozen=True, kw_only=True):
    """A skill that waits for the user's consent."""

    definition: dict[str, Any]  # the definition of the skill that the user was asked about
    can_remember: bool  # False if the answer allows only the next read


class DeferredCall(Struct, frozen=True, kw_only=True):
    """A tool call or a skill that waits for the user's answer."""

    server: str
    identity: str
    tool: str
    arguments: dict[str, Any]
    fingerprint: str = ""
    pending: str | None = None  # the interrupted request, or None if the call has not been sent
    questions: dict[str, Any] = field(default_factory=dict[str, Any])
    # The answers that the host gave without asking the user.
    answers: dict[str, Any] = field(default_factory=dict[str, Any])
    skill: DeferredSkill | None = None  # For a skill, `tool` contains the URI of the skill.


class PendingConsent(Struct, frozen=True, kw_only=True):
    """A consent request that waits for the user's answer."""

    ticket: str  # the ticket to pass to `Host.answer`
    request: ConsentRequest  # the consent request
    created_at: float  # when the request was stored, in seconds since 1970
    expires_at: float  # when the request expires, in seconds since 1970
    is_durable: bool  # True if the request can still be answered after its process has ended


class CallAwaitingConsent(Struct, frozen=True, kw_only=True):
    """A tool call that waits for the user's answer. `Host.call` returns this object instead of a result."""

    ticket: str  # the ticket to pass to `Host.answer`
    requests: tuple[ConsentRequest, ...] = ()  # the consent requests, if the server sent several


class Inbox:
    """The file of the open consent requests, and of the answers that no caller has read yet.

    Each request has a ticket, and can have a call that continues after the answer.
    """

    def __init__(self, path: str | Path, ttl: float, secret_key: str | bytes | None) -> None:
        self._ttl_s = ttl
        self._sealer = None if secret_key is None else Sealer(secret_key, purpose="inbox")
        self._lock = threading.Lock()
        self._answer_events: dict[str, asyncio.Event] = {}  # events that wake waiting callers in this process
        self._path = path
        self._database = open_database(path, "consent inbox", _SCHEMA, _MIGRATIONS)
        # If close() is never called, the finalizer closes the file.
        weakref.finalize(self, self._database.close)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    async def wait(self, ticket: str) -> ConsentAnswer:
        """Wait for the answer to a consent request. Another process may store the answer."""
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
            self._execute("DELETE FROM asked WHERE ticket = ?", ticket)  # The caller has stopped waiting.

    async def put(self, request: ConsentRequest, deferred_call: DeferredCall | None = None) -> str:
        """Store a consent request and return its ticket."""
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
        """Store the call that the ticket belongs to. The call continues after the user's answer."""
        self._execute("UPDATE asked SET work = ? WHERE ticket = ?", self._seal(ticket, deferred_call), ticket)

    @property
    def open_questions(self) -> int:
        """Return the number of unanswered consent requests."""
        rows = self._execute("SELECT COUNT(*) FROM asked WHERE answer IS NULL AND until > ?", time.time())
        return rows[0][0]

    async def items(self) -> list[PendingConsent]:
        """Return the consent requests without an answer, oldest first."""
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
        """Return the consent request and the call of a ticket, without removing them from the inbox.

        Return None if the ticket has no call.
        """
        rows = self._execute(
            "SELECT request, work FROM asked WHERE ticket = ? AND work IS NOT NULL AND until > ?", ticket, time.time()
        )
        return (
            None
            if not rows
            else (_decode_request(rows[0][0]), convert(json.loads(self._open(ticket, rows[0][1])), DeferredCall))
        )

    async def take(self, ticket: str) -> bool:
        """Remove a consent request before its call continues. Return False if another process has removed it."""
        return bool(self._execute("DELETE FROM asked WHERE ticket = ? AND work IS NOT NULL RETURNING ticket", ticket))

    async def answer(self, ticket: str, answer: ConsentAnswer) -> bool:
        """Store the answer to a consent request. Return whether a caller may be waiting for the answer."""
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
            return Deny("the consent request expired without an answer", cancelled=True)
        return None

    def _execute(self, statement: str, *values: Any) -> list[Any]:
        with self._lock, report_damage(self._path):
            return self._database.execute(statement, values).fetchall()

    def _seal(self, ticket: str, deferred_call: DeferredCall) -> bytes:
        data = encode(deferred_call)
        return data if self._sealer is None else self._sealer.seal(data, ticket.encode())

    def _open(self, ticket: str, data: bytes) -> bytes:
        return data if self._sealer is None else self._sealer.open(data, ticket.encode(), time.time())


class FileConsent:
    """A consent handler that stores requests in a file. You can answer them later or in another process.

    Args:
        path: The path of the SQLite file.
        ttl: Seconds until a consent request expires.
        secret_key: A key of at least 16 bytes that encrypts the stored calls.
    """

    def __init__(self, path: str | Path, *, ttl: float = _DEFAULT_TTL_S, secret_key: str | bytes | None = None) -> None:
        self._inbox = Inbox(path, ttl, secret_key)

    def close(self) -> None:
        """Close the file."""
        self._inbox.close()

    async def ask(self, request: ConsentRequest) -> ConsentAnswer:
        """Store the consent request. If `request.wait` is set, wait for the answer. Otherwise return AnswerLater."""
        ticket = await self._inbox.put(request)
        return await self._inbox.wait(ticket) if request.wait else AnswerLater(ticket)


def get_inbox(consent_handler: ConsentHandler) -> Inbox | None:
    """Return the inbox of a consent handler, or None if the handler does not have one."""
    if isinstance(consent_handler, FileConsent):
        return consent_handler._inbox  # pyright: ignore[reportPrivateUsage]
    return None


def _decode_request(data: bytes) -> ConsentRequest:
    return convert(json.loads(data), ConsentRequest)


# The file format uses these names, so keep them even if a class is renamed.
_ANSWER_TYPES: Final[Mapping[str, Any]] = {"Allow": Allow, "Deny": Deny, "Edit": AllowWithChanges}


def _get_stored_kind(answer: ConsentAnswer) -> str:
    return next(kind for kind, answer_type in _ANSWER_TYPES.items() if isinstance(answer, answer_type))


def _decode_answer(stored: Mapping[str, Any]) -> ConsentAnswer:
    return convert(stored["value"], _ANSWER_TYPES[stored["kind"]])


def build_responses(deferred_call: DeferredCall, answer: ConsentAnswer) -> dict[str, Any]:
    """Return the user's answer as a dict of input responses, with the same keys as the server's input requests.

    Raises:
        InputRequestError: the answer does not match the input requests of the server.
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
        "the server sent several forms. Pass a dict with an answer for each key: "
        f"{', '.join(map(clip, deferred_call.questions))}"
    )


def _build_response(key: str, input_request: Mapping[str, Any], value: Any) -> dict[str, Any]:
    if value is False or value is None:
        return {"action": "decline"}
    if (input_request.get("params") or {}).get("mode") == "url":
        return {"action": "accept"}
    if not isinstance(value, dict):
        raise InputRequestError(
            f"the server sent the form {clip(key)}. Answer it with AllowWithChanges({{...}}) or Deny()"
        )
    return {"action": "accept", "content": value}
