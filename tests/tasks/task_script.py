"""A scripted server with one task, whose states are given. It uses no code of the project."""

from collections.abc import Callable, Iterable
from itertools import chain, repeat
from typing import Any

from support.scripted_server import CAPABILITIES, STATELESS, SUBSCRIPTION, ScriptedServer, create_notification
from support.scripted_server import text_result as create_text_result

TASKS = "io.modelcontextprotocol/tasks"
TIME = "2026-10-01T12:00:00Z"
TASK_ID = "task-1"
OK: dict[str, Any] = {"resultType": "complete"}
DISCOVERED = {
    "supportedVersions": [STATELESS],
    "capabilities": CAPABILITIES | {"extensions": {TASKS: {}}},
    "resultType": "complete",
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "stand-in", "version": "1"}},
}
QUESTION = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Sure?",
        "requestedSchema": {"type": "object", "properties": {"sure": {"type": "boolean"}}},
    },
}


def create_state(status: str = "working", **more: Any) -> dict[str, Any]:
    """Return the result of tasks/get."""
    state: dict[str, Any] = {
        "resultType": "complete",
        "taskId": TASK_ID,
        "status": status,
        "createdAt": TIME,
        "lastUpdatedAt": TIME,
        "ttlMs": 60_000,
        "pollIntervalMs": 50,
    }
    return state | more


def complete(text: str = "done", **more: Any) -> dict[str, Any]:
    return create_state("completed", result=create_text_result(text, **more))


def fail(code: int, message: str = "broken", data: Any = None) -> dict[str, Any]:
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return create_state("failed", error=error)


def ask(*keys: str, **questions: Any) -> dict[str, Any]:
    return create_state("input_required", inputRequests=dict.fromkeys(keys, QUESTION) | questions)


def acknowledge(message: dict[str, Any], *ids: str) -> dict[str, Any]:
    """Return the acknowledgement of a subscription."""
    return create_notification(
        "notifications/subscriptions/acknowledged",
        notifications={"taskIds": [*ids]},
        _meta={SUBSCRIPTION: message["id"]},
    )


def notify(subscription_id: object, state: dict[str, Any]) -> dict[str, Any]:
    """Return a notification with the state of a task."""
    fields = {name: value for name, value in state.items() if name != "resultType"}
    return create_notification("notifications/tasks", **fields, _meta={SUBSCRIPTION: subscription_id})


def create_script(states: Iterable[Any], **reactions: Any) -> ScriptedServer:
    """Return a server that answers each tasks/get with the next state, and repeats the last one.

    Reactions are given with an underscore instead of the slash.
    """
    listed = [*states]
    upcoming = chain(listed, repeat(listed[-1]))

    def get(message: dict[str, Any]) -> Any:
        state = next(upcoming)
        return state(message) if isinstance(state, Callable) else state

    return ScriptedServer(
        "stateless",
        {
            "server/discover": DISCOVERED,
            "tools/call": create_state(resultType="task"),
            "tasks/get": get,
            "tasks/update": OK,
            "tasks/cancel": OK,
        }
        | {name.replace("_", "/", 1): reaction for name, reaction in reactions.items()},
    )


def get_params(script: ScriptedServer, method: str) -> list[dict[str, Any]]:
    """Return the parameters of all requests with a method, without `_meta`."""
    return [
        {name: value for name, value in message["params"].items() if name != "_meta"}
        for message in script.received
        if message.get("method") == method
    ]


def get_declared(script: ScriptedServer, method: str) -> list[Any]:
    """Return the extensions that the client declared in each request with a method."""
    return [
        message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"].get("extensions")
        for message in script.received
        if message.get("method") == method
    ]
