import msgspec
import pytest

from dovetail.wire.lifecycle import (
    ClientCapabilities,
    DiscoverResult,
    ElicitationCapability,
    Implementation,
    InitializeParams,
    InitializeResult,
    ListChangedCapability,
    ResourcesCapability,
    RootsCapability,
    SamplingCapability,
    ServerCapabilities,
)


def test_declared_and_empty_is_not_undeclared() -> None:
    text = b'{"roots":{},"sampling":{},"elicitation":{}}'
    declared = msgspec.json.decode(text, type=ClientCapabilities)
    assert declared == ClientCapabilities(
        roots=RootsCapability(), sampling=SamplingCapability(), elicitation=ElicitationCapability()
    )
    assert msgspec.json.encode(declared) == text
    assert msgspec.json.encode(ClientCapabilities()) == b"{}"


def test_a_server_declares_the_same_way() -> None:
    text = b'{"logging":{},"completions":{},"prompts":{},"resources":{"subscribe":true},"tools":{"listChanged":true}}'
    declared = msgspec.json.decode(text, type=ServerCapabilities)
    assert declared.prompts == ListChangedCapability()
    assert declared.resources == ResourcesCapability(subscribe=True)
    assert declared.tools == ListChangedCapability(list_changed=True)
    assert msgspec.json.encode(declared) == text


def test_what_extensions_and_experiments_say_survives() -> None:
    text = b'{"experimental":{"x":true,"y":{"a_b":null}},"extensions":{"com.example/z":{"n":1.5}}}'
    for kind in (ClientCapabilities, ServerCapabilities):
        assert msgspec.json.encode(msgspec.json.decode(text, type=kind)) == text


def test_an_introduction() -> None:
    params = InitializeParams(
        protocol_version="2025-11-25",
        capabilities=ClientCapabilities(),
        client_info=Implementation(name="c", version="1", website_url="https://a.example/"),
    )
    assert msgspec.json.decode(msgspec.json.encode(params)) == {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "c", "version": "1", "websiteUrl": "https://a.example/"},
    }


@pytest.mark.parametrize("member", ["protocolVersion", "capabilities", "serverInfo"])
def test_an_introduction_with_a_gap_is_refused(member: str) -> None:
    whole = {"protocolVersion": "x", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
    assert msgspec.convert(whole, InitializeResult).server_info.name == "s"
    with pytest.raises(msgspec.ValidationError, match=member):
        msgspec.convert({name: value for name, value in whole.items() if name != member}, InitializeResult)


@pytest.mark.parametrize("text", [b'{"name":"x"}', b'{"version":"1"}', b'{"name":"x","version":1}'])
def test_a_program_has_a_name_and_a_version(text: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=Implementation)


def test_a_discovery_always_lists_revisions_and_capabilities() -> None:
    found = DiscoverResult(supported_versions=[], capabilities=ServerCapabilities())
    assert msgspec.json.encode(found) == b'{"supportedVersions":[],"capabilities":{}}'
