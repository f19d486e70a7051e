"""A server with tasks that a test kills again and again. Each tool writes its steps to a file before it goes on.

The program reads commands from stdin. "start" forks a process that serves the socket, "kill" kills the oldest process,
and "pause" and "resume" stop and continue it. All processes share one socket, so clients can connect while no server
runs.

python crashing_task_server.py SOCKET_FD STORE STEPS
"""

import asyncio
import os
import signal
import socket
import sys

import uvicorn

from dovetail import Context, Server
from dovetail.extensions import TaskConfig, TaskOptions
from dovetail.tasks import task_worker

LEASE_S = 0.5
STEPS_FD = os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

# Lost workers must be found within the time of a test.
task_worker.DEFAULT_OPTIONS = task_worker.WorkerOptions(lease_seconds=LEASE_S, due_interval=0.05, park_after=0.1)
app = Server("crashing", tasks=TaskOptions(store=sys.argv[2], poll_interval=0.01))


def write_step(step: str, key: str, ctx: Context) -> None:
    os.write(STEPS_FD, f"{step} {key} {ctx.attempt}\n".encode())


async def work(key: str, ctx: Context) -> str:
    write_step("start", key, ctx)
    for number in range(3):
        await ctx.progress(number, 3, "working")
        await asyncio.sleep(0.01)
    write_step("end", key, ctx)
    return key


@app.tool(task=True)
async def run_once(key: str, ctx: Context) -> str:
    """Work without retries."""
    return await work(key, ctx)


@app.tool(task=TaskConfig(max_retries=2))
async def retry(key: str, ctx: Context) -> str:
    """Work with two retries."""
    return await work(key, ctx)


@app.tool(task=TaskConfig(after=0.02))
async def become_task(key: str, ctx: Context) -> str:
    """Work, first in the foreground."""
    return await work(key, ctx)


@app.tool(task=True)
async def ask(key: str, ctx: Context) -> str:
    """Ask a question between two steps."""
    write_step("start", key, ctx)
    await ctx.once("charge", lambda: write_step("charge", key, ctx))
    is_confirmed = await ctx.elicit("Continue?", bool)
    write_step("continue", key, ctx)
    await asyncio.sleep(0.01)
    write_step("end", key, ctx)
    return key if is_confirmed else "declined"


async def hang_at_first(key: str, ctx: Context) -> str:
    write_step("start", key, ctx)
    try:
        if ctx.attempt == 1:
            await asyncio.sleep(3600)
        write_step("end", key, ctx)
    except asyncio.CancelledError:
        write_step("cancelled", key, ctx)
        raise
    return f"attempt {ctx.attempt}"


@app.tool(task=True)
async def hang(key: str, ctx: Context) -> str:
    """Hang in the first attempt, without retries."""
    return await hang_at_first(key, ctx)


@app.tool(task=TaskConfig(max_retries=1))
async def hang_and_retry(key: str, ctx: Context) -> str:
    """Hang in the first attempt, with one retry."""
    return await hang_at_first(key, ctx)


def serve(listener: socket.socket) -> None:
    config = uvicorn.Config(app.asgi(), log_level="critical", lifespan="on")
    uvicorn.Server(config).run(sockets=[listener])


def main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    process_ids: list[int] = []
    for command in sys.stdin:
        match command.strip():
            case "start":
                process_id = os.fork()
                if process_id == 0:
                    serve(listener)
                    os._exit(0)
                process_ids.append(process_id)
            case "pause":
                os.kill(process_ids[0], signal.SIGSTOP)
            case "resume":
                os.kill(process_ids[0], signal.SIGCONT)
            case _:
                process_id = process_ids.pop(0)
                os.kill(process_id, signal.SIGKILL)
                os.waitpid(process_id, 0)
        sys.stdout.write("done\n")
        sys.stdout.flush()


main()
