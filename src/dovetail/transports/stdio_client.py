"""The client side of stdio, which starts the server as a child process.

`line_client` splits the bytes into lines, and `duplex_client` handles the messages.
"""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.error_context import add_context
from dovetail.errors import ConnectionLost
from dovetail.transports.line_client import LineClient
from dovetail.transports.process.child_process import ChildProcess
from dovetail.transports.process.command import build_environment, suggest_fix

# A process that closes its stdout usually exits soon.
# The client waits this long for the exit code and stderr, because they explain the failure.
_EXIT_WAIT_S = 0.5


class StdioClient(LineClient):
    """A connection to a child process over stdin and stdout. spec: stdio"""

    def __init__(
        self,
        max_line_bytes: int,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        inherit: Any = "minimal",
        cwd: str | Path | None = None,
        stderr: Any = None,
    ) -> None:
        super().__init__(max_line_bytes)
        self._command = command
        self._env = env
        self._inherit = inherit
        self._cwd = cwd
        self._stderr = stderr
        self._child: ChildProcess | None = None
        self._watch_task: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Start the process of the server."""
        self._child = await ChildProcess.start(
            self._command, self, env=self._env, inherit=self._inherit, cwd=self._cwd, stderr=self._stderr
        )
        self._writer = self._child.stdin
        self._watch_task = self._loop.create_task(self._watch(self._child))

    def eof_received(self) -> bool:
        """Handle the last line of stdout, even if it has no newline."""
        self.drain_lines()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection after a short wait, even if the process is still running."""
        if self._end_error is None:
            self._loop.call_later(_EXIT_WAIT_S, self.end, ConnectionLost("the server closed its output"))
        self._writable.set()

    async def _watch(self, child: ChildProcess) -> None:
        code = await child.wait_exited()
        self.drain_lines()
        self.end(
            add_context(
                ConnectionLost(f"the server's process ended {_describe_exit(code)}"),
                exit_code=code,
                stderr=child.stderr_tail(),
            )
        )

    def get_diagnostics(self, since: float | None = None) -> dict[str, Any]:
        """Return the exit code of the process, and its stderr lines after `since`."""
        child = self._child
        return {} if child is None else {"exit_code": child.returncode, "stderr": child.stderr_tail(since) or None}

    def suggest_fix(self) -> str | None:
        """Return a hint for the user, based on the stderr, exit code and environment of the process."""
        child = self._child
        if child is None or child.returncode is None:
            return None
        parent_env = os.environ
        return suggest_fix(
            child.returncode, child.stderr_tail(), build_environment(self._env, self._inherit, parent_env), parent_env
        )

    async def disconnect(self) -> None:
        """Close the stdin of the process. If the process does not exit, terminate it. As a last resort, kill it."""
        if self._out:
            self._flush()
        if self._child is not None:
            await self._child.stop()
        if self._watch_task is not None:
            self._watch_task.cancel()


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"by signal {-code}"
