"""T20: a web page cannot reach a server on the visitor's own machine, with nothing configured."""

from lab import Client, Target


def test_a_page_from_elsewhere_is_refused(served: Target) -> None:
    client = Client(served)
    client.headers["origin"] = "http://evil.example"
    assert client.request("tools/list").status == 403
