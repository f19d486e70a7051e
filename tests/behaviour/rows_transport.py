"""Requirements on messages, lifecycle, transports and cancellation."""

from behaviour.manifest import (
    ALL_HTTP,
    HANDSHAKE,
    HTTP_ONLY,
    MAIN_TRANSPORTS,
    SESSION_REVISIONS,
    STATELESS,
    STREAM_TRANSPORTS,
    Requirement,
)
from support.driver import DRAFT

DUPLEX = ("memory", "pipe", "sse")
BOTH = ("2025-11-25", STATELESS)  # one revision of each era
OLD_WEB = ("2025-03-26", "2025-06-18", "2025-11-25")  # revisions with sessions over HTTP
NEW_AND_OLD = ("2024-11-05", "2025-11-25", STATELESS)

MESSAGES = (
    Requirement(
        "msg.id-echo",
        "basic#result-responses",
        "Results and errors carry the id of their request, same value, same type.",
        revisions=("2025-11-25", STATELESS),
    ),
    Requirement(
        "msg.id-refused",
        "basic#requests",
        "An id is a string or an integer. A request with any other id, also null, is answered -32600 without an id.",
        revisions=NEW_AND_OLD,
    ),
    Requirement("msg.id-type", "basic#requests", "The ids 1 and '1' are different requests."),
    Requirement(
        "msg.id-in-flight",
        "basic#requests",
        "A duplex connection refuses an id that is in flight, with -32600 (draft: -32001), and serves the first.",
        transports=("memory", "pipe", "sse"),
    ),
    Requirement(
        "msg.meta-object",
        "basic#_meta",
        "A request whose _meta is not an object is -32602.",
        revisions=("2024-11-05", "2025-11-25", DRAFT),
        transports=("memory", "http"),
    ),
    Requirement(
        "msg.id-own-reply",
        "house",
        "Over HTTP the reply identifies the request, so equal ids in flight are each answered on their own.",
        transports=HTTP_ONLY,
    ),
    Requirement(
        "msg.invalid",
        "basic#messages",
        "JSON that is not a JSON-RPC 2.0 message is answered -32600, with its id if it is readable, over "
        "HTTP with 400.",
        revisions=NEW_AND_OLD,
    ),
    Requirement(
        "msg.parse",
        "transports#messages",
        "Bytes that are not unambiguous UTF-8 JSON are answered -32700 without an id, over HTTP with 400.",
        revisions=NEW_AND_OLD,
    ),
    Requirement("msg.depth", "house", "Messages nested as deep as the limit allows are read."),
    Requirement("msg.unknown-fields", "basic#general-fields", "Unknown members are ignored at every level."),
    Requirement(
        "msg.parallel",
        "patterns#request-and-response",
        "Requests run concurrently. Each is answered when it is done, in any order.",
    ),
    Requirement(
        "msg.notice-silent", "basic#notifications", "A notification is never answered, over HTTP with 202 and no body."
    ),
    Requirement(
        "msg.stray-response",
        "handshake/basic#responses",
        "An unexpected response is ignored, over HTTP with 202.",
        revisions=SESSION_REVISIONS,
    ),
    Requirement(
        "msg.response-stateless-http",
        "streamable-http#sending-messages",
        "The stateless era has no responses from clients: HTTP 400.",
        revisions=(STATELESS,),
        transports=HTTP_ONLY,
    ),
    Requirement(
        "msg.method-not-found",
        "streamable-http#protocol-version-header",
        "An unknown method is answered -32601, in the stateless era with HTTP 404.",
    ),
    Requirement(
        "msg.framing",
        "stdio#sending-messages",
        "One message per line whatever it contains and however its bytes are cut.",
        revisions=NEW_AND_OLD,
        transports=STREAM_TRANSPORTS,
    ),
    Requirement(
        "msg.line-limit",
        "house",
        "A line over the limit is answered -32600 and skipped. The next line is served.",
        revisions=NEW_AND_OLD,
        transports=STREAM_TRANSPORTS,
    ),
    Requirement("msg.large", "house", "Messages of several megabytes pass.", revisions=("2025-11-25", STATELESS)),
    Requirement(
        "msg.flood",
        "house",
        "A connection or session has a bounded number of requests in flight. Any other is refused with a "
        "time to retry.",
        revisions=SESSION_REVISIONS,
    ),
)

