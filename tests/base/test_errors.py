"""Test the exception classes: codes, messages that are safe to send, and what stays private."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import errors
from dovetail.error_context import add_context, clip
from dovetail.errors import (
    AuthError,
    ElicitationCancelled,
    ElicitationDeclined,
    Forbidden,
    MCPError,
    MethodNotFound,
    MissingClientCapability,
    PromptNotFound,
    ProtocolError,
    RemoteError,
    ResourceNotFound,
    ServerBusy,
    ToolError,
    ToolNotFound,
    TransportError,
    Unauthorized,
    UnsupportedProtocolVersion,
)
from support.mentions import mentions

EVERY = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, BaseException) and not issubclass(kind, Warning)
]
CODES = {
    "URLElicitationRequired": -32042,
    "ParseError": -32700,
    "InvalidRequest": -32600,
    "MethodNotFound": -32601,
    "InvalidParams": -32602,
    "ResourceNotFound": -32602,
    "ToolNotFound": -32602,
    "PromptNotFound": -32602,
    "InternalError": -32603,
    "ProtocolError": -32603,
    "HeaderMismatch": -32020,
    "MissingClientCapability": -32021,
    "UnsupportedProtocolVersion": -32022,
    "ServerBusy": 429,
    "InsufficientScope": 403,
}


def test_every_exception_has_one_root() -> None:
    assert all(issubclass(kind, MCPError) for kind in EVERY)
    assert all(kind.__doc__ for kind in EVERY)


def test_what_is_ours_to_send_has_a_code_and_nothing_else_has() -> None:
    assert {kind.__name__: kind.code for kind in EVERY if issubclass(kind, ProtocolError)} == CODES
    for kind in EVERY:
        if not issubclass(kind, ProtocolError):
            assert not hasattr(kind, "code"), kind


def test_every_error_is_public() -> None:
    assert sorted(errors.__all__) == sorted([kind.__name__ for kind in EVERY] + ["DovetailDeprecationWarning"])


def test_some_errors_are_builtin_errors_too() -> None:
    assert issubclass(errors.RequestTimeout, TimeoutError)
    assert issubclass(errors.ScriptNotFound, FileNotFoundError)
    assert issubclass(errors.DovetailDeprecationWarning, DeprecationWarning)


def test_the_drawing_shows_every_exception() -> None:
    assert errors.__doc__ is not None
    assert not [kind.__name__ for kind in EVERY if kind.__name__ not in errors.__doc__]


def test_ours_and_theirs_are_different_things() -> None:
    theirs = RemoteError(-5, "no", {"a": 1})
    assert (theirs.code, theirs.message, theirs.data, str(theirs)) == (-5, "no", {"a": 1}, "no (-5)")
    assert not isinstance(theirs, ProtocolError)
    assert not issubclass(TransportError, ProtocolError)
    assert not issubclass(ToolError, ProtocolError)
    assert not issubclass(AuthError, ProtocolError)


@pytest.mark.parametrize(
    ("exc", "named", "data"),
    [
        (MethodNotFound("a/b"), ("a/b",), None),
        (ToolNotFound("fly"), ("fly",), {"field": "name"}),
        (PromptNotFound("fly"), ("fly",), {"field": "name"}),
        (ResourceNotFound("a:b"), (), {"uri": "a:b"}),
        (
            MissingClientCapability({"roots": {}, "sampling": {"tools": {}}}),
            ("roots", "sampling.tools"),
            {"requiredCapabilities": {"roots": {}, "sampling": {"tools": {}}}},
        ),
        (MissingClientCapability({"roots": {}}, "own words"), ("own words",), {"requiredCapabilities": {"roots": {}}}),
        (
            UnsupportedProtocolVersion("1999", ("b", "a")),
            ("1999", "b", "a"),
            {"supported": ["b", "a"], "requested": "1999"},
        ),
        (ServerBusy("later", 0.25), ("later",), {"retryAfterMs": 250}),
    ],
)
def test_what_is_sent(exc: ProtocolError, named: tuple[str, ...], data: object) -> None:
    assert mentions(exc.message, *named)
    assert (exc.data, str(exc)) == (data, exc.message)


@pytest.mark.parametrize("kind", [MethodNotFound, ToolNotFound, PromptNotFound])
def test_what_a_peer_sent_is_repeated_short_and_harmless(kind: type[ProtocolError]) -> None:
    said = kind("\x1b[31m\r\n" + "x" * 10_000).message  # pyright: ignore[reportCallIssue]
    assert said.isprintable()
    assert len(said) < 400


def test_a_revision_is_repeated_in_part() -> None:
    exc = UnsupportedProtocolVersion("x" * 10_000, ())
    assert len(exc.message) < 300
    assert exc.data["requested"] == "x" * 64


def test_a_no_has_words_of_its_own() -> None:
    assert str(ElicitationDeclined()) != str(ElicitationCancelled())
    assert str(ElicitationDeclined("Not now")) == "Not now"
    assert issubclass(ElicitationDeclined, ToolError)
    assert issubclass(ElicitationCancelled, ToolError)


def test_a_busy_server_says_when_to_try_again() -> None:
    assert (ServerBusy("x").retry_after, ServerBusy("x", 2.5).data) == (1.0, {"retryAfterMs": 2500})


@pytest.mark.parametrize(
    ("denied", "expected"),
    [
        (Unauthorized(), (401, "Bearer")),
        (Forbidden("Not you"), (403, "")),
        (Forbidden(challenge='Bearer error="insufficient_scope"'), (403, 'Bearer error="insufficient_scope"')),
        (Unauthorized(challenge='Bearer realm="x"'), (401, 'Bearer realm="x"')),
    ],
)
def test_a_refusal_has_a_status_and_a_challenge(denied: Unauthorized | Forbidden, expected: tuple[int, str]) -> None:
    assert str(denied)
    assert (denied.status_code, denied.challenge) == expected


@given(st.text(max_size=300), st.integers(1, 200))
def test_clipped_text_is_short_and_prints(text: str, limit: int) -> None:
    clipped = clip(text, limit)
    assert clipped.isprintable()
    if text.isprintable():
        assert len(clipped) <= limit
        assert clipped == text or (clipped.endswith("…") and text.startswith(clipped[:-1]))
    else:
        assert len(clipped) <= 10 * limit


def test_clipped_text_may_hold_half_a_surrogate_pair() -> None:
    assert clip("a\ud800b") == "a\\ud800b"


def test_of_many_lines_the_last_whole_ones_are_shown() -> None:
    error = add_context(MCPError("no"), stderr="\n".join(f"line {number:04}" for number in range(500)))
    shown = str(error).splitlines()[2:]
    assert 100 < len(shown) < 130
    assert shown[-1] == "  line 0499"
    assert all(len(line) == 11 for line in shown)


def test_of_one_endless_line_its_end_is_shown() -> None:
    shown = str(add_context(MCPError("no"), stderr="first\n" + "x" * 5000 + "end")).splitlines()[2:]
    assert len(shown) == 1
    assert shown[0].endswith("xend")
    assert len(shown[0]) < 1300
