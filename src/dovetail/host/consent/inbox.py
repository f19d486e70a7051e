"""Inbox: questions that outlive the process that asked them, in a file, to be answered later, here or elsewhere.

A question stands under a ticket with what is to be done once it is answered. Whoever waits for an answer finds it
there; what nobody waits for is done by whoever answers. An answer is used once.
"""

import asyncio
import contextlib
import json
import os
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
from dovetail.host.consent.consent import Allow, ConsentAnswer, ConsentHandler, ConsentRequest, Defer, Deny, Edit
from dovetail.wire.base import Struct, field
from dovetail.wire.codec import convert, encode, to_plain

_DEFAULT_TTL_S: Final = 7 * 86400.0
_POLL_INTERVAL_S: Final = 0.2  # seconds between two looks for an answer given in another process
_NONCE_BYTES: Final = 12

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS asked (
    ticket TEXT PRIMARY KEY, request BLOB NOT NULL, work BLOB, answer BLOB, asked REAL NOT NULL, until REAL NOT NULL
) WITHOUT ROWID
"""


class DeferredCall(Struct, frozen=True, kw_only=True):
    """What is to be done once a question is answered: a call, from its beginning or from where it asked."""

    server: str
    identity: str
    tool: str
    arguments: dict[str, Any]
    fingerprint: str = ""
    pending: str | None = None  # the request as it waits at the server
    questions: dict[str, Any] = field(default_factory=dict[str, Any])
    answers: dict[str, Any] = field(default_factory=dict[str, Any])  # those the host gave by itself


class PendingConsent(Struct, frozen=True, kw_only=True):
    """One open question. If the process that asked is gone, it can still be answered only if `is_durable`."""

    ticket: str
    request: ConsentRequest
    created_at: float
    expires_at: float
    is_durable: bool


class PendingCall(Struct, frozen=True, kw_only=True):
    """Instead of a result: the call waits for an answer, under a ticket."""

    ticket: str
    requests: tuple[ConsentRequest, ...] = ()


class Inbox:
    """The file of pending consents. Each has a ticket, and perhaps a call to make when it is answered."""

    def __init__(self, path: str | Path, ttl: float, secret_key: str | bytes | None) -> None:
        self._ttl_s = ttl
        self._key = None if secret_key is None else _derive_key(secret_key)
        self._lock = threading.Lock()
        self._answer_events: dict[str, asyncio.Event] = {}  # for those who wait in this process
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        self._database = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute(_SCHEMA)
        weakref.finalize(self, self._database.close)  # for users who never call close()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    async def wait(self, ticket: str) -> ConsentAnswer:
        """Wait for the answer, which this or another process gives."""
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
            self._execute("DELETE FROM asked WHERE ticket = ?", ticket)  # no call waits for it any more

    async def put(self, request: ConsentRequest, deferred_call: DeferredCall | None = None) -> str:
        """Write a question down; its ticket."""
        ticket = f"tkt_{secrets.token_urlsafe(12)}"
        now = time.time()
        self._execute("DELETE FROM asked WHERE until <= ?", now)
        self._execute(
            "INSERT INTO asked VALUES (?, ?, ?, NULL, ?, ?)",
            ticket,
            encode(request),
            None if deferred_call is None else self._encrypt(encode(deferred_call)),
            now,
            now + self._ttl_s,
        )
        return ticket

    async def attach(self, ticket: str, deferred_call: DeferredCall) -> None:
        """Say what is to be done when it is answered."""
        self._execute("UPDATE asked SET work = ? WHERE ticket = ?", self._encrypt(encode(deferred_call)), ticket)

    @property
    def open_questions(self) -> int:
        """How many questions have no answer yet."""
        rows = self._execute("SELECT COUNT(*) FROM asked WHERE answer IS NULL AND until > ?", time.time())
        return rows[0][0]

    async def items(self) -> list[PendingConsent]:
        """The open questions, oldest first."""
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
        """The question and what is to be done, left where it is; None if there is none, or somebody waits."""
        rows = self._execute(
            "SELECT request, work FROM asked WHERE ticket = ? AND work IS NOT NULL AND until > ?", ticket, time.time()
        )
        return (
            None
            if not rows
            else (_decode_request(rows[0][0]), convert(json.loads(self._decrypt(rows[0][1])), DeferredCall))
        )

    async def take(self, ticket: str) -> bool:
        """Take a question that was found out of the inbox; of several who try, one has it."""
        return bool(self._execute("DELETE FROM asked WHERE ticket = ? AND work IS NOT NULL RETURNING ticket", ticket))

    async def answer(self, ticket: str, answer: ConsentAnswer) -> bool:
        """Give whoever waits the answer; whether anybody may be waiting."""
        rows = self._execute(
            "UPDATE asked SET answer = ? WHERE ticket = ? AND work IS NULL AND answer IS NULL AND until > ?"
            " RETURNING ticket",
            encode({"kind": type(answer).__name__, "value": answer}),
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
            return Deny("nobody answered in time", cancelled=True)
        return None

    def _execute(self, statement: str, *values: Any) -> list[Any]:
        with self._lock:
            return self._database.execute(statement, values).fetchall()

    def _encrypt(self, data: bytes) -> bytes:
        if self._key is None:
            return data
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self._key).encrypt(nonce, data, None)

    def _decrypt(self, data: bytes) -> bytes:
        if self._key is None:
            return data
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            return AESGCM(self._key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], None)
        except (InvalidTag, ValueError):
            raise ValueError("this file was written with another secret_key") from None


class DurableConsent:
    """A consent handler that writes questions to a file, to be answered later or by another process.

    ttl: seconds until a question expires. secret_key: at least 16 bytes, to encrypt the calls that wait.
    """

    def __init__(self, path: str | Path, *, ttl: float = _DEFAULT_TTL_S, secret_key: str | bytes | None = None) -> None:
        self._inbox = Inbox(path, ttl, secret_key)

    def close(self) -> None:
        """Close the file."""
        self._inbox.close()

    async def ask(self, request: ConsentRequest) -> ConsentAnswer:
        """Write the question to the file, and wait for its answer if the caller waits."""
        ticket = await self._inbox.put(request)
        return await self._inbox.wait(ticket) if request.wait else Defer(ticket)


def get_inbox(consent_handler: ConsentHandler) -> Inbox | None:
    """Return the inbox of a consent handler, or None if it has none."""
    if isinstance(consent_handler, DurableConsent):
        return consent_handler._inbox  # pyright: ignore[reportPrivateUsage]
    return None


def _derive_key(secret_key: str | bytes) -> bytes:
    import hashlib

    key_bytes = secret_key.encode() if isinstance(secret_key, str) else secret_key
    if len(key_bytes) < 16:
        raise ValueError("secret_key must have at least 16 bytes")
    return hashlib.sha256(b"dovetail inbox " + key_bytes).digest()


def _decode_request(data: bytes) -> ConsentRequest:
    return convert(json.loads(data), ConsentRequest)


def _decode_answer(stored: Mapping[str, Any]) -> ConsentAnswer:
    answer_types: Mapping[str, Any] = {"Allow": Allow, "Deny": Deny, "Edit": Edit}
    return convert(stored["value"], answer_types[stored["kind"]])


def build_responses(deferred_call: DeferredCall, answer: ConsentAnswer) -> dict[str, Any]:
    """An answer of the person's as the server takes it; where several questions are open, each by its key.

    Raises:
        InputRequestError: it answers something else than was asked.
    """
    input_responses: dict[str, Any] = dict(deferred_call.answers)
    if isinstance(answer, Deny):
        return input_responses | {
            key: {"action": "cancel" if answer.cancelled else "decline"} for key in deferred_call.questions
        }
    value = to_plain(answer.value) if isinstance(answer, Edit) else True
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
        f"several questions are open: answer each by its key, {', '.join(map(clip, deferred_call.questions))}"
    )


def _build_response(key: str, input_request: Mapping[str, Any], value: Any) -> dict[str, Any]:
    if value is False or value is None:
        return {"action": "decline"}
    if (input_request.get("params") or {}).get("mode") == "url":
        return {"action": "accept"}
    if not isinstance(value, dict):
        raise InputRequestError(f"{clip(key)} is a form, answered by what was filled in: Edit({{...}}), or Deny()")
    return {"action": "accept", "content": value}