LIFECYCLE = (
    Requirement(
        "life.initialize",
        "handshake/lifecycle#initialization",
        "The result of initialize has the version, capabilities, server info and instructions, as the "
        "version defines them.",
        revisions=SESSION_REVISIONS,
    ),
    Requirement(
        "life.initialize-params",
        "handshake/lifecycle#initialization",
        "An initialize without version, capabilities or client info is answered -32602 and opens nothing.",
        revisions=SESSION_REVISIONS,
    ),
    Requirement(
        "life.first",
        "handshake/lifecycle#initialization",
        "Before initialize a duplex connection serves ping and refuses everything else.",
        revisions=SESSION_REVISIONS,
        transports=DUPLEX,
    ),
    Requirement(
        "life.again",
        "handshake/lifecycle#initialization",
        "A second initialize on a connection starts over. Running requests still get their responses.",
        revisions=SESSION_REVISIONS,
        transports=DUPLEX,
    ),
    Requirement(
        "life.initialized-first",
        "handshake/lifecycle#initialization",
        "The server sends no messages before notifications/initialized.",
        revisions=SESSION_REVISIONS,
    ),
    Requirement(
        "life.ping",
        "handshake/ping#behavior-requirements",
        "Ping is answered promptly with an empty result, whatever else is going on.",
        revisions=SESSION_REVISIONS,
    ),
    Requirement(
        "life.server-ping",
        "handshake/ping#behavior-requirements",
        "A server can ping its client during a call.",
        revisions=SESSION_REVISIONS,
    ),
    Requirement(
        "life.client-notifications",
        "house",
        "A server can handle notifications of its client in a session, such as changed roots and the dialogs of the "
        "draft. Its function gets the parameters and the context.",
        revisions=SESSION_REVISIONS,
        transports=("memory", "pipe", "http"),
    ),
    Requirement("life.ping-gone", "patterns#request-and-response", "Ping does not exist.", revisions=(STATELESS,)),
    Requirement(
        "life.shutdown",
        "house",
        "Shutdown is answered null and ends the session or connection, in every revision that shakes hands.",
        revisions=SESSION_REVISIONS,
    ),
    Requirement(
        "life.bare-initialized",
        "house",
        "The notification `initialized` without its prefix opens the session, too.",
        revisions=SESSION_REVISIONS,
    ),
    Requirement(
        "life.stateless",
        "basic#statelessness",
        "Client info and capabilities come only from each request.",
        revisions=(STATELESS,),
    ),
    Requirement(
        "life.session-caller",
        "handshake/lifecycle#operation",
        "What was agreed in the handshake holds for every request of the session.",
        revisions=SESSION_REVISIONS,
    ),
    Requirement(
        "life.capabilities",
        "handshake/lifecycle#capability-negotiation",
        "A capability that was not declared is not served: -32601.",
    ),
)

