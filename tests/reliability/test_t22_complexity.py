"""T22: what reads a peer's text takes time in proportion to its length, however the text is made."""

from dovetail.protocol.http import accepted


def test_a_long_accept_header_is_read() -> None:
    assert accepted(b"text/plain;q=0.1," * 400) == (False, False)
