"""Test that equivalent URIs have equal keys and different resources have different keys, also for lenient parsers."""

import pytest

from dovetail.protocol.uri_key import uri_key
from dovetail.protocol.uri_readings import is_ambiguous, rule_keys, uri_readings


@pytest.mark.parametrize(
    ("spelling", "key"),
    [
        ("notes://private", "notes://private"),
        ("NOTES://private", "notes://private"),
        ("notes://PRIVATE", "notes://private"),
        ("notes://privat%65", "notes://private"),
        ("Notes://%50rivate", "notes://private"),
        ("city://Oslo/Profile", "city://oslo/Profile"),
        ("x://User@Host/A", "x://User@host/A"),
        ("x://h/%7ea%2fb", "x://h/~a%2Fb"),
        ("x://h/caf\u00e9", "x://h/caf%C3%A9"),
        ("x://h/caf%c3%a9", "x://h/caf%C3%A9"),
        ("x://caf%c3%a9", "x://caf%C3%A9"),
        ("URN:Isbn:X", "urn:Isbn:X"),
        ("x:A?B#C", "x:A?B#C"),
        ("x://H?B=%41", "x://h?B=A"),
        ("x://h/100%", "x://h/100%"),
        ("no-uri", "no-uri"),
        ("", ""),
    ],
)
def test_equivalent_spellings_have_one_key(spelling: str, key: str) -> None:
    assert uri_key(spelling) == key
    assert uri_key(key) == key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x://h/a", "x://h/A"),
        ("x://h/a", "x://h/a/"),
        ("x://h/a/b", "x://h/a%2Fb"),
        ("x://h/a", "x://h//a"),
        ("x://h/a", "x://h/./a"),
        ("x://a@h/", "x://A@h/"),
        ("x:a", "x:A"),
        ("x://h?a", "x://h?A"),
        ("x://h/%41", "x://h/%2541"),
        ("x:///h", "x://h"),
    ],
)
def test_different_resources_have_different_keys(one: str, other: str) -> None:
    assert uri_key(one) != uri_key(other)


def means(rule: str, uri: str) -> bool:
    return not rule_keys(rule).isdisjoint(uri_readings(uri))


@pytest.mark.parametrize(
    ("rule", "uri"),
    [
        ("file:///etc/passwd", uri)
        for uri in (
            "FILE:///etc/passwd",
            "file:/etc/passwd",
            "file:etc/passwd",
            "file:////etc/passwd",
            "file:///etc//passwd",
            "file:///etc%2Fpasswd",
            "file:///etc%252Fpasswd",
            "file://localhost/etc/passwd",
            "file://LOCALHOST./etc/passwd",
            "file://127.0.0.1/etc/passwd",
            "file://[::1]/etc/passwd",
            "file://other/etc/passwd",
            "file:\\\\\\etc\\passwd",
            " file:///etc/passwd",
            "file:///etc/passwd\n",
            "file:///et\tc/passwd",
            "fi\nle:///etc/passwd",
            "file:///x/../etc/passwd",
            "file:///x/%2e%2E/etc/passwd",
            "file:///x/.\t./etc/passwd",
            "file:///x%2f..%2fetc/passwd",
            "file:///etc//../passwd",
            "file:///etc/a%2Fb/../passwd",
            "file:///etc/./passwd",
            "file:///etc/passwd/",
            "file:///etc/passwd?x",
            "file:///etc/passwd#x",
        )
    ]
    + [
        ("https://evil.example/a", uri)
        for uri in (
            "https:evil.example/a",
            "https:///evil.example/a",
            "https:\\\\evil.example\\a",
            "https://EVIL.example./a",
            "https://evil\u3002example/a",
            "https://\uff45vil.example/a",
            "https://evil%2Eexample/a",
            "https://evil.example:443/a",
            "https://evil.example:0443/a",
            "https://someone@evil.example/a",
            "https://evil.example/b/../a",
        )
    ]
    + [
        ("notes://private", "notes:///private"),
        ("notes://private", "notes:private"),
        ("notes://private", "notes://x/../private"),
        ("notes://private", "notes://private#part"),
        ("notes://private/a", "notes://someone@private/a"),
        ("notes://private/a", "notes://private:80/a"),
        ("notes://private/a", "notes://private:/a"),
        ("x://[::1]/a", "x://someone@[::1]:80/a"),
        ("notes://caf\u00e9", "notes://cafe\u0301"),
        ("in+file:///etc/passwd", "in+file:/etc/passwd"),
        ("x://h?a=1&b=2", "x://h?b=2&a=1"),
        ("file:///a?b", "file:///a?b"),
        ("x://h/a%2Fb", "x://h/a/b"),
        ("file:///c:/x", "file:///c|/x"),
    ],
)
def test_a_rule_means_every_reading(rule: str, uri: str) -> None:
    assert means(rule, uri)


@pytest.mark.parametrize(
    ("rule", "uri"),
    [
        ("file:///etc/passwd", "file:///etc/Passwd"),
        ("file:///etc/passwd", "file:///etc/passwd2"),
        ("file:///etc/passwd", "file:///etc"),
        ("file:///etc/passwd/x", "file:///etc/passwd"),
        ("notes://private", "notes://private2"),
        ("notes://private", "notes://private/x"),
        ("notes://private#part", "notes://private"),
        ("notes://private?x", "notes://private"),
        ("notes://private", "notes://private?x=1"),
        ("notes://someone@private/a", "notes://private/a"),
        ("notes://private:80/a", "notes://private/a"),
        ("notes://private:80/a", "notes://private:81/a"),
        ("notes://private/a", "notes://private@other/a"),
        ("memo:all", "memo:All"),
        ("https://good.example/a", "https://evil.example/a"),
        ("https://good.example:8443/a", "https://good.example/a"),
        ("file://server/share", "file:///share"),
        ("x://h/%3Fa", "x://h/?a"),
    ],
)
def test_a_rule_means_nothing_else(rule: str, uri: str) -> None:
    assert not means(rule, uri)


@pytest.mark.parametrize(
    "uri",
    [
        "file:///a b",
        "file:///a\tb",
        "file:///a%09b",
        "file:///a\x7f",
        "file:///a/../b",
        "file:///a/%2e%2e/b",
        "file:///a/%252e/b",
        "file:///a\\b",
        "file:///a%5Cb",
        "file:///%2525252525252541",
        "https://evil.example%2F.good.example/",
        "https://evil.example\uff0f.good.example/",
    ],
)
def test_what_readers_may_disagree_about(uri: str) -> None:
    assert is_ambiguous(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "file:///a/b.txt",
        "file:///a%20b/100%25",
        "notes://a%2Fb",
        "file:///a%3Fb",
        "https://h:1/a?b=c#d",
        "urn:a:b",
        "x:",
    ],
)
def test_what_all_readers_understand_alike(uri: str) -> None:
    assert not is_ambiguous(uri)


def test_long_and_odd_texts_have_keys_and_readings() -> None:
    for text in ("", ":", "x:", "//", "%", "x://%", "x://" + "%25" * 3000, "x:" + "/." * 4000, "x:\ud800", "\x00"):
        assert uri_key(text) in uri_readings(text)
        assert isinstance(is_ambiguous(text), bool)
