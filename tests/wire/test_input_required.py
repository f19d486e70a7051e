import msgspec
import pytest

from dovetail.wire.input_required import InputRequest, InputRequiredResult


def test_questions_pass_with_unread_parameters() -> None:
    text = b'{"resultType":"input_required","inputRequests":{"k":{"method":"x/y","params":{"a_b":null}}}}'
    asked = msgspec.json.decode(text, type=InputRequiredResult)
    assert asked.input_requests == {"k": InputRequest(method="x/y", params={"a_b": None})}
    assert msgspec.json.encode(asked) == text


def test_state_alone_is_enough() -> None:
    assert msgspec.json.encode(InputRequiredResult(request_state="")) == b'{"requestState":""}'


def test_a_question_without_parameters_has_none() -> None:
    assert msgspec.json.encode(InputRequest(method="roots/list")) == b'{"method":"roots/list"}'
    with pytest.raises(msgspec.ValidationError, match="method"):
        msgspec.json.decode(b'{"inputRequests":{"k":{}}}', type=InputRequiredResult)
