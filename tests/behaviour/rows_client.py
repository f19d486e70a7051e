"""Requirements on the client."""

from behaviour.manifest import PUBLISHED, Requirement
from support.driver import DRAFT, HANDSHAKE, STATELESS

SOCKET = ("tcp",)
HTTP = ("http",)
LATEST = ("2025-11-25",)
BOTH_ERAS = (*LATEST, STATELESS)

ROWS: tuple[Requirement, ...] = (
    Requirement(
        "client.empty-cursor",
        "pagination#implementation-guidelines",
        "An empty nextCursor is a cursor. Only a missing one ends a list.",
        revisions=BOTH_ERAS,
        transports=SOCKET,
    ),
    Requirement(
        "client.version-header",
        "handshake/transports#protocol-version-header",
        "Every HTTP request after initialize has the negotiated version in MCP-Protocol-Version.",
        revisions=HANDSHAKE,
        transports=HTTP,
    ),
    Requirement(
        "client.cookies",
        "house",
        "The client returns the cookies of its server, so that a balancer finds the machine of a session.",
        revisions=LATEST,
        transports=HTTP,
    ),
    Requirement(
        "client.undeclared-mode",
        "handshake/elicitation#error-handling",
        "The client answers an elicitation in a mode that it did not declare with -32602.",
        revisions=LATEST,
        transports=SOCKET,
    ),
    Requirement(
        "client.file-roots",
        "roots#root",
        "The client sends only roots with a file:// URI.",
        revisions=BOTH_ERAS,
        transports=SOCKET,
    ),
    Requirement(
        "client.unbalanced-sampling",
        "handshake/sampling#error-handling",
        "The client answers a sampling request with -32602 if a tool use has no result or a result is mixed "
        "with other content.",
        revisions=LATEST,
        transports=SOCKET,
    ),
    Requirement(
        "client.rejected-sampling",
        "handshake/sampling#error-handling",
        "If the user rejects a sampling request, the client answers -1, and its own request continues.",
        revisions=LATEST,
        transports=SOCKET,
    ),
    Requirement(
        "client.meta-envelope",
        "basic#_meta",
        "The caller's _meta is sent, but cannot replace the version, name and capabilities of the client.",
        revisions=(STATELESS,),
        transports=HTTP,
    ),
    Requirement(
        "client.server-capabilities",
        "handshake/lifecycle#capability-negotiation",
        "The client sends no request for resources, prompts, completion or log levels to a server that did not "
        "declare it. A list of such items is empty.",
        revisions=PUBLISHED,
        transports=SOCKET,
    ),
    Requirement(
        "client.own-capabilities",
        "handshake/roots#root-list-changes",
        "A client without roots does not report that they have changed.",
        revisions=LATEST,
        transports=SOCKET,
    ),
    Requirement(
        "client.late-progress",
        "progress#behavior-requirements",
        "Progress that arrives after the result of a request does not reach the progress handler.",
        revisions=BOTH_ERAS,
        transports=SOCKET,
    ),
    Requirement(
        "client.listen-backoff",
        "subscriptions#graceful-closure",
        "If the server ends a subscription again and again, the client waits longer before each new one.",
        revisions=(STATELESS,),
        transports=SOCKET,
    ),
    Requirement(
        "client.other-notifications",
        "handshake/elicitation#completion-notifications-for-url-mode-elicitation",
        "The notice that an elicitation is complete, and notifications of extensions, reach notification_handler.",
        revisions=BOTH_ERAS,
        transports=SOCKET,
    ),
    Requirement(
        "client.progress",
        "handshake/progress#progress-flow",
        "A handler can report the progress of a request to the handshake server that sent it.",
        revisions=LATEST,
        transports=SOCKET,
    ),
    Requirement(
        "client.dialogs",
        "house",
        "In the draft dialect, the client reports when a dialog opens and when it closes.",
        revisions=(DRAFT,),
        transports=SOCKET,
    ),
    Requirement(
        "client.prior-discover",
        "versioning#protocol-version-negotiation",
        "A client with an earlier discover result, or with a required version, can send its first request at once.",
        revisions=(STATELESS,),
        transports=SOCKET,
    ),
)
