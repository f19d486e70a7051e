"""Judges every message a server sends: by the official schema of its revision, and by the types of the official SDK.

Without the schema of a revision, only the rules that need no schema apply (see `official_schemas`). The draft dialect
has no schema and is exempt.
"""

import functools
from typing import Any

import jsonschema_rs
from mcp_types import methods as sdk

from official_schemas import has_schema, load_schema

HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS = "2026-07-28"
PUBLISHED = (*HANDSHAKE, STATELESS)
SDK_CHECKED_REVISIONS = ("2025-11-25", STATELESS)

# What modern servers may send: JSON-RPC's own codes, the three allocated ones, or anything outside JSON-RPC's range.
STATELESS_ERROR_CODES = {-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022}
STATELESS_ERROR_NAMES = {
    -32700: "ParseError",
    -32600: "InvalidRequestError",
    -32601: "MethodNotFoundError",
    -32602: "InvalidParamsError",
    -32603: "InternalError",
    -32020: "HeaderMismatchError",
    -32021: "MissingRequiredClientCapabilityError",
    -32022: "UnsupportedProtocolVersionError",
}
# Before 2025-11-25 the schemas ask every error for an id, even one that answers something without a readable id.
ID_ALWAYS = ("2024-11-05", "2025-03-26", "2025-06-18")


@functools.cache
def schema(revision: str) -> dict[str, Any]:
    """A revision's schema, as published; NumberSchema's limits are numbers, whatever the file says."""
    loaded = load_schema(revision)
    number = definitions(loaded).get("NumberSchema", {}).get("properties", {})
    for name in ("minimum", "maximum", "default"):
        if number.get(name, {}).get("type") == "integer":
            number[name]["type"] = "number"
    return loaded


def definitions(loaded: dict[str, Any]) -> dict[str, Any]:
    return loaded.get("$defs") or loaded["definitions"]


@functools.cache
def validator(revision: str, name: str) -> Any:
    loaded = schema(revision)
    home = "$defs" if "$defs" in loaded else "definitions"
    return jsonschema_rs.validator_for({**loaded, "$ref": f"#/{home}/{name}"})


@functools.cache
def by_method(revision: str, union: str) -> dict[str, str]:
    """The definitions a union such as ServerNotification is made of, by the method each stands for."""
    known = definitions(schema(revision))
    members = [one["$ref"].rsplit("/", 1)[1] for one in known.get(union, {}).get("anyOf", [])]
    return {known[name]["properties"]["method"]["const"]: name for name in members}


def result_name(revision: str, method: str, result: Any) -> str:
    if isinstance(result, dict) and result.get("resultType") == "input_required":
        return "InputRequiredResult"
    request = by_method(revision, "ClientRequest").get(method)
    assert request is not None, f"{revision} has no method {method}, yet it was answered: {result}"
    name = request.removesuffix("Request") + "Result"
    return name if name in definitions(schema(revision)) else "EmptyResult"


def judge_result(revision: str, method: str, message: dict[str, Any]) -> None:
    """A successful response to a request of this method."""
    if revision not in PUBLISHED or method == "shutdown":  # shutdown is the house's own
        return
    result = message["result"]
    if has_schema(revision):
        envelope = "JSONRPCResultResponse" if revision in SDK_CHECKED_REVISIONS else "JSONRPCResponse"
        _check(revision, envelope, message)
        _check(revision, result_name(revision, method, result), result)
    if revision == STATELESS:
        assert result.get("resultType") in ("complete", "input_required"), f"resultType is missing: {result}"
    if revision in SDK_CHECKED_REVISIONS and (method, revision) in sdk.SERVER_RESULTS:
        sdk.parse_server_result(method, revision, result)


def judge_error(revision: str, message: dict[str, Any]) -> None:
    """An error response."""
    if revision not in PUBLISHED:
        return
    code = message["error"]["code"]
    assert type(code) is int, f"the code {code!r} is no integer"
    if revision == STATELESS:
        assert code in STATELESS_ERROR_CODES or not -32768 <= code <= -32000, f"{code} is not a code of {revision}"
    if not has_schema(revision):
        return
    if revision in ID_ALWAYS:
        _check(revision, "JSONRPCError", {"id": 0} | message)
    else:
        _check(revision, "JSONRPCErrorResponse", message)
    if revision == STATELESS and code in STATELESS_ERROR_NAMES:
        wanted = definitions(schema(revision))[STATELESS_ERROR_NAMES[code]]
        _check(
            revision,
            STATELESS_ERROR_NAMES[code],
            message if "error" in wanted.get("properties", {}) else message["error"],
        )


def judge_notification(revision: str, message: dict[str, Any]) -> None:
    """A notification from the server."""
    if revision not in PUBLISHED:
        return
    method = message["method"]
    if has_schema(revision):
        name = by_method(revision, "ServerNotification").get(method)
        assert name is not None, f"a server of {revision} does not send {method}"
        _check(revision, "JSONRPCNotification", message)
        _check(revision, name, message)
    if revision in SDK_CHECKED_REVISIONS:
        sdk.parse_server_notification(method, revision, message.get("params"))


def judge_server_request(revision: str, message: dict[str, Any]) -> None:
    """A request from the server."""
    if revision not in PUBLISHED:
        return
    assert revision != STATELESS, f"a server of {revision} sends no requests: {message}"
    method = message["method"]
    if has_schema(revision):
        name = by_method(revision, "ServerRequest").get(method)
        assert name is not None, f"a server of {revision} does not ask {method}"
        _check(revision, "JSONRPCRequest", message)
        _check(revision, name, message)
    if revision in SDK_CHECKED_REVISIONS:
        sdk.parse_server_request(method, revision, message.get("params"))


def _check(revision: str, name: str, value: Any) -> None:
    for error in validator(revision, name).iter_errors(value):
        raise AssertionError(f"not a {name} of {revision}: {error.message} at {list(error.instance_path)}: {value}")
