"""Test server entries of configuration files, with references that are resolved only at the start."""

from pathlib import Path
from typing import Any

import pytest

from dovetail.host.config.secret_lookup import SecretResolver
from dovetail.host.config.server_entry import ServerConfig, describe_config, parse_entry, select_inputs

HERE = Path("/p/mcp.json")


def read(given: Any, *, name: str = "s", source: str = "mcp.json", level: Any = "user") -> ServerConfig:
    return parse_entry(name, given, source, HERE, level=level, project_dir=HERE.parent)[0]


def told(given: Any, **options: Any) -> list[str]:
    return parse_entry("s", given, "mcp.json", HERE, project_dir=HERE.parent, **options)[1]


@pytest.mark.parametrize(
    ("given", "spelled"),
    [
        ({"command": "npx", "args": ["-y", "a b"]}, "npx -y 'a b'"),
        ({"cmd": "npx", "args": [1]}, "npx 1"),
        ({"command": ["npx", "-y"]}, "npx -y"),
        ({"command": {"path": "npx", "args": ["-y"]}}, "npx -y"),
        ({"url": "https://x.example/mcp"}, "https://x.example/mcp"),
        ({"httpUrl": "https://x.example/mcp"}, "https://x.example/mcp"),
        ({"serverUrl": "https://x.example/${KEY}"}, "https://x.example/${KEY}"),
    ],
)
def test_spellings_of_one_thing(given: Any, spelled: str) -> None:
    assert read(given).display_target == spelled


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ([], "object"),
        ({}, "command.*url"),
        ({"command": 7}, "command.*url"),
        ({"command": "x", "args": "-y"}, "args"),
        ({"command": "x", "env": ["A=1"]}, "env"),
        ({"command": "x", "cwd": 5}, "cwd"),
        ({"command": "x", "x-dovetail": {"trsut": True}}, "x-dovetail"),
        ({"command": "x", "x-dovetail": {"limits": {"rate": "often"}}}, "x-dovetail"),
    ],
)
def test_an_invalid_entry(given: Any, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        read(given)


def test_trust_is_the_users_to_give() -> None:
    given = {"command": "x", "x-dovetail": {"trusted": True}}
    assert read(given).settings.trusted
    assert not read(given, level="project").settings.trusted
    assert any("trusted" in one for one in told(given, level="project"))


def test_unknown_members_are_reported() -> None:
    assert any("argument" in one for one in told({"command": "x", "argument": ["y"]}, level="user"))
    assert told({"command": "x", "args": ["y"], "env": {}}, level="user") == []


def test_a_repr_has_names_and_no_values() -> None:
    entry = read({"command": "x", "env": {"TOKEN": "s3cret"}, "headers": {"Authorization": "s3cret"}})
    assert "s3cret" not in repr(entry)
    assert "TOKEN" in repr(entry)
    assert "s3cret" not in repr(read({"url": "https://u:s3cret@x.example/s3cret?key=s3cret"}))


def test_references_are_looked_up_when_it_is_started() -> None:
    entry = read({"command": "x", "args": ["${A}"], "env": {"KEY": "${input:key}"}})
    assert [str(one) for one in entry.references] == ["A", "input:key"]
    made = entry.to_target(secrets=SecretResolver({"A": "one"}, {"key": "two"}))
    assert (made["args"], made["env"]) == (["one"], {"KEY": "two"})
    with pytest.raises(KeyError):
        entry.to_target({})


def test_inputs_are_asked_for_as_the_file_describes_them() -> None:
    described = {"id": "key", "type": "promptString", "password": True}
    entry = read({"command": "x", "env": {"KEY": "${input:key}", "OTHER": "${input:other}"}})
    with_inputs = select_inputs(entry, {"key": described, "unused": {"id": "unused"}})
    assert with_inputs.required_inputs == [described, {"id": "other"}]
    assert [*with_inputs.inputs] == ["key"]


def test_what_is_started_is_what_it_is_known_by() -> None:
    one = read({"command": "x", "args": ["a"]})
    assert read({"command": "x", "args": ["a"]}, name="other").identity == one.identity
    assert read({"command": "x", "args": ["b"]}).identity != one.identity
    assert read({"command": "x", "args": ["a"]}, level="project").identity != one.identity


def test_the_headers_of_a_project_are_shown_before_they_are_sent() -> None:
    headers = {"X-Mode": "admin", "Authorization": "Bearer ${GITHUB_TOKEN}"}
    details = describe_config(read({"url": "https://x.example/mcp", "headers": headers}, level="project"))
    assert details["headers"] == headers


@pytest.mark.parametrize("headers", [{"A": "1\nB: 2"}, {"A\nB": "1"}, {"A": "1\x00"}])
def test_a_header_with_a_control_character_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="headers"):
        read({"url": "https://x.example/mcp", "headers": headers})
