"""A gateway over HTTP, in front of a server that supports only protocol version 2025-11-25."""

from typing import Annotated

from msgspec import Meta

from dovetail import Host, Policy, Server

older = Server("older", protocol_versions=["2025-11-25"])


@older.resource("note://first", mime_type="text/plain")
def first() -> str:
    """A fixed resource."""
    return "first"


@older.resource("note://{name}")
def note(name: str) -> bytes:
    """A template with binary contents."""
    return name.encode()


@older.tool
def move(region: Annotated[str, Meta(extra_json_schema={"x-mcp-header": "Region"})]) -> str:
    """Repeat the argument, which is also in a header."""
    return region


if __name__ == "__main__":
    host = Host(policy=Policy("allow"))
    host.add("older", older)
    host.run("http", port=0)
