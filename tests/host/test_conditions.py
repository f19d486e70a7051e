"""Test conditions on arguments: true, false and impossible to evaluate."""

from typing import Any

import pytest

from dovetail.host.policy.conditions import Condition, argument, parse_condition

HOSTS = argument("/url").host_in("localhost", "*.test")
METADATA = argument("/url").host_in("169.254.169.254", "[fd00:ec2::254]")
FOLDER = argument("/path").under("/srv/docs")


@pytest.mark.parametrize(
    ("one", "arguments", "holds"),
    [
        (argument("/repo").in_(["a", "b"]), {"repo": "a"}, True),
        (argument("/repo").in_(["a", "b"]), {"repo": "c"}, False),
        (argument("/repo").in_(["a", "b"]), {}, False),
        (argument("/n").equals(1), {"n": 1}, True),
        (argument("/n").equals(1), {"n": 1.0}, True),
        (argument("/n").equals(1.0), {"n": 1}, True),
        (argument("/n").in_([0, 2]), {"n": -0.0}, True),
        (argument("/n").equals(1), {"n": 1.5}, False),
        (argument("/n").equals({"a": [1]}), {"n": {"a": [1.0]}}, True),
        (argument("/n").equals(2**53), {"n": 2.0**53}, True),
        (argument("/n").equals(1), {"n": 1e300}, False),
        (argument("/n").equals([1, 2]), {"n": [1, 2]}, True),
        (argument("/n").equals({"a": 1, "b": 2}), {"n": {"b": 2, "a": 1}}, True),
        (argument("/a/b~1c/1").equals("x"), {"a": {"b/c": ["y", "x"]}}, True),
        (argument("/a/9").exists(), {"a": [1]}, False),
        (argument("/a/²").exists(), {"a": [1]}, False),
        (argument("/a").exists(), {"a": None}, True),
        (argument("/a").exists(), {}, False),
        (argument("/q").matches("is:*", "has:*"), {"q": "has:label"}, True),
        (argument("/q").matches("is:*"), {"q": "xis:open"}, False),
        (HOSTS, {"url": "http://localhost:3000/x?y#z"}, True),
        (HOSTS, {"url": "https://API.TEST./"}, True),
        (HOSTS, {"url": "https://evil.example/localhost"}, False),
        (HOSTS, {"url": "https://localhost.evil.example"}, False),
        (METADATA, {"url": "http://169.254.169.254/latest"}, True),
        (METADATA, {"url": "http://169.254.169.254.:80/"}, True),
        (METADATA, {"url": "http://[FD00:EC2:0::0254]/"}, True),
        (METADATA, {"url": "http://10.0.0.1/"}, False),
        (METADATA, {"url": "http://[::1]/"}, False),
        (METADATA, {"url": "http://169.254.169.254.example/"}, False),
        (FOLDER, {"path": "/srv/docs/a/../b.md"}, True),
        (FOLDER, {"path": "/srv/docs"}, True),
        (FOLDER, {"path": "/srv/docs/../secret"}, False),
        (FOLDER, {"path": "/srv/docs-old/x"}, False),
        (FOLDER, {"path": "//srv/docs/x"}, True),
        (FOLDER, {"path": "file:///srv/docs/%61"}, True),
        (FOLDER, {"path": "file:///srv/docs/%2e%2e/x"}, False),
        (argument("/path").under("docs"), {"path": "docs/../docs/x"}, True),
        (argument("/path").under("docs"), {"path": "docs/../../x"}, False),
        (argument("/path").under("."), {"path": "a/b"}, True),
        (argument("/path").under("."), {"path": "../b"}, False),
        (argument("/path").under("/"), {"path": "/etc"}, True),
        (argument("/path").under(r"C:\work"), {"path": "c:/WORK/x"}, True),
        (argument("/path").under(r"C:\work"), {"path": r"C:\work\..\x"}, False),
    ],
)
def test_what_can_be_judged_is(one: Condition, arguments: dict[str, Any], holds: bool) -> None:
    assert one.evaluate(arguments, if_unclear=False) is holds
    assert one.evaluate(arguments, if_unclear=True) is holds


