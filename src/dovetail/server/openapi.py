"""Tools from an OpenAPI document: each operation becomes one, with its parameters as arguments."""

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from dovetail.protocol.web import Send
from dovetail.server.offers import Offers
from dovetail.server.operating import MAX_REPLY, Credentials, Operating
from dovetail.server.options import expect
from dovetail.server.specification import Operation, base_url, operations, read

log = logging.getLogger("dovetail")

_HINTS: Mapping[str, dict[str, Any]] = {
    "GET": {"read_only": True},
    "HEAD": {"read_only": True},
    "OPTIONS": {"read_only": True},
    "PUT": {"idempotent": True},
    "DELETE": {"idempotent": True, "destructive": True},
}


def add_operations(
    app: Offers,
    document: Any,
    send: Send,
    *,
    url: str | None,
    headers: Credentials,
    home: str | None = None,
    include: Callable[[Operation], bool] | str | None = None,
    names: Mapping[str, str] | None = None,
    output_schemas: bool = True,
    max_reply: int = MAX_REPLY,
) -> None:
    """Register every operation that is to be included; the options are those of `Server.from_openapi`.

    home: where the author's client sends what has no address. Nothing then goes to a host that the document names: the
    client may have credentials.
    """
    spec = read(document)
    base = url or base_url(spec, home)
    if base is None:
        raise ValueError("the document does not say where its server is: pass url=, or a client with a base_url")
    wanted = _wanted(include)
    found = [*operations(spec, () if callable(headers) else headers)]
    chosen = [one for one in found if wanted(one)]
    called = _called([one.name for one in chosen], [one.name for one in found], names or {})
    for operation in chosen:
        # A schema nobody could check must not cost the other operations, nor one of results its own.
        for output in (operation.output if output_schemas else None, None):
            try:
                app.add_tool(
                    Operating(operation, base, send, headers, max_reply, promises=output is not None),
                    name=called[operation.name],
                    description=operation.description,
                    input_schema=operation.schema,
                    output_schema=output,
                    tags=operation.tags,
                    open_world=True,
                    **_HINTS.get(operation.method, {}),
                )
            except ValueError as exc:
                if output is None:
                    log.warning("%s %s is left out: %s", operation.method, operation.path, exc)
                    break
            else:
                break


def _called(chosen: list[str], operations: list[str], names: Mapping[str, str]) -> dict[str, str]:
    """The name of the tool of each operation; ValueError for a name of none, or for two."""
    from dovetail.server.arguments import listed

    expect("names=", names, Mapping, "a dict from operations to names")
    if unknown := [name for name in names if name not in operations]:
        raise ValueError(f"names= is about {listed(unknown, operations)}, which is no operation of the document")
    called = {name: names.get(name, name) for name in chosen}
    for inner, name in names.items():
        if inner in called and (other := next((one for one in chosen if one != inner and called[one] == name), None)):
            raise ValueError(f"names= would call both `{inner}` and `{other}` `{name}`")
    return called


def _wanted(include: Any) -> Callable[[Operation], bool]:
    if include is None:
        return lambda _: True
    if callable(include):
        return cast("Callable[[Operation], bool]", include)
    if not isinstance(include, str):
        raise TypeError(f'include= takes a pattern for "GET /path", or a function of the operation, not {include!r}')
    try:
        pattern = re.compile(include)
    except re.error as exc:
        raise ValueError(f"include={include!r} is no regular expression: {exc}") from None
    return lambda operation: pattern.search(f"{operation.method} {operation.path}") is not None