NEGOTIATION = (
    Requirement(
        "neg.echo",
        "handshake/lifecycle#version-negotiation",
        "A supported version is accepted.",
        revisions=SESSION_REVISIONS,
        transports=(*MAIN_TRANSPORTS, "http-stateless"),
    ),
    Requirement(
        "neg.counter-offer",
        "handshake/lifecycle#version-negotiation",
        "To any other revision the server answers with the newest it can shake hands in.",
        transports=("memory", "http"),
    ),
    Requirement(
        "neg.restricted",
        "house",
        "A server with selected versions supports only those.",
        transports=("memory", "http"),
    ),
    Requirement(
        "neg.stateless-only-initialize",
        "versioning#backward-compatibility-with-initialization-based-versions",
        "A server of the stateless era refuses initialize and names its supported versions.",
        revisions=SESSION_REVISIONS,
        transports=("memory", "pipe", "http"),
    ),
    Requirement(
        "neg.stateless-only-http",
        "streamable-http#earlier-streamable-http-revisions",
        "A server of the stateless era answers GET and DELETE with 405 and has no other addresses.",
        revisions=(STATELESS,),
        transports=HTTP_ONLY,
    ),
    Requirement(
        "neg.sessionless",
        "streamable-http#earlier-streamable-http-revisions",
        "The stateless era ignores session and event ids and gives out none.",
        revisions=(STATELESS,),
        transports=HTTP_ONLY,
    ),
    Requirement(
        "neg.discover",
        "discover#response",
        "server/discover returns versions, capabilities, server info and instructions. Dialects are not advertised.",
        revisions=(STATELESS,),
        transports=("memory", "pipe", "http"),
    ),
    Requirement(
        "neg.unsupported",
        "versioning#protocol-version-negotiation",
        "An unsupported stateless version is answered -32022 with the supported ones, over HTTP with 400.",
        revisions=(STATELESS,),
        transports=("memory", "pipe", "http"),
    ),
    Requirement(
        "neg.handshake-only",
        "stdio#backward-compatibility",
        "A server of the handshake era answers stateless requests with no stateless error, so that clients fall back.",
        revisions=(STATELESS,),
        transports=("memory", "http"),
    ),
    Requirement(
        "neg.meta-required",
        "basic#_meta",
        "A stateless request without well-formed version and capabilities is answered -32602, over HTTP with 400.",
        revisions=(STATELESS,),
        transports=("memory", "http"),
    ),
    Requirement(
        "neg.header-without-meta",
        "streamable-http#server-validation",
        "The version header alone puts a request into the stateless era: without _meta it is 400 and -32602.",
        revisions=(STATELESS,),
        transports=HTTP_ONLY,
    ),
    Requirement(
        "neg.header-mismatch",
        "streamable-http#server-validation",
        "A standard header that is missing or disagrees with the body is answered 400 and -32020.",
        revisions=(STATELESS,),
        transports=HTTP_ONLY,
    ),
    Requirement(
        "neg.era-by-body",
        "versioning#compatibility-matrix",
        "The metadata of a request decides its era, not its method.",
        revisions=(STATELESS,),
        transports=("memory", "http"),
    ),
    Requirement(
        "neg.interleaved",
        "versioning#compatibility-matrix",
        "One process and one endpoint serve both eras at once, each request in its own.",
        revisions=HANDSHAKE,
        transports=("memory", "pipe", "unix", "tcp", "http"),
    ),
    Requirement(
        "neg.windows",
        "versioning#protocol-version-negotiation",
        "A method exists in the versions that define it. In others, or from the wrong side, it is -32601.",
        transports=("memory", "http"),
    ),
    Requirement(
        "neg.http-version-header",
        "handshake/transports#protocol-version-header",
        "A version header that names nothing served here is 400.",
        revisions=HANDSHAKE,
        transports=HTTP_ONLY,
    ),
    Requirement(
        "neg.http-no-version-header",
        "handshake/transports#protocol-version-header",
        "Without a version header the session's revision holds.",
        revisions=HANDSHAKE,
        transports=HTTP_ONLY,
    ),
    Requirement(
        "neg.http-unnamed",
        "handshake/transports#protocol-version-header",
        "Without session and version header a request is taken for 2025-03-26.",
        revisions=("2025-03-26",),
        transports=("http-stateless",),
    ),
)

