"""A fake provider server on loopback. It returns scripted replies, and refuses requests that the providers would
refuse.

It serves both APIs: `/v1/chat/completions` of OpenAI and `/v1/messages` of Anthropic.
"""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ScriptedReply(NamedTuple):
    """A reply of the model: text, and calls as (id, name, arguments)."""

    text: str | None = None
    calls: tuple[tuple[str, str, Any], ...] = ()
    stop: str | None = None


class BadRequest(Exception):
    """The provider answers with status 400."""


def require(condition: Any, message: str) -> None:
    if not condition:
        raise BadRequest(message)


class ProviderServer:
    """The server, the requests it received, and the replies it has left."""

    def __init__(self, *replies: ScriptedReply, keep_alive: bool = False) -> None:
        self.replies = [*replies]
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        provider = self

        class Door(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1" if keep_alive else "HTTP/1.0"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = provider.answer(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                said = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, Any]:
        self.requests.append(body)
        self.headers.append(headers)
        try:
            match path:
                case "/v1/chat/completions":
                    check_chat(headers, body)
                    return 200, as_chat(self.replies.pop(0), body)
                case "/v1/messages":
                    check_messages(headers, body)
                    return 200, as_message(self.replies.pop(0), body)
                case _:
                    return 404, {"error": {"message": f"no such path {path}", "type": "not_found_error"}}
        except BadRequest as exc:
            return 400, {"type": "error", "error": {"message": str(exc), "type": "invalid_request_error"}}


# OpenAI's rules


def check_chat(headers: dict[str, str], body: dict[str, Any]) -> None:
    require(headers.get("authorization", "").startswith("Bearer "), "no key")
    limits = {"max_tokens", "max_completion_tokens"} & body.keys()
    require(len(limits) == 1 and body[limits.pop()] > 0, "one limit of tokens")
    for tool in body.get("tools", ()):
        function = tool["function"]
        require(tool["type"] == "function" and NAME.fullmatch(function["name"]), f"tool {function['name']}")
        require(function["parameters"]["type"] == "object", "parameters are an object")
        require(len(function.get("description", "")) <= 1024, "description too long")
    require("tools" in body or "tool_choice" not in body, "a choice without tools")
    require(body.get("tool_choice", "auto") in ("auto", "required", "none"), "tool_choice")
    open_calls: set[str] = set()
    for message in body["messages"]:
        if message["role"] == "tool":
            require(message["tool_call_id"] in open_calls, "an answer to no call")
            require(isinstance(message["content"], str), "a result is text")
            open_calls.discard(message["tool_call_id"])
            continue
        require(not open_calls, f"calls without an answer: {open_calls}")
        require(message["role"] in ("system", "user", "assistant"), "role")
        for call in message.get("tool_calls", ()):
            require(NAME.fullmatch(call["function"]["name"]), "name of a call")
            json.loads(call["function"]["arguments"])
            open_calls.add(call["id"])
        require(message.get("content") or message.get("tool_calls"), "an empty message")
    require(not open_calls, f"calls without an answer: {open_calls}")


def as_chat(line: ScriptedReply, body: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {
            "id": id,
            "type": "function",
            "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
        }
        for id, name, given in line.calls
    ]
    message = {"role": "assistant", "content": line.text} | ({"tool_calls": calls} if calls else {})
    stop = line.stop or ("tool_calls" if calls else "stop")
    return {
        "id": "chat-1",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": stop, "logprobs": None}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }


# Anthropic's rules


def check_messages(headers: dict[str, str], body: dict[str, Any]) -> None:
    require(headers.get("x-api-key") or headers.get("authorization", "").startswith("Bearer "), "no key")
    require(headers.get("anthropic-version"), "no version")
    require(body["max_tokens"] > 0, "max_tokens")
    require("temperature" not in body, "temperature is not taken")
    for tool in body.get("tools", ()):
        require(NAME.fullmatch(tool["name"]), f"tool {tool['name']}")
        require(tool["input_schema"]["type"] == "object", "input_schema is an object")
    choice = body.get("tool_choice", {"type": "auto"})["type"]
    require(choice in ("auto", "any", "none") and ("tools" in body or "tool_choice" not in body), "tool_choice")
    open_calls: set[str] = set()
    for message in body["messages"]:
        require(message["role"] in ("user", "assistant"), "role")
        require(message["content"], "an empty message")
        blocks = message["content"]
        for block in blocks:
            require(block["type"] != "text" or block["text"].strip(), "an empty text")
        given = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
        require(given == open_calls, f"results {given} for calls {open_calls}")
        open_calls = {block["id"] for block in blocks if block["type"] == "tool_use"}
    require(not open_calls, "calls without an answer")


def as_message(line: ScriptedReply, body: dict[str, Any]) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": line.text}] if line.text is not None else []
    content += [{"type": "tool_use", "id": id, "name": name, "input": given} for id, name, given in line.calls]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": line.stop or ("tool_use" if line.calls else "end_turn"),
        "stop_sequence": None,
        "usage": {"input_tokens": 90, "cache_read_input_tokens": 10, "output_tokens": 10},
    }
