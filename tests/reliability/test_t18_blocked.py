"""T18: a tool that holds up the loop is named in the log; tools in threads hold up nobody."""

from lab import Client, Start, within


def test_a_blocked_loop_is_reported_with_its_stack(start: Start) -> None:
    target = start()
    assert Client(target).call("block", {"seconds": 1.6}).text == "done"
    within(lambda: "in block" in target.log, "a report with the stack")
