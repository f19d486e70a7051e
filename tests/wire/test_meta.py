import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.wire import meta
from dovetail.wire.meta import is_reserved, is_valid_key

LETTERS = string.ascii_letters
ALPHANUMERICS = string.ascii_letters + string.digits


def framed(first: str, inside: str, last: str) -> st.SearchStrategy[str]:
    """Text with rules for its first, inner and last characters."""
    several = st.builds(
        lambda head, middle, tail: head + middle + tail,
        st.sampled_from(first),
        st.text(inside, max_size=10),
        st.sampled_from(last),
    )
    return st.sampled_from(first) | several


labels = framed(LETTERS, ALPHANUMERICS + "-", ALPHANUMERICS)
names = framed(ALPHANUMERICS, ALPHANUMERICS + "-_.", ALPHANUMERICS) | st.just("")
prefixes = st.lists(labels, min_size=1, max_size=4).map(".".join)


def spelled_out(key: str) -> bool:
    """The grammar again, character by character."""
    *prefix, name = key.split("/")
    if len(prefix) > 1:
        return False
    for label in prefix[0].split(".") if prefix else ():
        if not label or label[0] not in LETTERS or label[-1] not in ALPHANUMERICS:
            return False
        if any(char not in ALPHANUMERICS + "-" for char in label):
            return False
    if not name:
        return True
    inside = all(char in ALPHANUMERICS + "-_." for char in name)
    return inside and name[0] in ALPHANUMERICS and name[-1] in ALPHANUMERICS


@given(name=names)
def test_a_name_alone_is_valid(name: str) -> None:
    assert is_valid_key(name)
    assert not is_reserved(name)


@given(prefix=prefixes, name=names)
def test_labels_a_slash_and_a_name_are_valid(prefix: str, name: str) -> None:
    assert is_valid_key(f"{prefix}/{name}")


@given(key=st.text(st.sampled_from("aZ09-_./é \n"), max_size=12) | st.text(max_size=8))
def test_valid_is_what_the_grammar_says(key: str) -> None:
    assert is_valid_key(key) == spelled_out(key)


@pytest.mark.parametrize(
    "key",
    [
        *("/x", ".a/x", "a./x", "a..b/x", "1a/x", "a-/x", "-a/x", "a_b/x", "a/b/c", "a//x", "-x", "x-", "_x", "x."),
        *(".x", "a b", "a/x\n", "a\n/x", "x\n", "é", "a/é", "é/x", "٣", "a/٣"),
    ],
)
def test_invalid_keys(key: str) -> None:
    assert not is_valid_key(key)


@pytest.mark.parametrize("key", ["", "a/", "x", "9", "a.b-c.d1/x_y.z-0", "A/B", "a--b/c__d"])
def test_valid_keys(key: str) -> None:
    assert is_valid_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "io.modelcontextprotocol/x",
        "dev.mcp/",
        "org.modelcontextprotocol.api/x",
        "com.mcp.tools/x",
        "modelcontextprotocol/x",
        "mcp/x",
    ],
)
def test_the_protocols_own_prefixes_are_reserved(key: str) -> None:
    assert is_reserved(key)


@pytest.mark.parametrize(
    "key",
    [
        *("com.example.mcp/x", "com.example/mcp", "mcp", "io.modelcontextprotocol", "io.mcps/x", "xmcp/x", "a.b.mcp/x"),
        *("", "com.example/io.mcp", "mcp.example/x", "io.MCP/x", "x/io.mcp/y"),
    ],
)
def test_other_prefixes_are_free(key: str) -> None:
    assert not is_reserved(key)


@given(
    first=labels, own=st.sampled_from(["mcp", "modelcontextprotocol"]), rest=st.lists(labels, max_size=2), name=names
)
def test_the_second_label_decides(first: str, own: str, rest: list[str], name: str) -> None:
    assert is_reserved(".".join([first, own, *rest]) + "/" + name)


def test_the_protocols_keys_obey_the_protocols_rule() -> None:
    keys = {name: key for name, key in vars(meta).items() if name.isupper() and not name.startswith("_")}
    assert len(keys) == 10
    assert all(is_valid_key(key) for key in keys.values())
    prefixed = {name for name, key in keys.items() if is_reserved(key)}
    assert set(keys) - prefixed == {"PROGRESS_TOKEN", "TRACEPARENT", "TRACESTATE", "BAGGAGE"}


@pytest.mark.parametrize("piece", ["a", "a-", "-", "a.", ".", "a/", "/", "mcp.", "a_", "0"])
def test_a_huge_key_is_judged_at_once(piece: str) -> None:
    # Five million characters: linear work takes milliseconds, quadratic work would trip the suite's timeout.
    key = piece * (5_000_000 // len(piece)) + "\n"
    assert not is_valid_key(key)
    assert not is_valid_key("a/" + key)
    assert not is_reserved("x" + key)