HTTP = (
    Requirement(
        "http.notice",
        "streamable-http#sending-messages",
        "A notification is answered 202 with no body.",
        transports=ALL_HTTP,
    ),
    Requirement("http.content-type", "house", "A body not declared as JSON is 415.", BOTH, HTTP_ONLY),
    Requirement(
        "http.accept",
        "streamable-http#sending-messages",
        "A response is plain JSON, or a stream if a message comes before the result, within what the client accepts.",
        BOTH,
        HTTP_ONLY,
    ),
    Requirement(
        "http.not-acceptable", "house", "A client that takes neither JSON nor streams gets 406.", BOTH, HTTP_ONLY
    ),
    Requirement(
        "http.streaming",
        "streamable-http#receiving-messages",
        "Notifications come before the response, the response ends the stream, and no proxy may hold it back.",
        transports=ALL_HTTP,
    ),
    Requirement(
        "http.one-stream",
        "handshake/transports#multiple-connections",
        "A message is sent on one stream only: what concerns a request on the reply to it.",
        transports=HTTP_ONLY,
    ),
    Requirement(
        "http.keep-alive",
        "streamable-http#receiving-messages",
        "A quiet stream carries comments, so that it is not taken for dead.",
        BOTH,
        HTTP_ONLY,
    ),
    Requirement(
        "http.silent",
        "house",
        "A silent call becomes an event stream, at once if streams are preferred, never if JSON is wanted.",
        BOTH,
        HTTP_ONLY,
    ),
    Requirement(
        "http.idle-timeout",
        "house",
        "A response names the idle timeout of its connection in Keep-Alive, and Connection names that header.",
        (STATELESS,),
        HTTP_ONLY,
    ),
    Requirement("http.responses", "house", "A server can be set to plain JSON or to streams.", BOTH, HTTP_ONLY),
    Requirement("http.methods", "streamable-http#security-endpoint", "Other HTTP methods are 405.", BOTH, HTTP_ONLY),
    Requirement(
        "http.path",
        "streamable-http#security-endpoint",
        "There is one endpoint, with or without a trailing slash. Everything else is 404.",
        BOTH,
        HTTP_ONLY,
    ),
    Requirement("http.body-limit", "house", "A body over the limit is 413, announced or not.", BOTH, HTTP_ONLY),
    Requirement("http.chunked", "house", "A body may come in chunks.", BOTH, HTTP_ONLY),
    Requirement(
        "http.trailers",
        "house",
        "Trailers of a request are never headers. Beyond the limit of a header block they are 431 and nothing runs.",
        BOTH,
        HTTP_ONLY,
    ),
    Requirement("http.host", "streamable-http#security-endpoint", "A foreign Host is 421.", BOTH, HTTP_ONLY),
    Requirement(
        "http.origin",
        "streamable-http#security-endpoint",
        "An Origin that is present and not allowed is 403, on every address and method.",
        BOTH,
        HTTP_ONLY,
    ),
    Requirement("http.once", "house", "A duplicate decisive header is 400.", (STATELESS,), HTTP_ONLY),
    Requirement("http.cors", "house", "Pages may read replies only if their origin was named for it.", BOTH, HTTP_ONLY),
    Requirement(
        "http.status",
        "streamable-http#protocol-version-header",
        "In the stateless era protocol errors have their own status. A failed tool is 200.",
        (STATELESS,),
        HTTP_ONLY,
    ),
    Requirement(
        "http.handshake-status",
        "handshake/transports#sending-messages-to-the-server",
        "Within a session an error response is a reply like any other: 200.",
        SESSION_REVISIONS,
        HTTP_ONLY,
    ),
    Requirement(
        "http.stateless-handshake",
        "handshake/transports#session-management",
        "Handshake revisions can be served without sessions: no id, no GET, no DELETE, no questions.",
        ("2025-03-26", "2025-06-18", "2025-11-25"),
        ("http-stateless",),
    ),
    Requirement(
        "http.stateless-only-post",
        "streamable-http#protocol-version-header",
        "A revision that is not served is not served to those who leave it unnamed either.",
        (STATELESS,),
        HTTP_ONLY,
    ),
    Requirement(
        "http.mount", "house", "Servers can be mounted under prefixes in another application.", BOTH, HTTP_ONLY
    ),
    Requirement(
        "http.health", "house", "Two addresses tell whether the process lives and is ready.", (STATELESS,), HTTP_ONLY
    ),
    Requirement(
        "http.run", "house", "A process serves until a signal comes, and then ends well.", (STATELESS,), HTTP_ONLY
    ),
    Requirement("http.tls", "house", "A process can serve TLS.", (STATELESS,), HTTP_ONLY),
    Requirement(
        "http.workers",
        "house",
        "Several processes can share one port. A process that dies is replaced.",
        BOTH,
        HTTP_ONLY,
    ),
)

