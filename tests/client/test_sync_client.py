"""Test SyncClient in scripts, threads, running event loops, forks and at interpreter exit."""

import asyncio
import inspect
import subprocess
import sys
import threading
from typing import Any

import pytest

from dovetail import Client, ClientLimits, Server, SyncClient, ToolError
from dovetail.client.client import get_session
from dovetail.client.sync_client import get_client
from dovetail.errors import InputRequestError
from dovetail.extensions import Skill, SyncSkill
from support.full_server import TESTS, create_full_server, run_target


def surface(kind: type[Any]) -> dict[str, Any]:
    return {name: one for name, one in inspect.getmembers_static(kind) if not name.startswith("_")}


def test_both_have_the_same_surface() -> None:
    ours, theirs = surface(SyncClient), surface(Client)
    assert ours.keys() == theirs.keys()
    for name, one in theirs.items():
        other = ours[name]
        if isinstance(one, property):
            assert isinstance(other, property), name
            continue
        assert not inspect.iscoroutinefunction(other), name
        mine, its = inspect.signature(other), inspect.signature(one)
        assert mine.parameters == its.parameters, name
        if name not in ("listen", "list_skills", "get_skill", "start_task", "get_task"):
            assert mine.return_annotation == its.return_annotation, name


def test_both_kinds_of_skills_have_the_same_surface() -> None:
    ours, theirs = surface(SyncSkill), surface(Skill)
    assert ours.keys() == theirs.keys()
    assert inspect.signature(ours["read"]) == inspect.signature(theirs["read"])


def test_an_editor_shows_methods_and_properties_of_the_class_only() -> None:
    for client in (Client(Server("a")), SyncClient(Server("a"))):
        assert [name for name in vars(client) if not name.startswith("_")] == []


def test_both_are_read_in_one_class() -> None:
    assert Client.__mro__ == (Client, object)
    assert SyncClient.__mro__ == (SyncClient, object)
    assert (Client.__module__, SyncClient.__module__) == ("dovetail.client.client", "dovetail.client.sync_client")


def test_the_options_are_those_of_a_client() -> None:
    session = get_session(get_client(SyncClient(Server("a"), timeout=7, limits=ClientLimits(max_pages=7))))
    assert session.timeouts.call == 7
    assert session.limits.max_pages == 7


def test_both_ways_of_listening_have_the_same_surface() -> None:
    plain, awaited = SyncClient(Server("a")).listen(), Client(Server("a")).listen
    assert plain.acknowledged_filter is None
    ours = {name for name in dir(plain) if not name.startswith("_")}
    inner = {
        "abandon",
        "handle_notification",
        "close_for_client",
        "handle_gap",
    }  # what the client tells those who listen

    async def theirs() -> set[str]:
        return {name for name in dir(awaited()) if not name.startswith("_")} - inner

    assert {name.replace("aclose", "close") for name in asyncio.run(theirs())} == ours


def test_everything_without_an_event_loop() -> None:
    told: list[float] = []
    with SyncClient(create_full_server(), elicitation_handler=lambda _: {"row": 1}, roots=["/x"]) as client:
        assert client.is_connected
        assert client.name == "everything"
        assert client.protocol_version == client.discover().supported_versions[0]
        assert client.server_info is not None
        assert client.instructions == "Try it all."
        assert client.invalid_message_count == 0
        assert client.server_capabilities.tools is not None
        client.ping()
        assert client.call("add", a=1) == 2
        assert client.call("add", into=float, a=1) == 2.0
        client.call_tool("count", {"to": 3}, progress_handler=lambda done, *_: told.append(done))
        assert told == [1, 2, 3]
        with pytest.raises(ToolError):
            client.call("failing", why="x")
        assert len(client.list_tools()) > 8
        assert len(client.list_tools_page().tools) == 4
        assert client.read("note://x") == "about x"
        assert client.read_resource("note://x").contents
        assert len(client.list_resources()) == 10
        assert client.list_resources_page().next_cursor
        assert client.list_resource_templates()
        assert client.list_resource_templates_page().resource_templates
        assert client.list_prompts()
        assert client.list_prompts_page().prompts
        assert client.get_prompt("packing", {"city": "Oslo"}).messages
        assert client.complete("city", "R", prompt="packing").values == ["Rome"]
        assert client.call("book") == "row 1, window, none"
        pending: Any = client.call_tool("book", allow_input_required=True)
        (key,) = pending.input_requests
        answer = {"action": "accept", "content": {"row": 2}}
        assert client.resume(pending, {key: answer}).content[0].text == "row 2, window, none"
        assert client.request("prompts/list")["prompts"]
        client.notify("notifications/x")
        client.set_logging_level("info")
        client.send_roots_list_changed()
        with client.listen(uris=["page://1"]) as changes:
            assert changes.acknowledged_filter is not None
            assert changes.acknowledged_filter.resource_subscriptions == ["page://1"]
            client.call("change", uri="page://1")
            for change in changes:
                assert change.uri == "page://1"
                break
    assert not client.is_connected
    client.close()


