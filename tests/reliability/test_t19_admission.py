"""T19: one client that floods the server is told so; the others do not notice."""

from lab import Client, Start


def test_one_principal_has_only_its_share(start: Start) -> None:
    target = start(principals=True, limits={"calls_per_principal": 2})
    greedy, other = Client(target, principal="greedy"), Client(target, principal="other")
    held = [greedy.begin_call("wait", {"key": "k"}) for _ in range(2)]
    other.call("until", {"what": "started", "key": "k", "count": 2})
    assert greedy.call("echo", {"text": "x"}).status == 429
    assert other.healthy()
    other.call("release", {"key": "k"})
    assert [one.answer().status for one in held] == [200, 200]
