"""A balancer that uses cookies, in front of two machines with a handshake server. Each session is on one machine."""

from support.scripted_http_server import (
    ACCEPTED,
    REFUSED,
    HttpRequest,
    ScriptedHttpServer,
    create_result_response,
    encode_reply,
)


class StickyBalancer:
    """The answers of the balancer. A call returns the ID of its session."""

    def __init__(self) -> None:
        self.machine_by_session: dict[str, str] = {}
        self.request_count = 0

    async def answer(self, _: ScriptedHttpServer, request: HttpRequest) -> bytes:
        self.request_count += 1
        machine = request.headers.get("cookie", "").partition("lb=")[2][:1] or "ab"[self.request_count % 2]
        reply = self._answer_on(machine, request)
        head, end, body = reply.partition(b"\r\n\r\n")
        return head + f"\r\nset-cookie: lb={machine}; Path=/".encode() + end + body

    def _answer_on(self, machine: str, request: HttpRequest) -> bytes:
        if request.verb != "POST":
            return REFUSED
        message, session = request.message, request.headers.get("mcp-session-id", "")
        if message["method"] == "initialize":
            session = f"s{len(self.machine_by_session)}"
            self.machine_by_session[session] = machine
            info = {"protocolVersion": "2025-06-18", "serverInfo": {"name": "x", "version": "1"}}
            reply = encode_reply(create_result_response(request, **info, capabilities={"tools": {}}))
            return reply.replace(b"\r\n", f"\r\nmcp-session-id: {session}\r\n".encode(), 1)
        if self.machine_by_session.get(session) != machine:
            return encode_reply(
                {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "x"}}, status="404 X"
            )
        if "id" not in message:
            return ACCEPTED
        content = [{"type": "text", "text": session}]
        return encode_reply(
            create_result_response(
                request, content=content, tools=[{"name": "where", "inputSchema": {"type": "object"}}]
            )
        )
