"""What a program does with dovetail on Windows. `windows_names.py` runs one step in a process without POSIX-only names.

python windows_names.py windows_steps.py STEP FOLDER
"""

import asyncio
import importlib
import inspect
import os
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dovetail
from dovetail import Client, Host, Server, SyncClient
from dovetail.errors import ConnectError
from dovetail.extensions import TaskConfig, TaskOptions
from dovetail.host import Allow, ConsentRequest
from dovetail.testing import Faults, connect, record_traffic

STEPS = Path(__file__).resolve()
RUN = [sys.executable, str(STEPS.with_name("windows_names.py"))]
SERVE = [*RUN, str(STEPS), "serve"]
DOVETAIL = [*RUN, str(Path(dovetail.__file__).with_name("__main__.py"))]
# These modules need Unix sockets or locks of Unix.
UNIX_MODULES = {"dovetail.cluster.local.local_backend", "dovetail.cluster.local.worker_lock"}


def create_server(**options: Any) -> Server:
    app = Server("calculator", **options)

    @app.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    return app


def serve(transport: str) -> None:
    """Serve until the process ends. "reload" restarts the server when its file changes."""
    if transport == "reload":
        create_server().run("http", port=0, reload=True)
    elif transport == "http":
        create_server().run("http", port=0)
    else:
        create_server().run()


def import_everything(_: Path) -> None:
    failed: set[str] = set()
    for module in pkgutil.walk_packages(dovetail.__path__, "dovetail."):
        try:
            importlib.import_module(module.name)
        except ImportError:
            failed.add(module.name)
    assert failed <= UNIX_MODULES, failed


def store_files(folder: Path) -> None:
    from dovetail.storage import (
        SharedDocument,
        append,
        lock_path,
        make_trusted_dir,
        open_for_append,
        read_private_file,
        replace_file,
        write_private_file,
    )

    make_trusted_dir(folder / "new" / "inner")
    document = SharedDocument(folder / "document.json")
    document.change(lambda content: content.update(lines=["a\nb"]))
    assert SharedDocument(folder / "document.json").read()["lines"] == ["a\nb"]
    write_private_file(folder / "secret", b"long old content")
    write_private_file(folder / "secret", b"a\n")
    replace_file(folder / "replaced", b"a\n")
    assert (read_private_file(folder / "secret"), read_private_file(folder / "replaced")) == (b"a\n", b"a\n")
    for _ in range(2):
        descriptor = open_for_append(folder / "log")
        append(descriptor, b"line\n")
        os.close(descriptor)
    assert (folder / "log").read_bytes() == b"line\nline\n"
    with (
        lock_path(folder / "document.json"),
        pytest.raises(TimeoutError),
        lock_path(folder / "document.json", timeout=0.01),
    ):
        pass
    with lock_path(folder / "document.json"):
        pass


async def keep_host_state(folder: Path) -> None:
    questions: list[str] = []

    def ask(request: ConsentRequest) -> Allow:
        questions.append(request.tool)
        return Allow(scope="always")

    for _ in range(2):
        async with Host(consent=ask, state_dir=folder) as host:
            host.add("calculator", SERVE)
            result = await host.call("calculator.add", a=1, b=2)
            assert result.structured_content == {"result": 3}
    assert questions.count("add") == 1
    for name in ("grants.json", "pins.json", "audit.jsonl"):
        assert (folder / name).stat().st_size > 0, name


async def record_and_replay(folder: Path) -> None:
    async with Client(SERVE) as client:
        with record_traffic(client) as traffic:
            await client.call("add", a=1, b=2)
    traffic.save(folder / "traffic.jsonl")
    recording = str(folder / "recorded.jsonl")
    _run("record", "-o", recording, "--step", "call add a=1 b=2", "--", *SERVE)
    assert _run("call", recording, "add", "a=1", "b=2") == "3\n"
    _run("replay", recording, "--", *SERVE)


def _run(*arguments: str) -> str:
    process = subprocess.run([*DOVETAIL, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout


async def run_tasks(folder: Path) -> None:
    path = folder / "tasks.sqlite"
    app = create_server(tasks=TaskOptions(store=str(path)))

    @app.tool(task=TaskConfig())
    async def slow(text: str) -> str:
        await asyncio.sleep(0)
        return text

    async with connect(app, transport="http") as client:
        handle = await client.start_task("slow", {"text": "done"})
        assert (await handle).content[0].text == "done"  # type: ignore[union-attr]
    assert path.stat().st_size > 0


async def call_over_http(_: Path) -> None:
    await _call_over_http("http")


async def call_a_reloading_server(_: Path) -> None:
    await _call_over_http("reload")


async def _call_over_http(mode: str) -> None:
    process = subprocess.Popen([*SERVE, mode], stderr=subprocess.PIPE, text=True)  # noqa: ASYNC220
    try:
        assert process.stderr is not None
        url = next(word for line in process.stderr for word in line.split() if word.startswith("http://"))
        async with Client(url) as client:
            assert await client.call("add", a=1, b=2) == 3
            await asyncio.gather(*(client.call("add", a=a, b=0) for a in range(40)))
        async with Client(url, protocol_version="2025-06-18") as client:
            assert await client.call("add", a=1, b=2) == 3
    finally:
        process.terminate()
        process.communicate()


async def call_over_stdio(_: Path) -> None:
    async with Client(SERVE) as client:
        assert await client.call("add", a=1, b=2) == 3
        await asyncio.gather(*(client.call("add", a=a, b=0) for a in range(40)))
    await asyncio.to_thread(_call_without_loop)


def _call_without_loop() -> None:
    with SyncClient(SERVE) as client:
        assert client.call("add", a=1, b=2) == 3


async def refuse_unix_features(folder: Path) -> None:
    with pytest.raises(OSError, match="Windows"):
        async with connect(create_server(), transport="unix"):
            pass
    with pytest.raises(OSError, match="Windows"):
        async with connect(SERVE, faults=Faults()):
            pass
    with pytest.raises(ConnectError, match="Windows"):
        async with Client(f"unix:{folder / 'socket'}"):
            pass
    for server_options, run_options in (({}, {"workers": 2}), ({"cluster": "local"}, {})):
        with pytest.raises(ValueError, match="Windows"):
            await asyncio.to_thread(create_server(**server_options).run, "http", port=0, **run_options)


if __name__ == "__main__":
    step = globals()[sys.argv[1]]
    if step is serve:
        serve(sys.argv[2] if len(sys.argv) > 2 else "stdio")
    elif inspect.iscoroutinefunction(step):
        asyncio.run(step(Path(sys.argv[2])))
    else:
        step(Path(sys.argv[2]))
