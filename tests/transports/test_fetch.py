"""The HTTP/1.1 client, against servers whose every byte the test decides."""

import asyncio

from dovetail.transports.fetch import Fetcher


async def test_a_request_and_its_reply() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"POST /mcp HTTP/1.1\r\n")
        assert await reader.readexactly(2) == b"hi"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nho")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        fetcher = Fetcher()
        port = server.sockets[0].getsockname()[1]
        reply = await fetcher.fetch("POST", f"http://127.0.0.1:{port}/mcp", [], b"hi")
        assert (reply.status, await reply.read()) == (200, b"ho")
        await fetcher.close()