SESSION = (
    Requirement(
        "session.id",
        "handshake/transports#session-management",
        "A session id is visible ASCII, unique and not to be guessed.",
        OLD_WEB,
        HTTP_ONLY,
    ),
    Requirement(
        "session.required",
        "handshake/transports#session-management",
        "A request of a session without its id is 400.",
        OLD_WEB,
        HTTP_ONLY,
    ),
    Requirement(
        "session.unknown",
        "handshake/transports#session-management",
        "A request with an unknown session id is 404.",
        OLD_WEB,
        HTTP_ONLY,
    ),
    Requirement(
        "session.delete",
        "handshake/transports#session-management",
        "DELETE ends the session, its calls and its streams. Later requests are 404.",
        OLD_WEB,
        HTTP_ONLY,
    ),
    Requirement(
        "session.principal",
        "handshake/transports#session-management",
        "To anyone but the principal that opened it a session does not exist.",
        OLD_WEB,
        HTTP_ONLY,
    ),
    Requirement("session.get-once", "house", "A second GET stream of a session is 409.", OLD_WEB, HTTP_ONLY),
    Requirement(
        "session.get-accept",
        "handshake/transports#listening-for-messages-from-the-server",
        "A GET that does not accept a stream is 406.",
        OLD_WEB,
        HTTP_ONLY,
    ),
    Requirement(
        "session.notices-wait",
        "house",
        "Changes without an open GET stream are sent when it opens, each kind once.",
        OLD_WEB,
        HTTP_ONLY,
    ),
    Requirement(
        "session.notices-own",
        "handshake/transports#multiple-connections",
        "Each session receives a change once, only on its GET stream.",
        OLD_WEB,
        HTTP_ONLY,
    ),
    Requirement(
        "session.isolation",
        "handshake/transports#session-management",
        "Requests, answers and cancellations of one session never reach another.",
        OLD_WEB,
        HTTP_ONLY,
    ),
    Requirement("session.idle", "house", "An unused session expires. A session in use does not.", OLD_WEB, HTTP_ONLY),
    Requirement("session.lifetime", "house", "No session lives longer than its lifetime.", OLD_WEB, HTTP_ONLY),
    Requirement("session.opening", "house", "A session that is not opened fully in time expires.", OLD_WEB, HTTP_ONLY),
    Requirement(
        "session.cap",
        "house",
        "Sessions are bounded: the longest unused one gives way, and where none is unused the answer is 503 or 429.",
        OLD_WEB,
        HTTP_ONLY,
    ),
    Requirement(
        "session.reinitialize",
        "handshake/transports#session-management",
        "An initialize opens a new session, whatever id it carries.",
        OLD_WEB,
        HTTP_ONLY,
    ),
    Requirement(
        "session.version",
        "handshake/transports#protocol-version-header",
        "A version header that is unknown or differs from the version of the session is 400, and its text contains "
        "`Unsupported protocol version`.",
        OLD_WEB,
        HTTP_ONLY,
    ),
    Requirement(
        "session.none-stateless",
        "streamable-http#earlier-streamable-http-revisions",
        "The stateless era neither opens nor names sessions.",
        (STATELESS,),
        HTTP_ONLY,
    ),
)

