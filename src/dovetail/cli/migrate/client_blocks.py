"""Translate `async with` blocks: sessions of clients, and the stdio streams of low-level servers."""

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

PeerNameFinder = Callable[[cst.CSTNode], str | None]


def translate_client_block(edits: Edits, original: cst.With, updated: cst.With, get_peer_name: PeerNameFinder) -> Any:
    """Return the new statements for a block that opens streams. Other blocks stay as they are."""
    names = [_get_called_name(item, get_peer_name) for item in original.items]
    if names == ["stdio_server"]:
        return cst.FlattenSentinel(_get_statements(updated))
    if names and names[0] in _CLIENT_TRANSPORTS:
        return _merge_session(edits, original, updated, names, get_peer_name)
    return updated


def _get_called_name(item: cst.WithItem, get_peer_name: PeerNameFinder) -> str:
    name = get_peer_name(item.item.func) if isinstance(item.item, cst.Call) else None
    return "" if name is None else name.rpartition(".")[2]


def _get_statements(node: cst.With) -> Sequence[cst.BaseStatement]:
    body = node.body
    return [statement for statement in body.body if isinstance(statement, cst.BaseStatement)]


def _merge_session(
    edits: Edits, original: cst.With, updated: cst.With, names: list[str], get_peer_name: PeerNameFinder
) -> Any:
    """Replace a transport and its session, in one block or in two, with one block of a client."""
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
    client = cst.Call(edits.import_expression("dovetail.Client"), _build_client_arguments(transport, session.item))
    items = [cst.WithItem(client, session.asname), *block.items[2 if block is updated else 1 :]]
    return block.with_changes(items=items, leading_lines=updated.leading_lines)


def _build_client_arguments(transport: cst.Call, session: cst.Call) -> list[cst.Arg]:
    arguments = CallArguments(transport)
    for name in ("url", "server"):
        arguments.unname(name)
    for name in ("timeout", "sse_read_timeout", "httpx_client_factory", "http_client", "auth", "terminate_on_close"):
        arguments.pop(name)
    session_arguments = CallArguments(session)
    for old, new in _SESSION_OPTIONS.items():
        value = session_arguments.get(old)
        if value is not None:
            arguments.append(value, new)
    return [*arguments.args]
