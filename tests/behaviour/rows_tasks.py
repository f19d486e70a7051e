"""Requirements on durable tasks."""

from behaviour.manifest import ALL_HTTP, Requirement
from support.driver import STATELESS

_TRANSPORTS = ("memory", "pipe", "http")

ROWS = (
    Requirement(
        "tasks.created",
        "house",
        "A call of a tool with `task=` becomes a task for a client that declares the extension. The task can be read "
        "at once, and has the result of the call when it is completed.",
        revisions=(STATELESS,),
        transports=_TRANSPORTS,
    ),
    Requirement(
        "tasks.foreground",
        "house",
        "A client that does not declare the extension gets the result of the call. In versions with a handshake, so "
        "does every client, and the methods of tasks do not exist.",
    ),
    Requirement(
        "tasks.required",
        "house",
        "If a tool requires tasks, a client of a stateless version that does not declare the extension is refused "
        "before the tool runs.",
        transports=("memory", "http"),
    ),
    Requirement(
        "tasks.input",
        "house",
        "A task shows its open questions, and continues when they are answered. Other answers are ignored.",
        revisions=(STATELESS,),
        transports=_TRANSPORTS,
    ),
    Requirement(
        "tasks.cancelled",
        "house",
        "A cancelled task ends as cancelled. Cancelling a task that has ended changes nothing.",
        revisions=(STATELESS,),
        transports=_TRANSPORTS,
    ),
    Requirement(
        "tasks.unknown",
        "house",
        "A request for a task that does not exist has invalid parameters. A client that does not declare the extension "
        "does not learn whether a task exists.",
        revisions=(STATELESS,),
        transports=_TRANSPORTS,
    ),
    Requirement(
        "tasks.name-header",
        "streamable-http#server-validation",
        "A Mcp-Name header of a request for a task must be the ID of the task.",
        revisions=(STATELESS,),
        transports=ALL_HTTP,
    ),
    Requirement(
        "tasks.subscribed",
        "house",
        "A subscription to a task gets its state at once and after each change, until the client ends it.",
        revisions=(STATELESS,),
        transports=_TRANSPORTS,
    ),
)