RESUMPTION = (
    Requirement(
        "resume.silent",
        "handshake/transports#resumability-and-redelivery",
        "The stream of a silent call begins with an event id, so that a client that lost it can fetch the result.",
        ("2025-11-25",),
        HTTP_ONLY,
    ),
    Requirement(
        "resume.rest",
        "handshake/transports#resumability-and-redelivery",
        "A GET with the id of the last event seen brings everything after it, once and in order, and what follows.",
        OLD_WEB,
        HTTP_ONLY,
    ),
    Requirement(
        "resume.own-stream",
        "handshake/transports#resumability-and-redelivery",
        "Messages of other streams are never replayed.",
        OLD_WEB,
        HTTP_ONLY,
    ),
    Requirement(
        "resume.ids",
        "handshake/transports#resumability-and-redelivery",
        "Event ids are unique within a session.",
        OLD_WEB,
        HTTP_ONLY,
    ),
    Requirement("resume.unknown", "house", "An event id that never was is 400.", OLD_WEB, HTTP_ONLY),
    Requirement(
        "resume.other-session",
        "house",
        "An event id of another session is 400 and touches nothing.",
        OLD_WEB,
        HTTP_ONLY,
    ),
    Requirement(
        "resume.window",
        "house",
        "Events are kept for a bounded time. A request for older ones is 400, never a silent gap.",
        OLD_WEB,
        HTTP_ONLY,
    ),
    Requirement(
        "resume.priming",
        "handshake/transports#sending-messages-to-the-server",
        "A stream begins with an event that has an id and no data.",
        ("2025-11-25", DRAFT),
        HTTP_ONLY,
    ),
    Requirement(
        "resume.no-priming",
        "house",
        "Clients of revisions without priming never get an event without data.",
        ("2024-11-05", "2025-03-26", "2025-06-18"),
        HTTP_ONLY,
    ),
    Requirement(
        "resume.close-stream",
        "handshake/transports#sending-messages-to-the-server",
        "The server may close a connection with a retry time. The rest of the stream is sent once, on the GET.",
        ("2025-11-25", DRAFT),
        HTTP_ONLY,
    ),
    Requirement(
        "resume.close-stream-elsewhere",
        "house",
        "Where a client would not come back, letting go of the connection does nothing.",
        ("2024-11-05", "2025-03-26", "2025-06-18", STATELESS),
        ("memory", "pipe", "http", "http-stateless"),
    ),
    Requirement(
        "resume.take-over",
        "handshake/transports#multiple-connections",
        "A stream has one reader, the client that resumed it last.",
        OLD_WEB,
        HTTP_ONLY,
    ),
    Requirement(
        "resume.listening",
        "handshake/transports#resumability-and-redelivery",
        "The stream of a session can be resumed like any other.",
        OLD_WEB,
        HTTP_ONLY,
    ),
)

FIRST = ("2024-11-05",)

SSE = (
    Requirement(
        "sse.endpoint",
        "handshake/transports#http-with-sse",
        "The first event of the stream names the address to post to, different for each stream.",
        FIRST,
        ("sse",),
    ),
    Requirement(
        "sse.messages",
        "handshake/transports#http-with-sse",
        "Messages of the server arrive as message events on the stream.",
        ("2024-11-05", "2025-11-25"),
        ("sse",),
    ),
    Requirement(
        "sse.post",
        "handshake/transports#http-with-sse",
        "A posted message is accepted at once and answered on the stream.",
        FIRST,
        ("sse",),
    ),
    Requirement(
        "sse.refused",
        "house",
        "Posts to an unknown session, of the wrong type or from a foreign origin are refused.",
        FIRST,
        ("sse",),
    ),
    Requirement("sse.leaving", "house", "With the stream the session and its calls end.", FIRST, ("sse",)),
    Requirement("sse.principal", "house", "A client cannot post to another principal's session.", FIRST, ("sse",)),
    Requirement("sse.several", "house", "Streams do not mix.", FIRST, ("sse",)),
    Requirement(
        "sse.cap", "house", "Streams count toward the limit of sessions. Over it the response is 503.", FIRST, ("sse",)
    ),
    Requirement("sse.keep-alive", "house", "A quiet stream carries comments.", FIRST, ("sse",)),
    Requirement("sse.optional", "house", "A server can leave the old addresses out.", FIRST, ("sse",)),
)

