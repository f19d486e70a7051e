"""IDs that name the worker that waits for an answer, so that an answer can arrive at any worker.

An ID contains a code that proves its session, so no client can send messages to a worker that did not ask it.
"""

import base64
import hmac
from collections.abc import Sequence
from typing import Final

_CODE_BYTES: Final = 12
_MAX_ID_CHARS: Final = 256


class RoutedIds:
    """Creates and checks the IDs of one cluster."""

    def __init__(self, secret_keys: Sequence[str | bytes]) -> None:
        secrets = [key.encode() if isinstance(key, str) else key for key in secret_keys]
        self._keys = [hmac.digest(secret, b"dovetail routed ID", "sha256") for secret in secrets]

    def create(self, worker: str, session: str, name: str) -> str:
        """Return an ID for a name that is unique among the questions of a worker and a session."""
        start = f"{worker}.{name}"
        return f"{start}.{_compute_code(self._keys[0], start, session)}"

    def read(self, id: object, session: str) -> tuple[str, str] | None:
        """Return the worker and the name in an ID. Return None if the ID is not from this session."""
        if type(id) is not str or len(id) > _MAX_ID_CHARS or not id.isascii():
            return None
        start, _, code = id.rpartition(".")
        if not any(hmac.compare_digest(code, _compute_code(key, start, session)) for key in self._keys):
            return None
        worker, _, name = start.partition(".")
        return worker, name


def _compute_code(key: bytes, start: str, session: str) -> str:
    digest = hmac.digest(key, f"{session}.{start}".encode(), "sha256")
    return base64.urlsafe_b64encode(digest[:_CODE_BYTES]).decode("ascii")
