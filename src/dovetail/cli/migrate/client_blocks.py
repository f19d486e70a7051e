"""Translate `async with` blocks that open client sessions, or the stdio streams of low-level servers."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import libcst as cst

from dovetail.cli.migrate.call_arguments import CallArguments
from dovetail.cli.migrate.edits import Edits

_CLIENT_TRANSPORTS: Final = (
    "stdio_client",
    "sse_client",
    "streamablehttp_client",
    "streamable_http_client",
)
_SESSION_OPTIONS: Final = {
    "elicitation_callback": "elicitation_handler",
    "logging_callback": "log_handler",
    "sampling_callback": "sampling_handler",
}

# The migration removes these options without a finding, because they have no effect in dovetail.
_DROPPED_OPTIONS: Final = ("sse_read_timeout", "terminate_on_close", "timeout", "read_timeout_seconds")
_OPTION_ADVICE: Final = {
    "auth": 'pass auth="oauth", a token or an authorizer of dovetail.auth to Client(...)',
    "list_roots_callback": "pass roots= to Client(...)",
    "message_handler": "pass notification_handler= to Client(...)",
}

PeerNameFinder = Callable[[cst.CSTNode], str | None]


def translate_client_block(
    edits: Edits, original: cst.With, updated: cst.With, get_peer_name: PeerNameFinder, line: int
) -> Any:
    """Return the new statements for a block that opens streams. Return any other block unchanged."""
    names = [_get_called_name(item, get_peer_name) for item in original.items]
    if names == ["stdio_server"]:
        return cst.FlattenSentinel(_get_statements(updated))
    if names and names[0] in _CLIENT_TRANSPORTS:
        return _merge_session(edits, original, updated, names, get_peer_name, line)
    return updated


def _get_called_name(item: cst.WithItem, get_peer_name: PeerNameFinder) -> str:
    name = get_peer_name(item.item.func) if isinstance(item.item, cst.Call) else None
    return "" if name is None else name.rpartition(".")[2]


def _get_statements(node: cst.With) -> Sequence[cst.BaseStatement]:
    body = node.body
    return [statement for statement in body.body if isinstance(statement, cst.BaseStatement)]


def _merge_session(
    edits: Edits, original: cst.With, updated: cst.With, names: list[str], get_peer_name: PeerNameFinder, line: int
) -> Any:
    """Replace the blocks of a transport and of its session with one `async with Client(...)` block."""
    transport = updated.items[0].item
    if len(names) == 2 and names[1] == "ClientSession":
        block, session = updated, updated.items[1]
    else:
        inner_statements = _get_statements(original)
        inner = inner_statements[0] if len(inner_statements) == 1 else None
        if not isinstance(inner, cst.With) or _get_called_name(inner.items[0], get_peer_name) != "ClientSession":
            return updated
        block = _get_statements(updated)[0]
        if not isinstance(block, cst.With):
            return updated
        session = block.items[0]
    assert isinstance(transport, cst.Call)
    assert isinstance(session.item, cst.Call)
    arguments = _build_client_arguments(edits, transport, session.item, line)
    client = cst.Call(edits.import_expression("dovetail.Client"), arguments)
    items = [cst.WithItem(client, session.asname), *block.items[2 if block is updated else 1 :]]
    return block.with_changes(items=items, leading_lines=updated.leading_lines)


def _build_client_arguments(edits: Edits, transport: cst.Call, session: cst.Call, line: int) -> list[cst.Arg]:
    arguments = CallArguments(transport)
    arguments.name_positional(("url", "headers", "timeout"), start=1)
    for name in ("url", "server"):
        arguments.unname(name)
    _remove_options(edits, arguments, ("headers",), line)
    session_arguments = CallArguments(session)
    session_arguments.name_positional(("read_stream", "write_stream", "read_timeout_seconds"))
    for name in ("read_stream", "write_stream"):
        session_arguments.pop(name)
    for old, new in _SESSION_OPTIONS.items():
        value = session_arguments.pop(old)
        if value is not None:
            arguments.append(value, new)
            if old != "logging_callback":  # mcp and dovetail call a logging callback with the same argument.
                edits.report(line, f"{old}=", f"{new}= is called without the context. Change the function")
    client_info = session_arguments.pop("client_info")
    if client_info is not None:
        arguments.append(client_info, "client_info")
    _remove_options(edits, session_arguments, (), line)
    return [*arguments.args]


def _remove_options(edits: Edits, arguments: CallArguments, kept: Sequence[str], line: int) -> None:
    """Remove the options that `Client` does not have. Report each option that is not in `_DROPPED_OPTIONS`."""
    names = [arg.keyword.value for arg in arguments.args if arg.keyword is not None]
    for name in names:
        if name not in kept:
            arguments.pop(name)
            if name not in _DROPPED_OPTIONS:
                edits.report(line, f"{name}=", _OPTION_ADVICE.get(name, "Client(...) has no such option"))
