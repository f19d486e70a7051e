"""Test that a sealed value opens only with its key, purpose, context and format, until it expires."""

import base64
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.protocol.sealer import Sealer, UnsealError

OLD, NEW = "the older of two secrets", b"the newer of two secrets"
SEALER = Sealer(OLD, purpose="test")


@given(st.binary(max_size=100), st.binary(max_size=20), st.none() | st.floats(1, 2**40))
def test_a_value_opens_in_its_context_until_it_expires(data: bytes, context: bytes, expires_at: float | None) -> None:
    assert SEALER.open(SEALER.seal(data, context, expires_at), context, 0.0) == data
    assert SEALER.open_text(SEALER.seal_text(data, context, expires_at), context, 0.0) == data


@pytest.mark.parametrize(
    "open_value",
    [
        lambda sealed: SEALER.open(sealed, b"other", 0.0),
        lambda sealed: SEALER.open(sealed, b"context", 600.0),
        lambda sealed: Sealer(OLD, purpose="other").open(sealed, b"context", 0.0),
        lambda sealed: Sealer(NEW, purpose="test").open(sealed, b"context", 0.0),
        lambda sealed: Sealer(purpose="test").open(sealed, b"context", 0.0),
        lambda sealed: SEALER.open(sealed[:-1], b"context", 0.0),
        lambda sealed: SEALER.open(sealed + b"x", b"context", 0.0),
        lambda sealed: SEALER.open(b"", b"context", 0.0),
    ],
)
def test_a_value_opens_only_for_its_key_purpose_and_context(open_value: Callable[[bytes], bytes]) -> None:
    sealed = SEALER.seal(b"data", b"context", 600.0)
    assert SEALER.open(sealed, b"context", 599.0) == b"data"
    with pytest.raises(UnsealError):
        open_value(sealed)


def test_an_unknown_format_version_is_an_error_that_names_it() -> None:
    sealed = SEALER.seal(b"data", b"")
    assert sealed[0] == 1
    with pytest.raises(UnsealError, match=r"version.*\b7\b"):
        SEALER.open(b"\x07" + sealed[1:], b"", 0.0)


def test_every_byte_is_protected() -> None:
    sealed = SEALER.seal(b"data", b"")
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(UnsealError):
            SEALER.open(bytes(changed), b"", 0.0)


def test_keys_rotate_newest_first() -> None:
    rotating = Sealer([NEW, OLD], purpose="test")
    assert rotating.open(SEALER.seal(b"data", b""), b"", 0.0) == b"data"
    assert Sealer(NEW, purpose="test").open(rotating.seal(b"data", b""), b"", 0.0) == b"data"
    with pytest.raises(UnsealError):
        SEALER.open(rotating.seal(b"data", b""), b"", 0.0)


def test_a_text_has_one_spelling() -> None:
    text = SEALER.seal_text(b"dat", b"")
    for other in (text + "=", text.rstrip("=") + "\n", text.replace("-", "+").replace("_", "/") + " ", "\u00e9", "a"):
        with pytest.raises(UnsealError):
            SEALER.open_text(other, b"", 0.0)
    assert SEALER.open(base64.urlsafe_b64decode(text), b"", 0.0) == b"dat"


def test_a_value_cannot_be_opened_without_the_time() -> None:
    for open_value, sealed in ((SEALER.open, SEALER.seal(b"", b"")), (SEALER.open_text, SEALER.seal_text(b"", b""))):
        with pytest.raises(TypeError):
            open_value(sealed, b"")  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("short", ["", "fifteen bytes..", b"\x00" * 15])
def test_a_short_secret_is_rejected(short: str | bytes) -> None:
    with pytest.raises(ValueError, match="16"):
        Sealer([OLD, short], purpose="test")
