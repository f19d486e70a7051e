"""Test that secrets are masked by their names and by their own form, and that nothing else changes."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.protocol.headers import encode_value
from dovetail.protocol.redaction import (
    MASK,
    is_secret_name,
    mask_headers,
    mask_secrets,
    mask_text,
    may_hold_secrets,
    strip_url,
)
from dovetail.recording.recording_format import create_frame, create_header
from dovetail.wire.codec import encode


@pytest.mark.parametrize(
    "name", ["access_token", "refresh-token", "apiKey", "client_secret", "PASSWORD", "authorization", "token"]
)
def test_members_named_as_secrets_are_masked_at_any_depth(name: str) -> None:
    assert mask_secrets({"params": [{name: "s3cret", "other": "kept"}]}) == {"params": [{name: MASK, "other": "kept"}]}


def test_what_only_looks_like_a_secret_stays() -> None:
    harmless = {"progressToken": 7, "maxTokens": 100, "tokens": 3, "token": None, "secret": True, "key": "a"}
    assert mask_secrets(harmless) == harmless


def test_states_are_masked_unless_wanted() -> None:
    message = {"params": {"requestState": "sealed"}}
    assert mask_secrets(message) == {"params": {"requestState": MASK}}
    assert mask_secrets(message, keep_request_state=True) == message


def test_headers_that_open_doors_are_masked() -> None:
    shown = mask_headers({"Authorization": "Bearer x", "Mcp-Session-Id": "abc", "Mcp-Method": "tools/call"})
    assert shown == {"Authorization": MASK, "Mcp-Session-Id": MASK, "Mcp-Method": "tools/call"}
    made = create_frame(0, "server", b"{}", [(b"cookie", b"a=b"), (b"mcp-name", b"add")])
    assert made.headers == {"cookie": MASK, "mcp-name": "add"}


@pytest.mark.parametrize("name", ["X-Goog-Api-Key", "X-Auth-Token", "Mcp-Param-Token", "mcp-param-api-key", "X-Secret"])
def test_headers_named_as_secrets_are_masked(name: str) -> None:
    assert mask_headers({name: "s3cret"}) == {name: MASK}


def test_arguments_repeated_in_headers_are_masked_by_their_names() -> None:
    assert mask_headers({"mcp-param-author": "Ada", "mcp-param-keyboard": "qwerty"}) == {
        "mcp-param-author": "Ada",
        "mcp-param-keyboard": "qwerty",
    }


def test_json_within_texts_is_masked_too() -> None:
    inner = json.dumps({"user": "ada", "nested": json.dumps([{"api_key": "s3cret"}]), "password": "hunter2"})
    told = json.dumps(mask_secrets({"content": [{"type": "text", "text": inner}]}))
    assert "hunter2" not in told
    assert "s3cret" not in told
    assert "ada" in told


@pytest.mark.parametrize("text", ['{ "a" :  1 }', "[1, 2]", "{not json", "[" * 100_000])
def test_texts_without_secrets_stay_as_they_are(text: str) -> None:
    assert mask_secrets(text) == text


SECRET_NAMES = [
    "api_token", "auth_token", "github_token", "secret_key", "db_password", "passwd", "access_key", "apiToken",
    "dbPassword", "DB_PASS", "aws_secret_access_key", "private_key_pem", "passphrase", "credentials", "session_token",
    "jwt", "connection_string", "webhook_url", "pwd", "ssh_key", "signing_key", "oauth_token", "x-api-key", "apitoken",
    "authtoken", "otp", "password_confirm", "GITHUB_PAT", "refresh_token_2", "cookies", "basic_auth",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET_NAMES)
@pytest.mark.parametrize(
    "value", ["s3cret", ["s3cret"], {"inner": "s3cret"}, 1234.5], ids=["text", "list", "object", "number"]
)
def test_a_name_with_a_secret_word_masks_any_value(name: str, value: Any) -> None:
    assert mask_secrets({"arguments": {name: value}}) == {"arguments": {name: MASK}}
    assert may_hold_secrets(encode({"arguments": {name: value}}))


@pytest.mark.parametrize(
    "name",
    ["key", "primary_key", "public_key", "access_key_id", "token_type", "author", "keyboard", "secretary",
     "cookie_name", "token_endpoint", "passenger", "compass", "tokenizer", "nextCursor", "path", "pattern"],
)  # fmt: skip
def test_an_ordinary_name_is_not_secret(name: str) -> None:
    assert not is_secret_name(name)


def test_headers_that_repeat_a_secret_argument_are_masked() -> None:
    assert mask_headers({"Mcp-Param-Api-Token": "s3cret"}) == {"Mcp-Param-Api-Token": MASK}


@pytest.mark.parametrize(
    "text",
    [
        "postgres://ada:s3cret-s3cret@db/x",
        "GET https://example.com/mcp?api_key=s3cret-s3cret&a=1",
        "https://example.com/mcp?key=s3cret-s3cret",
        "DB_PASSWORD=s3cret-s3cret",
        "use eyJs3cret-s3cret.eyJs3cret-s3cret.s3cret-s3cret now",
        "ghp_s3crets3crets3crets3cret",
        "sk-s3cret-s3cret-s3cret-s3cret",
        "-----BEGIN RSA PRIVATE KEY-----\ns3cret\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\ns3cret",
    ],
)
def test_a_secret_is_recognized_by_its_form(text: str) -> None:
    assert "s3cret" not in mask_text(text)
    assert "s3cret" not in json.dumps(mask_secrets({"content": [{"text": text}]}))
    assert may_hold_secrets(encode({"content": [{"text": text}]}))
    frame = create_frame(0, "client", text.encode())
    assert "s3cret" not in str(frame.text)


def test_the_definition_of_a_secret_field_stays_but_not_its_default() -> None:
    field = {"type": "string", "title": "Password"}
    schema = {"type": "object", "properties": {"password": field}, "required": ["password"]}
    assert mask_secrets({"inputSchema": schema}) == {"inputSchema": schema}
    schema = {"type": "object", "properties": {"password": field | {"default": "s3cret"}}}
    masked = mask_secrets({"requestedSchema": schema})
    assert masked["requestedSchema"]["properties"]["password"] == field | {"default": MASK}


def test_questions_and_extensions_may_have_any_name() -> None:
    message = {
        "inputRequests": {"api_token": {"method": "elicitation/create", "params": {"message": "Which?"}}},
        "capabilities": {"extensions": {"io.modelcontextprotocol/oauth-client-credentials": {"a": "b"}}},
    }
    assert mask_secrets(message) == message
    answers = {"inputResponses": {"api_token": {"action": "accept", "content": {"api_token": "s3cret"}}}}
    assert mask_secrets(answers)["inputResponses"]["api_token"] == {"action": "accept", "content": {"api_token": MASK}}


def test_the_value_of_a_pair_is_masked_by_its_name() -> None:
    argument = {"argument": {"name": "password", "value": "s3cret"}}
    assert mask_secrets(argument) == {"argument": {"name": "password", "value": MASK}}
    assert may_hold_secrets(encode(argument))


def test_a_value_too_deep_to_search_is_masked_whole() -> None:
    deep: Any = {"password": "s3cret"}
    for _ in range(2000):
        deep = {"a": deep}
    assert mask_secrets(deep) == MASK


@pytest.mark.parametrize(
    ("address", "stored"),
    [
        ("https://ada:s3cret@example.com:8080/mcp?api_key=s3cret#s3cret", "https://example.com:8080/mcp"),
        ("http://[::1]:1/a?b", "http://[::1]:1/a"),
        ("server.py", "server.py"),
        ("uvx mcp-server-time", "uvx mcp-server-time"),
        ("tcp://127.0.0.1:9", "tcp://127.0.0.1:9"),
    ],
)
def test_a_heading_has_no_user_and_no_query(address: str, stored: str) -> None:
    assert strip_url(address) == stored
    assert create_header(address).server == stored


@pytest.mark.parametrize(
    "piece", ["eyJaaaaaaaa-", "eyJaaaaaaaa.", "bearer ", "a://b:", "-----BEGIN PRIVATE KEY-----", "a=", "sk-a"]
)
def test_masking_takes_linear_time(piece: str) -> None:
    started = time.process_time()
    mask_text(piece * (400_000 // len(piece)))
    assert time.process_time() - started < 5  # a quadratic search takes minutes


@pytest.mark.parametrize(
    "text",
    [
        'export DB_PASSWORD="s3cret s3cret"',
        "password = 's3cret'",
        "connect(host, password=s3cret)",
        "run --env=API_TOKEN=s3cret now",
        "mcp-server --api-key s3cret --verbose",
        '{"user": "ada", "password": "s3cret',  # cut off
        '{"token": "s3cret"}\n{"token": "s3cret"}',
        "{'api_key': 's3cret', 'pin': 1234}",
        'error: {\\"password\\": \\"s3cret\\"}',
        'Here it is:\n```json\n{"client_secret": "s3cret"}\n```',
        "database:\n  user: ada\n  password: s3cret-7\n",
        "Authorization: Token s3cret-s3cret",
        "use DPoP s3cret-s3cret",
        "https://app.example/callback#access_token=s3cret&state=1",
        "https://app.example/callback?code=s3cret&state=1",
        "https://bucket.example/file?X-Amz-Signature=s3cret",
        "https://app.example/messages?session_id=s3cret",
        "https://s3cret@git.example/repo",
        "postgres://ada:p@s3cret@db/x",
        "https://hooks.slack.com/services/T000/B000/s3crets3cret",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\ns3cret\n-----END PGP PRIVATE KEY BLOCK-----",
        "eyJs3crets3cret.s3cret-s3cret.s3cret-s3cret.s3cret-s3cret.s3cret-s3cret",  # an encrypted token
        "hf_s3crets3crets3crets3cret",
    ],
)
def test_a_secret_is_recognized_however_a_text_assigns_it(text: str) -> None:
    assert "s3cret" not in mask_text(text)
    assert "s3cret" not in json.dumps(mask_secrets({"content": [{"text": text}]}))
    assert may_hold_secrets(encode({"content": [{"text": text}]}))


@pytest.mark.parametrize(
    "text",
    [
        "token: The token to use.",
        "Pass a password. The password must have 8 characters.",
        '{"inputSchema": {"password": {"type": "string"}}, ',
        '"maxTokens": 100, "token": null, "token_type": "bearer"',
        "if token == other: pass",
        "https://example.com/@ada?code=NO&page=2",
        "see https://example.com/a?b=c",
    ],
)
def test_a_text_about_secrets_stays(text: str) -> None:
    assert mask_text(text) == text


@pytest.mark.parametrize(
    "value",
    [
        {"args": ["serve", "--password", "s3cret", "-v"]},
        {"headers": [{"key": "Authorization", "value": "s3cret"}]},
        {"fields": [{"id": "api_token", "value": "s3cret"}]},
        {"Bearer s3crets3cret": True},
        {"inputResponses": {"api_token": {"action": "accept", "content": {"value": "s3cret"}}}},
    ],
)
def test_a_secret_is_masked_by_the_name_beside_it(value: Any) -> None:
    assert "s3cret" not in json.dumps(mask_secrets(value))
    assert may_hold_secrets(encode(value))


def test_a_text_nested_too_deeply_to_search_is_masked() -> None:
    text = json.dumps({"password": "s3cret"})
    for _ in range(12):
        text = json.dumps({"text": text})
    assert "s3cret" not in mask_secrets(text)


@pytest.mark.parametrize(
    "name",
    ["pin", "recovery_codes", "mfaCode", "authorization_code", "device_code", "consumer_key", "openai_key",
     "stripeKey", "license_key", "seed_phrase", "mnemonic", "card_number"],
)  # fmt: skip
def test_more_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


def test_an_encoded_header_is_decoded_to_find_a_secret() -> None:
    secret, plain = encode_value("password=s3cret é"), encode_value("Zoë")
    assert mask_headers({"Mcp-Param-Query": secret, "Mcp-Param-Name": plain}) == {
        "Mcp-Param-Query": MASK,
        "Mcp-Param-Name": plain,
    }


_TEXTS = st.sampled_from(
    ["password", "token: ", "=", "--", "api_key", "'", '"', ": ", "s3cret-s3cret-s3cret", "Bearer ", "a", " ", "\n",
     "https://", "@", "?", "&", "#", "eyJ", ".", "{", "}", "[", "]", ",", "value", "name", "sk-", "AKIA", "-----"]
)  # fmt: skip
_STRINGS = st.lists(_TEXTS, max_size=8).map("".join)


@given(st.recursive(_STRINGS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_STRINGS, inner, max_size=3)))
def test_a_value_without_hints_is_not_changed_by_masking(value: Any) -> None:
    if not may_hold_secrets(encode(value)):
        assert mask_secrets(value) == value


@pytest.mark.parametrize(
    "piece",
    ['password="', "--token ", "'token': ", '\\"token\\": \\"', "?code=", "token: ", "a b ", "x@", "cookie: a\n"],
)
def test_masking_assignments_takes_linear_time(piece: str) -> None:
    started = time.process_time()
    mask_text(piece * (400_000 // len(piece)))
    assert time.process_time() - started < 5  # a quadratic search takes minutes
