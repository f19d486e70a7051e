import msgspec
import pytest

from dovetail.wire.progress import CancelledParams, ProgressParams


@pytest.mark.parametrize("token", [b'"a"', b'""', b"0", b"-7", b"9007199254740993"])
@pytest.mark.parametrize("number", [b"0", b"50", b"0.5", b"-1"])
def test_tokens_and_numbers_keep_their_kind(token: bytes, number: bytes) -> None:
    text = b'{"progressToken":%s,"progress":%s,"total":%s}' % (token, number, number)
    assert msgspec.json.encode(msgspec.json.decode(text, type=ProgressParams)) == text


@pytest.mark.parametrize("token", [b"true", b"null", b"1.5", b"[]", b"{}"])
def test_other_tokens_are_refused(token: bytes) -> None:
    with pytest.raises(msgspec.ValidationError, match="progressToken"):
        msgspec.json.decode(b'{"progressToken":%s,"progress":1}' % token, type=ProgressParams)


@pytest.mark.parametrize("number", [b"true", b"null", b'"1"'])
def test_other_numbers_are_refused(number: bytes) -> None:
    with pytest.raises(msgspec.ValidationError, match="progress"):
        msgspec.json.decode(b'{"progressToken":1,"progress":%s}' % number, type=ProgressParams)


@pytest.mark.parametrize("request_id", [0, "", "a", 12])
def test_a_cancellation_names_its_request(request_id: str | int) -> None:
    sent = msgspec.json.encode(CancelledParams(request_id=request_id, reason="late"))
    assert msgspec.json.decode(sent) == {"requestId": request_id, "reason": "late"}
    assert msgspec.json.decode(sent, type=CancelledParams).request_id == request_id


@pytest.mark.parametrize("request_id", [b"true", b"1.5", b"[]"])
def test_other_ids_are_refused(request_id: bytes) -> None:
    with pytest.raises(msgspec.ValidationError, match="requestId"):
        msgspec.json.decode(b'{"requestId":%s}' % request_id, type=CancelledParams)


def test_a_cancellation_without_a_request_is_heard() -> None:
    assert msgspec.json.decode(b"{}", type=CancelledParams).request_id is None
