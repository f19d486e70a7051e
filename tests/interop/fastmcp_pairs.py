"""The same calls with the client of fastmcp and with the client of dovetail.

Results of both clients have the same attributes, so a test can assert both in one loop.
"""

from typing import Any

from fastmcp import Client as FastClient
from fastmcp import FastMCP

from dovetail import Client, Server

MODES = {"handshake": "legacy", "stateless": "auto"}  # the names of the eras in fastmcp


def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}!"


def leave(name: str) -> str:
    """Say goodbye."""
    return f"Bye, {name}!"


def create_pair(**options: Any) -> tuple[Any, Any]:
    """Return a server of fastmcp and a server of dovetail."""
    return FastMCP("x", **options), Server("x", **options)


def connect(app: Any, **options: Any) -> Any:
    """Return a client of the library of the server."""
    return FastClient(app, **options) if isinstance(app, FastMCP) else Client(app, **options)


def connect_in_era(app: Any, era: str, **options: Any) -> Any:
    """Return a client that uses a handshake or not."""
    return connect(app, **({"mode": MODES[era]} if isinstance(app, FastMCP) else {"protocol_version": era}), **options)


async def list_tools(app: Any) -> list[str]:
    """Return the names of the tools in order."""
    async with connect(app) as client:
        return sorted(tool.name for tool in await client.list_tools())


async def call(app: Any, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> Any:
    """Call a tool, and return the result of the protocol even if the tool failed."""
    options = options | {"raise_on_error": False} if isinstance(app, FastMCP) else options
    async with connect(app) as client:
        return await client.call_tool(name, arguments or {}, **options)


async def read(app: Any, uri: str) -> Any:
    """Return the contents of a resource."""
    async with connect(app) as client:
        result = await client.read_resource(uri)
        return result if isinstance(app, FastMCP) else result.contents


async def get_prompt(app: Any, name: str, arguments: dict[str, str] | None = None) -> Any:
    """Return the messages of a prompt."""
    async with connect(app) as client:
        return (await client.get_prompt(name, arguments or {})).messages
