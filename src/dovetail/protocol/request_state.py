"""The encrypted `requestState` of a server, which the client sends back with its answers to input requests.

A state is only valid for the same principal and the same request, and for a limited time. A client gets the same error
for every invalid state.
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
    """The data that a server needs to continue a request after the client has answered."""

    input_responses: dict[str, Any]  # the client's answers, by key
    request_digests: dict[str, str]  # the digest of each earlier input request
    once_values: dict[str, Any]  # the results of steps that must not run twice
    author_state: str | None = None  # the state that the server's author stored


def create_empty_state() -> RequestState:
    """Return the state of a request that has not asked for input yet."""
    return RequestState(input_responses={}, request_digests={}, once_values={})


class RequestStateSealer:
    """Encrypts request states with the newest secret key, and decrypts them with any of the keys.

    A state can only be decrypted for the purpose for which it was encrypted.
    """

    def __init__(self, secret_keys: Sequence[str | bytes] = (), *, purpose: str = "request state") -> None:
        self._sealer = Sealer(secret_keys, purpose=purpose)

    def seal(self, request_state: RequestState, binding: bytes, expires_at: float) -> str:
        """Encrypt a request state as text.

        Only this server can decrypt it, only for this request, and only for a limited time.
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
        """Decrypt a request state. Raise InvalidParams with the same message for every invalid state."""
        if len(state) > MAX_STATE_BYTES:
            raise _invalid_state()
        try:
            data = self._sealer.open_text(state, binding, now)
            input_responses, request_digests, once_values, author_state = decode(data)
        except (UnsealError, ParseError):  # ParseError means that a value is nested too deeply.
            raise _invalid_state() from None
        return RequestState(
            input_responses=input_responses,
            request_digests=request_digests,
            once_values=once_values,
            author_state=author_state,
        )


def compute_binding(principal: str | None, server: Sequence[str], method: str, params: dict[str, Any]) -> bytes:
    """Return a digest of the principal, server, method and parameters of a request.

    A request state is valid only for requests with the same digest. `server` contains the names that identify the
    server which encrypts the state.
    """
    principal_id = None if principal is None else str(principal)
    bound_values = [principal_id, [*server], method, params.get("name"), params.get("uri"), params.get("arguments")]
    return _sha256(encode_canonical(bound_values))


def hash_request(request: Any) -> str:
    """Return a short digest of an input request."""
    return _sha256(encode_canonical(request)).hex()[:16]


def _sha256(data: bytes) -> bytes:
    import hashlib  # The hashlib module loads OpenSSL, which few servers need.

    return hashlib.sha256(data).digest()


def _invalid_state() -> InvalidParams:
    return InvalidParams("Invalid params: requestState is not valid for this request", {"field": "requestState"})
