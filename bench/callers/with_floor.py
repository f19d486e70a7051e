"""The least a client on asyncio's own loop could do: one write, one future, one read, two small decodings.

Nothing is validated, timed or cancelled; a physical limit, not a competitor. On standard streams only.
"""

import asyncio
import subprocess
from typing import Any

import call_loop
import msgspec
import workload

_META = (
    b',"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    b'"io.modelcontextprotocol/clientCapabilities":{},'
    b'"io.modelcontextprotocol/clientInfo":{"name":"floor","version":"1"}}'
)


class Text(msgspec.Struct):
    """A content block, or the contents of a resource."""

    text: str = ""


class Outcome(msgspec.Struct):
    """What is asked for here."""

    content: list[Text] = []
    contents: list[Text] = []


class Answer(msgspec.Struct):
    """A response."""

    id: int
    result: Outcome


_decode = msgspec.json.Decoder(Answer).decode
_encode = msgspec.json.Encoder().encode


class Pipe(asyncio.Protocol):
    """What the server writes: lines, each for whoever waits for it."""

    def __init__(self) -> None:
        self.waiting: dict[int, asyncio.Future[Outcome]] = {}
        self._held: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        """Bytes came in."""
        if b"\n" not in data:
            self._held.append(data)
            return
        *lines, rest = data.split(b"\n")
        if self._held:
            lines[0] = b"".join([*self._held, lines[0]])
            self._held.clear()
        for line in lines:
            answer = _decode(line)
            self.waiting.pop(answer.id).set_result(answer.result)
        if rest:
            self._held.append(rest)


def _started(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


async def main(job: call_loop.Job) -> None:
    """Connect and call."""
    loop = asyncio.get_running_loop()
    server = _started(job.target)
    pipe, number = Pipe(), 0
    writer: Any
    writer, _ = await loop.connect_write_pipe(asyncio.Protocol, server.stdin)
    reader, _ = await loop.connect_read_pipe(lambda: pipe, server.stdout)

    def ask(method: bytes, params: bytes) -> asyncio.Future[Outcome]:
        nonlocal number
        number += 1
        waiting = pipe.waiting[number] = loop.create_future()
        meta = b"" if job.is_handshake else _META
        writer.write(b'{"jsonrpc":"2.0","id":%d,"method":"%s","params":{%s%s}}\n' % (number, method, params, meta))
        return waiting

    async def call(text: str) -> str:
        return (await ask(b"tools/call", b'"name":"echo","arguments":' + _encode({"text": text}))).content[0].text

    async def read() -> str:
        return (await ask(b"resources/read", b'"uri":"%s"' % workload.URI.encode())).contents[0].text

    try:
        await call_loop.drive(job, call, read)
    finally:
        reader.close()
        writer.close()
        server.terminate()
        server.wait()


call_loop.run(main)
