"""Test that base64url is decoded strictly, with and without padding."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.wire.base64url import decode_base64url


@given(st.binary(max_size=60))
def test_data_is_decoded_with_and_without_padding(data: bytes) -> None:
    text = base64.urlsafe_b64encode(data).decode("ascii")
    assert decode_base64url(text) == decode_base64url(text.rstrip("=")) == data


@pytest.mark.parametrize("text", ["+_8=", "-/8=", "+/8", "a", "-_8=\n", " -_8=", "-_8==", "-_8=-_8=", "é", "-_8\x00"])
def test_any_other_character_is_an_error_and_not_a_warning(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        decode_base64url(text)
