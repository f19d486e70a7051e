"""requestState: sealed state of a server that the client carries between the rounds of one request.

The seal binds the state to the principal and to its request, and limits its lifetime. A client gets the same error for
every invalid state. Callers pass the time.
spec: mrtr#server-requirements-basic-workflow
"""

from collections.abc import Sequence
from typing import Any, Final

from dovetail.errors import InvalidParams, ParseError
from dovetail.protocol.sealer import Sealer, UnsealError
from dovetail.wire.base import Struct
from dovetail.wire.codec import decode, encode, encode_canonical

MAX_STATE_BYTES: Final = 1024 * 1024


class RequestState(Struct, kw_only=True):
    """What a request remembers from its earlier rounds."""

    input_responses: dict[str, Any]  # by key, the client's answers
    request_digests: dict[str, str]  # by key, digests of the questions so far
    once_values: dict[str, Any]  # results of steps that must not run twice
    author_state: str | None = None  # state that the server's author stored


def create_empty_state() -> RequestState:
    """Return the state of a request before its first question."""
    return RequestState(input_responses={}, request_digests={}, once_values={})


class RequestStateSealer:
    """Encrypts the state of a request with the newest secret key, and decrypts it with any of the keys.

    A state can only be opened for the purpose that it was sealed for.
    """

    def __init__(self, secret_keys: Sequence[str | bytes] = (), *, purpose: str = "request state") -> None:
        self._sealer = Sealer(secret_keys, purpose=purpose)

    def seal(self, request_state: RequestState, binding: bytes, expires_at: float) -> str:
        """Encrypt the state as text. Only this server can decrypt it, only for this request, and only for a limited
        time.
        """
        data = encode(
            [
                request_state.input_responses,
                request_state.request_digests,
                request_state.once_values,
                request_state.author_state,
            ]
        )
        state = self._sealer.seal_text(data, binding, expires_at)
        if len(state) > MAX_STATE_BYTES:
            raise ValueError(f"the request state is too large: more than {MAX_STATE_BYTES} bytes after encryption")
        return state

    def open(self, state: str, binding: bytes, now: float) -> RequestState:
        """Decrypt the state. Raise InvalidParams with the same message for every invalid state."""
        if len(state) > MAX_STATE_BYTES:
            raise _invalid_state()
        try:
            data = self._sealer.open_text(state, binding, now)
            input_responses, request_digests, once_values, author_state = decode(data)
        except (UnsealError, ParseError):  # ParseError means that a value is nested too deeply
            raise _invalid_state() from None
        return RequestState(
            input_responses=input_responses,
            request_digests=request_digests,
            once_values=once_values,
            author_state=author_state,
        )


def compute_binding(principal: str | None, server: Sequence[str], method: str, params: dict[str, Any]) -> bytes:
    """Return a digest of the request that a state belongs to: its principal, server, method and parameters.

    `server` has the names that identify the server that seals the state.
    """
    principal_id = None if principal is None else str(principal)
    bound_values = [principal_id, [*server], method, params.get("name"), params.get("uri"), params.get("arguments")]
    return _sha256(encode_canonical(bound_values))


def hash_request(request: Any) -> str:
    """Return a short digest of a question."""
    return _sha256(encode_canonical(request)).hex()[:16]


def _sha256(data: bytes) -> bytes:
    import hashlib  # imported here, because hashlib loads OpenSSL, which few servers need

    return hashlib.sha256(data).digest()


def _invalid_state() -> InvalidParams:
    return InvalidParams("Invalid params: requestState is not valid for this request", {"field": "requestState"})
