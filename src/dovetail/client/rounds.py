"""Results that ask instead of answering: what is pending, and what goes with the next try.

A pending question is a value: it can be stored, and answered by another process.
spec: mrtr#client-requirements-basic-workflow
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.errors import ResultError
from dovetail.wire.codec import to_plain
from dovetail.wire.incoming import decode_body
from dovetail.wire.inputs import InputRequest, InputRequiredResult
from dovetail.wire.methods import Method
from dovetail.wire.shape import Result, Struct

COMPLETE = "complete"
INPUT_REQUIRED = "input_required"


class Pending(Struct, frozen=True, kw_only=True):
    """A request that waits for answers: `questions` by key, to be answered under the same keys."""

    method: str
    params: dict[str, Any]
    questions: dict[str, InputRequest]
    state: str | None = None
    rounds: int = 1

    def dump(self) -> bytes:
        """As JSON, to be stored. What the server put into it may be secret: keep it as you would a token."""
        return msgspec.json.encode(self)

    @classmethod
    def load(cls, data: bytes | str) -> "Pending":
        """What `dump` stored; ValueError if it is something else."""
        return msgspec.json.decode(data, type=cls)

    def answered(self, answers: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of the next try; the state goes back exactly as it came, or not at all."""
        params = dict(self.params)
        if self.questions:
            params["inputResponses"] = {key: to_plain(value) for key, value in answers.items()}
        if self.state is not None:
            params["requestState"] = self.state
        return params


def decode_result(raw: Any, row: Method, params: dict[str, Any], rounds: int = 0) -> Any:
    """The result of a request as its type, or a Pending."""
    assert row.result is not None
    try:
        result: Result = decode_body(raw, row.result, f"the result of {row.name}")
    except ResultError as exc:
        if not row.may_require_input:
            raise
        input_required = decode_body(raw, InputRequiredResult, f"the result of {row.name}")
        if input_required.result_type != INPUT_REQUIRED:
            raise exc from None
        return _build_pending(input_required, row, params, rounds)
    if result.result_type in (None, COMPLETE):
        return result
    if result.result_type == INPUT_REQUIRED and row.may_require_input:
        return _build_pending(decode_body(raw, InputRequiredResult, f"the result of {row.name}"), row, params, rounds)
    # spec: basic#resulttype
    raise ResultError(f"the result of {row.name} is of a kind this client does not know")


def _build_pending(input_required: InputRequiredResult, row: Method, params: dict[str, Any], rounds: int) -> Pending:
    request_params = {name: value for name, value in params.items() if name not in ("inputResponses", "requestState")}
    return Pending(
        method=row.name,
        params=request_params,
        questions=input_required.input_requests or {},
        state=input_required.request_state,
        rounds=rounds + 1,
    )