BATCHED = ("2025-03-26",)

BATCHES = (
    Requirement(
        "batch.answered",
        "handshake/basic#batching",
        "An array of messages is answered by one array holding an answer to each request in it.",
        BATCHED,
    ),
    Requirement("batch.errors", "handshake/basic#batching", "A wrong member is answered by itself.", BATCHED),
    Requirement(
        "batch.silent",
        "handshake/basic#batching",
        "A batch without requests is not answered, over HTTP with 202.",
        BATCHED,
    ),
    Requirement("batch.empty", "handshake/basic#batching", "An empty array is one -32600.", BATCHED),
    Requirement("batch.parallel", "house", "Members run side by side.", BATCHED),
    Requirement("batch.cancelled", "house", "A cancelled member is left out of the answer.", BATCHED),
    Requirement("batch.progress", "house", "Progress of a member comes before the answer.", BATCHED),
    Requirement("batch.limit", "house", "A batch has a bounded number of members.", BATCHED),
    Requirement(
        "batch.refused",
        "streamable-http#sending-messages",
        "In every other version an array is one -32600, over HTTP with 400.",
        ("2024-11-05", "2025-06-18", "2025-11-25", STATELESS, DRAFT),
    ),
    Requirement("batch.first", "handshake/lifecycle#initialization", "Initialize is not part of a batch.", BATCHED),
)

NOTICED = (*HANDSHAKE, STATELESS)  # the draft answers what is cancelled

CANCELLATION = (
    Requirement(
        "cancel.notice",
        "cancellation#behavior-requirements",
        "A cancelled request stops and is not answered.",
        NOTICED,
        ("memory", "pipe", "sse", "http"),
    ),
    Requirement(
        "cancel.silence",
        "stdio#cancellation",
        "After the cancellation no message about the request is sent, whatever its work still does.",
        NOTICED,
        ("memory", "pipe", "sse", "http"),
    ),
    Requirement(
        "cancel.id-free",
        "house",
        "The id of a cancelled request is free again at once.",
        NOTICED,
        ("memory", "pipe", "http"),
    ),
    Requirement(
        "cancel.invalid",
        "cancellation#error-handling",
        "A cancellation that is malformed or fits no request is ignored.",
        SESSION_REVISIONS,
    ),
    Requirement(
        "cancel.late",
        "cancellation#timing-considerations",
        "A cancellation that comes after the answer changes nothing.",
    ),
    Requirement(
        "cancel.initialize",
        "handshake/cancellation#behavior-requirements",
        "Initialize is not cancelled.",
        SESSION_REVISIONS,
        ("memory", "pipe"),
    ),
    Requirement(
        "cancel.thread",
        "house",
        "A cancelled function in a thread is not waited for, and what it returns is thrown away.",
        NOTICED,
        ("memory", "pipe", "http"),
    ),
    Requirement(
        "cancel.question",
        "handshake/cancellation#cancellation-flow",
        "With a request the questions it has put to the client are cancelled.",
        HANDSHAKE,
        ("memory", "pipe", "sse", "http"),
    ),
    Requirement(
        "cancel.json-reply",
        "house",
        "A cancelled request whose client takes no streams is answered 204.",
        HANDSHAKE,
        HTTP_ONLY,
    ),
    Requirement(
        "cancel.disconnect",
        "streamable-http#cancellation",
        "In the stateless era the end of the connection is the cancellation of its request and of no other.",
        (STATELESS,),
        ALL_HTTP,
    ),
    Requirement(
        "cancel.notice-stateless-http",
        "cancellation#transport-specific-cancellation",
        "In the stateless era a cancellation posted over HTTP is accepted and means nothing.",
        (STATELESS,),
        HTTP_ONLY,
    ),
    Requirement(
        "cancel.not-by-disconnect",
        "handshake/transports#sending-messages-to-the-server",
        "In the handshake era a lost connection does not cancel anything.",
        SESSION_REVISIONS,
        HTTP_ONLY,
    ),
    Requirement(
        "cancel.draft",
        "house",
        "The draft dialect answers a cancelled request with -32000.",
        (DRAFT,),
        ("memory", "pipe", "sse", "http"),
    ),
    Requirement(
        "cancel.connection",
        "house",
        "With a duplex connection everything that runs for it ends.",
        ("2025-11-25", STATELESS),
        ("unix", "tcp"),
    ),
)