@pytest.mark.parametrize(
    ("one", "value"),
    [
        *((HOSTS, url) for url in (
            "localhost", "localhost:80/x", "//localhost/", "http://localhost@evil.example/", "http://u:p@localhost/",
            "http://localhost\\@evil.example/", "http://local\thost/", " http://localhost", "http://localhost\n",
            "http://lócalhost/", "http://localhost:80:80/", "http:localhost", "http:///localhost", "http://localhost%2eevil/",
            7, None, {"href": "http://localhost"},
        )),
        *((METADATA, url) for url in (
            "http://2852039166/", "http://0xa9fea9fe/", "http://0251.0376.0251.0376/", "http://169.254.43518/",
            "http://0xA9.254.169.0376/", "http://[::ffff:169.254.169.254]/", "http://[::169.254.169.254]/",
            "http://[64:ff9b::a9fe:a9fe]/", "http://[2002:a9fe:a9fe::1]/", "http://169.254.169.254../", "http://[::1::2]/",
        )),
        *((FOLDER, path) for path in (
            "a/b", "~/x", "/srv/docs/\0x", r"/srv/docs\..\x", "file://elsewhere/srv/docs/x", "file:///srv/docs/x?y",
            7, None,
        )),
        (argument("/path").under(r"C:\work"), r"\work\x"),
        (argument("/q").matches("*"), 7),
        (argument("/n").equals(1), True),
        (argument("/n").equals(1.0), True),
        (argument("/n").equals(True), 1),
    ],
)  # fmt: skip
def test_what_cannot_be_judged_is_as_the_asker_says(one: Condition, value: Any) -> None:
    name = one.pointer[1:]
    assert one.evaluate({name: value}, if_unclear=False) is False
    assert one.evaluate({name: value}, if_unclear=True) is True


def test_of_a_list_every_item_must_fulfil_it_or_any_where_doubt_counts() -> None:
    mixed = {"path": ["/srv/docs/a", ["/etc/passwd"]]}
    assert FOLDER.evaluate({"path": ["/srv/docs/a", ["/srv/docs/b"]]}, if_unclear=False)
    assert not FOLDER.evaluate(mixed, if_unclear=False)
    assert FOLDER.evaluate(mixed, if_unclear=True)
    assert not FOLDER.evaluate({"path": []}, if_unclear=False)
    assert not FOLDER.evaluate({"path": ["/etc"]}, if_unclear=True)


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"argument": "/a", "in": ["x", 1]}, argument("/a").in_(["x", 1])),
        ({"argument": "/a", "equals": ["x"]}, argument("/a").equals(["x"])),
        ({"argument": "/a", "matches": "x*"}, argument("/a").matches("x*")),
        ({"argument": "/a", "host_in": ["x", "y"]}, argument("/a").host_in("x", "y")),
        ({"argument": "/a", "under": "/x"}, argument("/a").under("/x")),
        ({"argument": "/a", "exists": True}, argument("/a").exists()),
    ],
)
def test_conditions_can_be_written_in_a_file(given: dict[str, Any], made: Condition) -> None:
    assert parse_condition(given) == made


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"argument": "/a"},
        {"in": ["x"]},
        {"argument": "a", "in": ["x"]},
        {"argument": "/a", "in": ["x"], "equals": 1},
        {"argument": "/a", "like": "x"},
        {"argument": "/a", "exists": False},
        {"argument": "/a", "under": [1]},
        {"argument": 1, "in": []},
    ],
)
def test_a_bad_condition_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"argument|equals|exists|under|/repo"):
        parse_condition(given)


def test_a_condition_says_what_it_needs_and_what_it_found() -> None:
    one = argument("/repo").in_(["octo/app", "octo/docs"])
    assert str(one) == '/repo in ["octo/app", "octo/docs"]'
    assert one.describe_value({"repo": "x\x1b[2J"}) == '"x\\u001b[2J"'
    assert one.describe_value({}) == "nothing"
    assert len(one.describe_value({"repo": "x" * 5000})) <= 200
    assert str(argument("/a").exists()) == "/a exists"
