"""Call a stdio server with the least code that works on asyncio: one write, one future, one read and two small
decodings.

Nothing is validated, timed or cancelled. This is a lower bound, not a competitor.
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
    """The results that are requested here."""

    content: list[Text] = []
    contents: list[Text] = []


class Answer(msgspec.Struct):
    """A response."""

    id: int
    result: Outcome


_decode = msgspec.json.Decoder(Answer).decode
_encode = msgspec.json.Encoder().encode


class ResponseReader(asyncio.Protocol):
    """Reads the lines of the server, and sets the result of each pending request."""

    def __init__(self) -> None:
        self.pending: dict[int, asyncio.Future[Outcome]] = {}
        self._buffer: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        """Process the lines that are complete."""
        if b"\n" not in data:
            self._buffer.append(data)
            return
        *lines, rest = data.split(b"\n")
        if self._buffer:
            lines[0] = b"".join([*self._buffer, lines[0]])
            self._buffer.clear()
        for line in lines:
            answer = _decode(line)
            self.pending.pop(answer.id).set_result(answer.result)
        if rest:
            self._buffer.append(rest)


def _start_server(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


async def main(options: call_loop.CallerOptions) -> None:
    """Connect and call."""
    loop = asyncio.get_running_loop()
    server = _start_server(options.target)
    responses, number = ResponseReader(), 0
    writer: Any
    writer, _ = await loop.connect_write_pipe(asyncio.Protocol, server.stdin)
    reader, _ = await loop.connect_read_pipe(lambda: responses, server.stdout)

    def send_request(method: bytes, params: bytes) -> asyncio.Future[Outcome]:
        nonlocal number
        number += 1
        future = responses.pending[number] = loop.create_future()
        meta = b"" if options.is_handshake else _META
        writer.write(b'{"jsonrpc":"2.0","id":%d,"method":"%s","params":{%s%s}}\n' % (number, method, params, meta))
        return future

    async def call(text: str) -> str:
        params = b'"name":"echo","arguments":' + _encode({"text": text})
        return (await send_request(b"tools/call", params)).content[0].text

    async def read() -> str:
        return (await send_request(b"resources/read", b'"uri":"%s"' % workload.URI.encode())).contents[0].text

    try:
        await call_loop.run_calls(options, call, read)
    finally:
        reader.close()
        writer.close()
        server.terminate()
        server.wait()


call_loop.run(main)