DIALECT = (
    Requirement("draft.echo", "house", "Who initializes with draft is answered with draft.", (DRAFT,)),
    Requirement("draft.progress", "house", "Progress is an object with the request id.", (DRAFT,)),
    Requirement("draft.dialog", "house", "Elicitation is a dialog that is created, opened and closed.", (DRAFT,)),
    Requirement("draft.codes", "house", "Resource, tool and prompt not found have separate codes.", (DRAFT,)),
    Requirement("draft.duplicate", "house", "A duplicate id is -32001.", (DRAFT,), ("memory", "pipe", "sse")),
    Requirement("draft.shutdown", "house", "Shutdown is answered null.", (DRAFT,)),
    Requirement(
        "draft.not-advertised", "house", "The dialect is never offered, only agreed to.", (DRAFT,), ("memory", "http")
    ),
)

PROCESS = (
    Requirement(
        "stdio.stdout",
        "stdio#receiving-messages",
        "Only messages are written to standard output, whatever tools, libraries and child processes print.",
        BOTH,
        ("stdio",),
    ),
    Requirement("stdio.stdin", "house", "Tools cannot read messages: their standard input is empty.", BOTH, ("stdio",)),
    Requirement(
        "stdio.ends",
        "stdio#shutdown",
        "A process ends promptly and well at the end of its input and on signals, whatever is at work or blocked.",
        (STATELESS,),
        ("stdio",),
    ),
    Requirement("stdio.flush", "house", "Calls that finish in time are answered before the end.", BOTH, ("stdio",)),
    Requirement("stdio.file", "house", "Messages may come from a file and go to one.", BOTH, ("stdio",)),
    Requirement(
        "stdio.eras",
        "versioning#compatibility-matrix",
        "One process serves both eras.",
        HANDSHAKE,
        ("stdio",),
    ),
    Requirement(
        "stdio.hooks", "house", "Signals, streams and logging are left as they were.", (STATELESS,), ("stdio",)
    ),
    Requirement(
        "socket.serves",
        "transports#custom-transports",
        "The framing works over Unix and TCP sockets, for many clients at once.",
        BOTH,
        ("unix", "tcp"),
    ),
    Requirement(
        "socket.half-close", "house", "When a client closes its side, the connection ends.", BOTH, ("unix", "tcp")
    ),
    Requirement(
        "socket.run", "house", "A process serves a socket until a signal comes.", (STATELESS,), ("unix", "tcp")
    ),
)

ROWS: tuple[Requirement, ...] = (
    *MESSAGES,
    *LIFECYCLE,
    *NEGOTIATION,
    *HTTP,
    *SESSION,
    *RESUMPTION,
    *SSE,
    *BATCHES,
    *CANCELLATION,
    *DIALECT,
    *PROCESS,
)
