"""The pytest plugin, with fixtures for connected clients, the marker `mcp`, and an option to record cassettes.

The plugin does not depend on a plugin for asynchronous tests. `mcp_client` uses the event loop of the test, and
`mcp_sync_client` needs no event loop.
"""

import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

if TYPE_CHECKING:
    from dovetail.client.client import Client
    from dovetail.client.sync_client import SyncClient
    from dovetail.testing.faults import Faults

_MARKER_HELP = (
    "mcp(server, transport, protocol_version, **options): connect mcp_client and mcp_sync_client to "
    "this server. With a list of transports or protocol versions, the test runs once for each"
)
_LIST_OPTIONS = ("transport", "protocol_version")
_PATCH_KEY = pytest.StashKey[pytest.MonkeyPatch]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --mcp-record."""
    group = parser.getgroup("dovetail", "Model Context Protocol")
    group.addoption("--mcp-record", action="store_true", help="Write cassettes instead of comparing with them.")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker `mcp`."""
    config.addinivalue_line("markers", _MARKER_HELP)
    if config.getoption("--mcp-record"):
        from dovetail.testing.traffic import RECORD_ENV_VAR

        patch = config.stash[_PATCH_KEY] = pytest.MonkeyPatch()
        patch.setenv(RECORD_ENV_VAR, "1")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Restore the environment for later runs in the same process."""
    if (patch := config.stash.get(_PATCH_KEY, None)) is not None:
        patch.undo()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once for each transport and protocol version in its marker."""
    if "_mcp_options" not in metafunc.fixturenames:
        return
    options = _read_markers(metafunc.definition)
    lists = {name: options[name] for name in _LIST_OPTIONS if isinstance(options.get(name), list | tuple)}
    if lists:
        settings = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
        names = ["-".join(map(str, setting.values())) for setting in settings]
        metafunc.parametrize("_mcp_options", settings, indirect=True, ids=names)


def _read_markers(item: Any) -> dict[str, Any]:
    """Combine the options of all markers. The marker closest to the test takes precedence."""
    merged: dict[str, Any] = {}
    for marker in item.iter_markers("mcp"):
        _check_marker(marker, item)
        options = {"server": marker.args[0]} if marker.args else {}
        merged = options | marker.kwargs | merged
    return merged


def _check_marker(marker: pytest.Mark, item: Any) -> None:
    from dovetail.error_context import suggest_match
    from dovetail.testing.harness import Transport

    location = f"@pytest.mark.mcp of {item.nodeid}"
    if len(marker.args) > 1:
        raise pytest.UsageError(f"{location} takes one positional argument, the server, not {len(marker.args)}")
    if marker.args and "server" in marker.kwargs:
        raise pytest.UsageError(f"{location} names two servers. Pass either a positional argument or server=")
    allowed_options = _get_allowed_options()
    for option in marker.kwargs:
        if option not in allowed_options:
            hint = suggest_match(option, allowed_options)
            raise pytest.UsageError(f"{location} has an unknown option {option}={hint}")
    for option in _LIST_OPTIONS:
        value = marker.kwargs.get(option)
        if isinstance(value, set | frozenset) or value in ([], ()):
            raise pytest.UsageError(f"{location}: {option} must be a string or a list of strings, not {value!r}")
    transport, transports = marker.kwargs.get("transport", "memory"), get_args(Transport)
    for name in transport if isinstance(transport, list | tuple) else [transport]:
        if name not in transports:
            raise pytest.UsageError(
                f"{location}: transport must be one of {', '.join(transports)}, not "
                f"{name!r}{suggest_match(str(name), transports)}"
            )


@cache
def _get_allowed_options() -> frozenset[str]:
    from dovetail.client.client import Client
    from dovetail.testing.harness import connect

    parameters = {*inspect.signature(connect).parameters, *inspect.signature(Client.__init__).parameters}
    return frozenset(parameters - {"self", "target", "options"})


@pytest.fixture
def _mcp_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return _read_markers(request.node) | getattr(request, "param", {})


@pytest.fixture
def mcp_server() -> Any:
    """Return the server for tests whose marker has no server. Override this fixture in your tests."""
    raise pytest.UsageError("no server to test: use @pytest.mark.mcp(server=...), or define a fixture named mcp_server")


@pytest.fixture
def mcp_faults() -> "Faults":
    """Return the faults for the connection of this test."""
    from dovetail.testing.faults import Faults

    return Faults()


@pytest.fixture
def mcp_client(
    request: pytest.FixtureRequest, _mcp_options: dict[str, Any]
) -> "Callable[..., AbstractAsyncContextManager[Client]]":
    """Return a function that connects a client: `async with mcp_client() as client`.

    Options of this function override those of the marker.
    """
    from dovetail.testing.harness import connect

    def connect_client(server: Any = None, **options: Any) -> "AbstractAsyncContextManager[Client]":
        return connect(**_merge_options(request, _mcp_options, server, options))

    return connect_client


@pytest.fixture
def mcp_sync_client(request: pytest.FixtureRequest, _mcp_options: dict[str, Any]) -> "Iterator[SyncClient]":
    """Return a connected client for a test that is not async."""
    from dovetail.testing.harness import connect_sync

    with connect_sync(**_merge_options(request, _mcp_options, None, {})) as client:
        yield client


@pytest.fixture
def mcp_cassette(request: pytest.FixtureRequest) -> Path:
    """Return the path of this test's cassette, in `cassettes/` next to the test file."""
    _, *names = request.node.nodeid.split("::")  # A node ID contains the file, the classes and the function.
    name = re.sub(r"[^\w.-]+", "-", ".".join(names)).strip("-")
    return request.path.parent / "cassettes" / f"{request.path.stem}.{name}.jsonl"


def _merge_options(
    request: pytest.FixtureRequest, marker_options: dict[str, Any], server: Any, options: dict[str, Any]
) -> dict[str, Any]:
    merged = {**marker_options, **options}
    if server is not None:
        merged["server"] = server
    if "server" not in merged:
        merged["server"] = request.getfixturevalue("mcp_server")
    if "mcp_faults" in request.fixturenames:
        merged.setdefault("faults", request.getfixturevalue("mcp_faults"))
    return merged
