"""Tools from an OpenAPI document. The weather service is a fake on loopback, so the example needs no network.

For a real service, you need only its document: `Server.from_openapi(document, headers={"Authorization": ...})`.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from dovetail import Server

DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "weather service"},
    "paths": {
        "/forecast/{city}": {
            "get": {
                "operationId": "forecast",
                "summary": "Forecast the weather of one city.",
                "parameters": [
                    {"name": "city", "in": "path", "required": True, "schema": {"type": "string"}},
                    {"name": "days", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 7}},
                ],
            }
        },
        "/alerts": {
            "post": {
                "operationId": "report_alert",
                "summary": "Report bad weather.",
                "requestBody": {"required": True, "content": {"application/json": {"schema": {
                    "type": "object", "properties": {"city": {"type": "string"}, "what": {"type": "string"}},
                    "required": ["city", "what"]}}}},
            }
        },
    },
}  # fmt: skip


class Service(BaseHTTPRequestHandler):
    """The fake weather service."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        city, days = unquote(url.path.rsplit("/", 1)[1]), int(parse_qs(url.query).get("days", ["1"])[0])
        known = city in ("Oslo", "San José")
        self._answer(200, {"city": city, "sky": ["rain"] * days}) if known else self._answer(404, {"unknown": city})

    def do_POST(self) -> None:
        told = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self._answer(201, {"reported": told})

    def _answer(self, status: int, value: object) -> None:
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


service = ThreadingHTTPServer(("127.0.0.1", 0), Service)
threading.Thread(target=service.serve_forever, daemon=True).start()
app = Server.from_openapi(DOCUMENT, base_url=f"http://127.0.0.1:{service.server_port}")

if __name__ == "__main__":
    app.run()
