"""T21: a header that mirrors the body agrees with it, or the request is refused."""

from lab import Client, Target


def test_a_method_that_disagrees_is_refused(served: Target) -> None:
    client = Client(served)
    data = client.prepare("tools/list").replace(b"mcp-method: tools/list", b"mcp-method: prompts/list")
    answer = client.exchange(data)
    assert (answer.status, answer.message["error"]["code"]) == (400, -32020)