def test_sessions_have_their_own() -> None:
    with SyncClient(create_full_server(), protocol_version="handshake") as client:
        client.subscribe_resource("page://1")
        client.unsubscribe_resource("page://1")
        client.shutdown()
        assert not client.is_connected


async def test_within_a_running_loop_as_in_a_notebook() -> None:
    with SyncClient(create_full_server()) as client:
        assert client.call("add", a=1) == 2


def test_from_many_threads() -> None:
    found: list[int] = []
    with SyncClient(create_full_server()) as client:
        threads = [threading.Thread(target=lambda n=n: found.append(client.call("add", a=n))) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert sorted(found) == list(range(1, 21))


def test_a_handler_may_use_the_client_that_asks_it() -> None:
    def answer(_: Any) -> dict[str, int]:
        return {"row": client.call("add", a=1)}

    with SyncClient(create_full_server(), elicitation_handler=answer) as client:
        assert client.call("book") == "row 2, window, none"


def test_a_coroutine_handler_is_refused() -> None:
    async def answer(_: Any) -> dict[str, int]:
        return {"row": client.call("add", a=1)}

    with (
        SyncClient(create_full_server(), elicitation_handler=answer) as client,
        pytest.raises(InputRequestError, match="elicit"),
    ):
        client.call("book")


async def test_a_server_that_lives_in_another_loop() -> None:
    async with run_target("http") as at:

        def work() -> int:
            with SyncClient(at) as client:
                return client.call("add", a=1)

        assert await asyncio.to_thread(work) == 2


def run(script: str, *args: str) -> str:
    command = [sys.executable, "-W", "error", "-c", script, *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


LEFT_OPEN = """
import sys
from dovetail import SyncClient
client = SyncClient([sys.executable, *sys.argv[1:]])
client.connect()
print(client.call("pid"))
"""


def test_a_client_left_open_does_not_hold_up_the_end_of_a_program() -> None:
    said = run(LEFT_OPEN, str(TESTS / "client" / "crashing_server.py"), "unused")
    assert said.strip().isdigit()


# Python 3.12 and later warn about every fork of a process with threads.
FORKED = """
import os
import warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
from dovetail import Server, SyncClient
app = Server("forked")
@app.tool
FUNCTION one() -> int: return 1
with SyncClient(app) as client:
    assert client.call("one") == 1
pid = os.fork()
if not pid:
    with SyncClient(app) as client:
        os._exit(client.call("one"))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="platform: fork")
@pytest.mark.parametrize("function", ["def", "async def"])
def test_a_forked_process_has_a_loop_and_threads_of_its_own(function: str) -> None:
    assert run(FORKED.replace("FUNCTION", function)).strip() == "1"


KEPT = """
import os, sys
import warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
from dovetail import SyncClient
with SyncClient([sys.executable, *sys.argv[1:]]) as client:
    mine = client.call("pid")
    pid = os.fork()
    if not pid:
        os._exit(client.call("pid") == mine)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), client.call("pid") == mine)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="platform: fork")
def test_a_client_copied_into_a_fork_connects_again() -> None:
    assert run(KEPT, str(TESTS / "client" / "crashing_server.py"), "unused").strip() == "0 True"


TOO_LATE = """
import atexit
def late():
    try: client.close()
    except RuntimeError as error: print(type(error).__name__)
atexit.register(late)
from dovetail import Server, SyncClient
client = SyncClient(Server("x"))
client.connect()
"""


def test_a_late_call_raises_and_does_not_hang() -> None:
    assert "InterpreterShutdown" in run(TOO_LATE)


INTERRUPTED = """
import signal
from dovetail import Server, SyncClient
def interrupt(*_): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
app = Server("x")
@app.tool
def one() -> int: return 1
with SyncClient(app) as client, client.listen() as changes:
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        for change in client.listen(): print(change)
    except KeyboardInterrupt: print("interrupted")
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        for change in changes: print(change)
    except KeyboardInterrupt: print("again")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="platform: setitimer")
def test_an_interrupted_listener_is_interrupted_and_nothing_else() -> None:
    assert run(INTERRUPTED).split() == ["interrupted", "again"]


def test_a_progress_handler_cannot_call_the_client(caplog: pytest.LogCaptureFixture) -> None:
    with SyncClient(create_full_server()) as client:
        client.call_tool("count", {"to": 1}, progress_handler=lambda *_: client.ping())
    assert "progress_handler=" in caplog.text


def test_options_are_those_of_client() -> None:
    with pytest.raises(TypeError):
        SyncClient(Server("x"), unknown=1)
