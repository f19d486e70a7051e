"""Record what clients did and received, and explain it with a sequential model.

The model is one server in one process. Each session has a log level and subscriptions. Each call has a token, and every
message of the call names it. The check reports each message that the model does not explain, and each that is missing.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

LEVELS = ("debug", "info", "notice", "warning", "error")
DEFAULT_LEVEL = "info"  # the lowest level that a client gets before it chooses one

Outcome = Literal["open", "answered", "lost", "cancelled"]


@dataclass
class Operation:
    """One operation of a client, and what it received for it."""

    kind: str  # the name of a tool, or "subscribe", "unsubscribe" and "set_level"
    token: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    outcome: Outcome = "open"
    text: str = ""  # the text of the result
    messages: list[Any] = field(default_factory=list[Any])  # all messages before the result, in order
    event_ids: list[str] = field(default_factory=list[str])
    begin: int = 0  # the position in the order of all beginnings and ends
    end: int = 0


@dataclass
class ClientHistory:
    """The operations of one session in their order, and the notices that it received on its GET stream."""

    name: str
    operations: list[Operation] = field(default_factory=list[Operation])
    notices: list[Any] = field(default_factory=list[Any])
    notice_ids: list[str] = field(default_factory=list[str])
    gap_count: int = 0  # how often shared state was lost: each time, everything may be reported once more


class History:
    """The histories of all clients."""

    def __init__(self) -> None:
        self.clients: list[ClientHistory] = []
        self._position = 0

    def add_client(self, name: str) -> ClientHistory:
        client = ClientHistory(name)
        self.clients.append(client)
        return client

    def begin(self, client: ClientHistory, kind: str, token: str, **arguments: Any) -> Operation:
        self._position += 1
        operation = Operation(kind, token, arguments, begin=self._position)
        client.operations.append(operation)
        return operation

    def end(self, operation: Operation, outcome: Outcome, text: str = "") -> None:
        self._position += 1
        operation.end, operation.outcome, operation.text = self._position, outcome, text

    @property
    def operations(self) -> list[Operation]:
        return [operation for client in self.clients for operation in client.operations]

    def count(self, outcome: Outcome) -> int:
        return sum(operation.outcome == outcome for operation in self.operations)


def find_violations(history: History, effects: Mapping[tuple[str, str], int]) -> list[str]:
    """Return a line for everything that the model does not explain."""
    violations = [*_check_effects(history, effects)]
    for client in history.clients:
        violations += [f"{client.name}: {line}" for line in _check_session(client)]
        violations += [f"{client.name}: {line}" for line in _check_notices(client, history)]
    return violations


def _check_effects(history: History, effects: Mapping[tuple[str, str], int]) -> Iterator[str]:
    calls = {(operation.token, operation.kind): operation for operation in history.operations}
    for (token, tool), count in effects.items():
        if tool == "cancelled":
            continue
        if (token, tool) not in calls:
            yield f"{tool} ran for the unknown token {token}"
        elif count > 1:
            yield f"{tool} {token} ran {count} times"
    for (token, tool), operation in calls.items():
        if tool in ("subscribe", "unsubscribe", "set_level"):
            continue
        if operation.outcome in ("answered", "cancelled") and not effects.get((token, tool)):
            yield f"{tool} {token} was {operation.outcome} and did not run"
        if operation.outcome == "cancelled" and effects.get((token, "cancelled")) != 1:
            yield f"{tool} {token} was cancelled {effects.get((token, 'cancelled'), 0)} times at the server"


def _check_session(client: ClientHistory) -> Iterator[str]:
    """Replay the operations of one session, which ran one after the other."""
    level = DEFAULT_LEVEL
    for operation in client.operations:
        if operation.outcome == "open":
            yield f"{operation.kind} {operation.token} was neither answered nor reported as lost"
        if operation.kind == "set_level":
            level = operation.arguments["level"]
            continue
        yield from _check_messages(operation, level)
        if len(set(operation.event_ids)) != len(operation.event_ids):
            yield f"{operation.kind} {operation.token} got an event twice: {operation.event_ids}"
    event_ids = Counter(event_id for operation in client.operations for event_id in set(operation.event_ids))
    event_ids.update(client.notice_ids)
    for event_id, count in event_ids.items():
        if count > 1:
            yield f"the event ID {event_id} was used {count} times"


def _check_messages(operation: Operation, level: str) -> Iterator[str]:
    expected = _predict_messages(operation, level)
    received = [_describe_message(message) for message in operation.messages]
    name = f"{operation.kind} {operation.token}"
    if operation.outcome == "answered":
        if received != expected:
            yield f"{name} got {received}, expected {expected}"
        words = operation.text.split(" ")
        answer = [f"answer-{operation.token}"] if operation.kind in ("ask", "sample") else []
        if operation.kind not in ("subscribe", "unsubscribe") and words[:-1] != [operation.token, *answer]:
            yield f"{name} got the result {operation.text!r}"
    elif received != expected[: len(received)]:
        yield f"{name} was {operation.outcome} and got {received}, expected a beginning of {expected}"


def _predict_messages(operation: Operation, level: str) -> list[str]:
    token = operation.token
    match operation.kind:
        case "climb":
            return [f"progress {token} {step}" for step in range(1, operation.arguments["steps"] + 1)]
        case "hang":
            return [f"progress {token} 1"]
        case "ask" | "sample":
            return [f"question {token}"]
        case "narrate":
            levels = ("debug", "info", "warning")
            return [f"log {token} {name}" for name in levels if LEVELS.index(name) >= LEVELS.index(level)]
        case _:
            return []


def _describe_message(message: Any) -> str:
    """Return a short text for a message. It contains everything that names a call."""
    params = message.get("params", {})
    match message.get("method"):
        case "notifications/progress":
            token, _, _ = params["message"].partition(" ")
            wrong = "" if params.get("progressToken") == token else f" for {params.get('progressToken')}"
            return f"progress {params['message']}{wrong}"
        case "notifications/message":
            return f"log {params['data']}"
        case "elicitation/create":
            return f"question {params['message']}"
        case "sampling/createMessage":
            content = params["messages"][0]["content"]
            content = content[0] if isinstance(content, list) else content
            return f"question {content['text']}"
        case _:
            return f"unexpected {message}"


def _check_notices(client: ClientHistory, history: History) -> Iterator[str]:
    subscriptions = _find_subscriptions(client)
    received = Counter(
        notice["params"]["uri"] for notice in client.notices if notice["method"] == "notifications/resources/updated"
    )
    touches = {
        operation.arguments["uri"]: operation for operation in history.operations if operation.kind == "touch"
    }  # Each URI is touched only once.
    for uri, count in received.items():
        if uri not in subscriptions:
            yield f"got a notice for {uri}, which it never subscribed to"
        elif count > 1 + client.gap_count:
            yield f"got {count} notices for {uri}"
    for uri, (begin, end) in subscriptions.items():
        touch = touches.get(uri)
        if touch is None:
            must, may = False, False
        else:
            may = touch.end > begin and touch.begin < end
            must = touch.outcome == "answered" and touch.begin > begin and touch.end < end
        if must and not received[uri]:
            yield f"did not get the notice for {uri}"
        if received[uri] and not may and not client.gap_count:
            yield f"got a notice for {uri} without a change"
    yield from _check_list_notices(client, history)


def _check_list_notices(client: ClientHistory, history: History) -> Iterator[str]:
    changes = [operation for operation in history.operations if operation.kind == "change_tools"]
    first = client.operations[0].begin if client.operations else 0
    heard = sum(notice["method"] == "notifications/tools/list_changed" for notice in client.notices)
    if heard > len(changes) + client.gap_count:
        yield f"got {heard} notices about tools for {len(changes)} changes"
    if not heard and any(change.outcome == "answered" and change.begin > first for change in changes):
        yield "did not get any notice about tools"
    for notice in client.notices:
        method = notice["method"]
        is_expected = method in ("notifications/resources/updated", "notifications/tools/list_changed")
        if not is_expected and not (client.gap_count and method.endswith("list_changed")):
            yield f"got the notice {notice}"


def _find_subscriptions(client: ClientHistory) -> dict[str, tuple[int, float]]:
    """Return for each URI the positions at which the subscription began and ended."""
    found: dict[str, tuple[int, float]] = {}
    for operation in client.operations:
        if operation.kind == "subscribe":
            found[operation.arguments["uri"]] = (operation.end, float("inf"))
        elif operation.kind == "unsubscribe":
            found[operation.arguments["uri"]] = (found[operation.arguments["uri"]][0], operation.begin)
    return found
