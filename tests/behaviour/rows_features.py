"""Requirements on what a server offers: tools, resources, prompts, completion, logging, progress, lists and changes."""

from behaviour.manifest import PUBLISHED, SESSION_REVISIONS, Requirement
from support.driver import DRAFT, HANDSHAKE, STATELESS

CHEAP = ("memory", "pipe")  # for what no transport can change
BOTH = ("memory", "http")
STREAMED = ("memory", "pipe", "sse", "http")
SINCE_JUNE = ("2025-06-18", "2025-11-25", STATELESS)

ROWS: tuple[Requirement, ...] = (
    # Tools
    Requirement(
        "tools.declaration",
        "tools#tool",
        "A tool is listed with its name, description and input schema, and with title, annotations, icons, output "
        "schema and _meta as far as the revision knows them.",
        transports=CHEAP,
    ),
    Requirement(
        "items.custom-annotations",
        "house",
        "Annotations of a tool or a resource may have custom fields. They are listed unchanged.",
        revisions=("2025-03-26", "2025-11-25", STATELESS),
        transports=("memory",),
    ),
    Requirement(
        "tools.capability",
        "tools#capabilities",
        "A server with tools declares the capability. A server without tools answers the methods with -32601.",
        transports=BOTH,
    ),
    Requirement(
        "tools.empty-list",
        "tools#capabilities",
        "A server may offer tools and have none yet: the list is empty and the capability declared.",
        transports=("memory",),
    ),
    Requirement(
        "tools.no-parameters",
        "tools#tool-with-no-parameters",
        "The schema of a tool without parameters accepts only an empty object.",
        transports=("memory",),
    ),
    Requirement(
        "tools.verbatim-schema",
        "basic#json-schema-usage",
        "A schema from the author is published unchanged, with every keyword of its dialect, and "
        "arguments are checked against it.",
        transports=CHEAP,
    ),
    Requirement(
        "tools.dialect",
        "basic#schema-dialect",
        "A schema that names another dialect is checked by that dialect.",
        transports=("memory",),
    ),
    Requirement(
        "tools.bad-schema",
        "basic#schema-validation",
        "A schema that is invalid in its dialect, or has an external $ref, is refused at registration. "
        "Nothing is fetched.",
        transports=("memory",),
    ),
    Requirement(
        "tools.unknown",
        "tools#error-handling",
        "An unknown tool is an error -32602 (in the draft dialect -32003), not a result.",
        transports=STREAMED,
    ),
    Requirement(
        "tools.malformed",
        "tools#error-handling",
        "A call without a name, or with arguments that are not an object, is an error -32602.",
        transports=("memory", "http"),
    ),
    Requirement(
        "tools.bad-arguments",
        "tools#error-handling",
        "Arguments that do not fit give a result with isError whose text names every field that is wrong, and the "
        "function is not run.",
        transports=STREAMED,
    ),
    Requirement(
        "tools.arguments-omitted",
        "tools#calling-tools",
        "Arguments may be left out or null where none are required.",
        transports=CHEAP,
    ),
    Requirement(
        "tools.author-error",
        "tools#error-handling",
        "What an author raises as ToolError reaches the model as a result with isError and that text.",
        transports=STREAMED,
    ),
    Requirement(
        "tools.content",
        "tools#tool-result",
        "A tool returns text, images, audio, links and embedded resources, alone or mixed, in the author's order.",
        transports=CHEAP,
    ),
    Requirement(
        "tools.annotated-content",
        "tools#tool-result",
        "Content keeps its annotations and _meta, and a result its _meta. Versions before 2025-06-18 have no "
        "lastModified.",
        transports=CHEAP,
    ),
    Requirement(
        "tools.order",
        "tools#capabilities",
        "Tools, resources, templates and prompts are listed in the same order each time and on every connection.",
        transports=BOTH,
    ),
    Requirement(
        "tools.names",
        "tools#tool-names",
        "A name is unique within a server, and upper and lower case are different names.",
        transports=("memory",),
    ),
    # Structured content
    Requirement(
        "structured.value",
        "tools#structured-content",
        "A value with a type travels as structured content that fits the published schema, and as its JSON in a text.",
        revisions=SINCE_JUNE,
        transports=CHEAP,
    ),
    Requirement(
        "structured.any-json",
        "tools#structured-content",
        "In the newest version a server may send bare JSON values, including null, that fit the schema.",
        revisions=(STATELESS,),
        transports=CHEAP,
    ),
    Requirement(
        "structured.wrapped",
        "handshake/tools#structured-content",
        'By default, structured content is an object. Any other value is under "result", also in the schema.',
        revisions=(*SINCE_JUNE, DRAFT),
        transports=CHEAP,
    ),
    Requirement(
        "structured.text-only",
        "handshake/tools#tool-result",
        "Before 2025-06-18 a typed value is its JSON as text, and neither schema nor structured content is sent.",
        revisions=("2024-11-05", "2025-03-26"),
        transports=CHEAP,
    ),
    Requirement(
        "structured.conforms",
        "tools#output-schema",
        "A value that does not fit the published schema is an error of the server, never sent.",
        transports=("memory",),
    ),
    Requirement(
        "structured.author-schema",
        "tools#output-schema",
        "An output schema the author gives is published, and results are held against it.",
        revisions=SINCE_JUNE,
        transports=("memory",),
    ),
    # Older revisions
    Requirement(
        "downgrade.content",
        "handshake/tools#tool-result",
        "Content that a version does not define becomes text: links before 2025-06-18, audio before 2025-03-26.",
        revisions=HANDSHAKE,
        transports=CHEAP,
    ),
    Requirement(
        "downgrade.descriptions",
        "handshake/basic#icons",
        "Lists leave out titles before 2025-06-18, icons before 2025-11-25 and tool annotations before 2025-03-26.",
        transports=CHEAP,
    ),
    Requirement(
        "downgrade.identity",
        "house",
        "The server info has all fields that the version defines.",
        transports=CHEAP,
    ),
    Requirement(
        "downgrade.stamps",
        "basic#resulttype",
        "Every result of the newest version has a resultType and names the server. Handshake results have neither.",
        transports=STREAMED,
    ),
    # Resources
    Requirement(
        "resources.declaration",
        "resources#resource",
        "A resource is listed with its URI, name, description, type, size and annotations, and with title, icons and "
        "_meta as far as the revision knows them.",
        transports=CHEAP,
    ),
    Requirement(
        "resources.capability",
        "resources#capabilities",
        "A server with resources or templates declares the capability. One without answers the methods with -32601.",
        transports=BOTH,
    ),
    Requirement(
        "resources.text",
        "resources#text-content",
        "Text is read as text, with the resource's URI and type.",
        transports=STREAMED,
    ),
    Requirement("resources.blob", "resources#binary-content", "Bytes are read as a base64 blob.", transports=STREAMED),
    Requirement(
        "resources.several",
        "resources#reading-resources",
        "One read may give several contents, each with its own URI.",
        transports=CHEAP,
    ),
    Requirement(
        "resources.not-found",
        "resources#error-handling",
        "An unknown URI is an error that names it: -32602, or -32002 in handshake versions. It is never an empty list.",
        transports=STREAMED,
    ),
    Requirement(
        "resources.bad-uri",
        "resources#security-considerations",
        "A URI that is not a string, or is longer than the limit, is an error -32602.",
        transports=("memory",),
    ),
    Requirement(
        "resources.author-errors",
        "resources#error-handling",
        "A resource that fails is an error -32603. If its function raises ResourceNotFound, it is not found.",
        transports=("memory",),
    ),
    Requirement(
        "resources.own",
        "house",
        "A function can read resources of its server, through middleware, and also those of mounted servers.",
        transports=("memory",),
    ),
    Requirement(
        "resources.spellings",
        "house",
        "All spellings of a URI that RFC 3986 counts as equivalent read the same resource, the contents name the URI "
        "as the caller spelled it, and a template's variables are what the caller wrote.",
        transports=BOTH,
    ),
    Requirement(
        "templates.declaration",
        "resources#resource-templates",
        "Templates are in a separate list, with all fields of their definition, and are not listed as resources.",
        transports=CHEAP,
    ),
    Requirement(
        "templates.match",
        "resources#resource-templates",
        "A URI that fits a template is read with its variables, decoded and in the types of the function.",
        transports=CHEAP,
    ),
    Requirement(
        "templates.misfit",
        "resources#error-handling",
        "A URI whose variable is of another type, or empty, is not found.",
        transports=("memory",),
    ),
    Requirement(
        "templates.precedence",
        "house",
        "A fixed resource goes before a template, and a more specific template before a more general one.",
        transports=("memory",),
    ),
    Requirement(
        "templates.traversal",
        "resources#security-considerations",
        "No spelling of a URI makes a variable climb out of its place.",
        transports=("memory", "http"),
    ),
    # Prompts
    Requirement(
        "prompts.declaration",
        "prompts#prompt",
        "A prompt is listed with its arguments, which of them are required, and all it is described by.",
        transports=CHEAP,
    ),
    Requirement(
        "prompts.capability",
        "prompts#capabilities",
        "A server with prompts declares the capability. One without answers the methods with -32601.",
        transports=BOTH,
    ),
    Requirement(
        "prompts.get",
        "prompts#getting-a-prompt",
        "A prompt is filled in with its arguments, read as the types of the function, and gives messages with roles.",
        transports=STREAMED,
    ),
    Requirement(
        "prompts.content",
        "prompts#promptmessage",
        "Messages hold text, images, audio, links and embedded resources.",
        transports=CHEAP,
    ),
    Requirement(
        "prompts.unknown",
        "prompts#error-handling",
        "An unknown prompt is an error -32602 (in the draft dialect -32004).",
        transports=STREAMED,
    ),
    Requirement(
        "prompts.missing-argument",
        "prompts#error-handling",
        "A missing, unknown or unfit argument is an error -32602 that names it.",
        transports=STREAMED,
    ),
    # Completion
    Requirement(
        "completion.suggests",
        "completion#requesting-completions",
        "A function suggests values for an argument of a prompt or a variable of a template.",
        transports=STREAMED,
    ),
    Requirement(
        "completion.context",
        "completion#requesting-completions",
        "Arguments already settled reach the function.",
        revisions=SINCE_JUNE,
        transports=CHEAP,
    ),
    Requirement(
        "completion.choices",
        "house",
        "An argument annotated with choices is completed without a function, whatever the case of what was typed.",
        transports=CHEAP,
    ),
    Requirement(
        "completion.cap",
        "completion#completion-results",
        "A completion has at most a hundred values, with the total and whether there are more.",
        transports=CHEAP,
    ),
    Requirement(
        "completion.errors",
        "completion#error-handling",
        "An unknown prompt, template or argument, or a malformed reference, is an error -32602.",
        transports=("memory", "http"),
    ),
    Requirement(
        "completion.capability",
        "completion#capabilities",
        "Completions are declared if there are any and the version defines them. Otherwise the method is -32601.",
        transports=("memory",),
    ),
    # Logging
    Requirement(
        "logging.session-level",
        "handshake/logging#setting-log-level",
        "A session receives messages at or above its own level. Levels of other sessions have no effect.",
        revisions=SESSION_REVISIONS,
        transports=STREAMED,
    ),
    Requirement(
        "logging.request-level",
        "logging#per-request-log-level",
        "A request receives messages at or above its level, before its response and on its own stream.",
        revisions=(STATELESS,),
        transports=BOTH,
    ),
    Requirement(
        "logging.silence",
        "logging#per-request-log-level",
        "A request without a level receives no messages.",
        revisions=(STATELESS,),
        transports=BOTH,
    ),
    Requirement(
        "logging.bad-level",
        "logging#error-handling",
        "A level that does not exist is an error -32602.",
        transports=BOTH,
    ),
    Requirement(
        "logging.message",
        "logging#log-message-notifications",
        "A message carries its level, a logger and any JSON value.",
        transports=CHEAP,
    ),
    Requirement(
        "logging.capability", "logging#capabilities", "The capability to log is declared.", transports=("memory",)
    ),
    # Progress
    Requirement(
        "progress.reported",
        "progress#progress-flow",
        "Progress is reported under the caller's token, string or integer, before the response.",
        transports=STREAMED,
    ),
    Requirement(
        "progress.rises",
        "progress#progress-flow",
        "Each value is greater than the one before. Other values are not sent.",
        transports=CHEAP,
    ),
    Requirement(
        "progress.no-token",
        "progress#behavior-requirements",
        "Without a token, no progress is sent.",
        revisions=PUBLISHED,
        transports=STREAMED,
    ),
    Requirement(
        "progress.bad-token",
        "progress#progress-flow",
        "A token that is neither a string nor an integer is an error -32602.",
        revisions=PUBLISHED,
        transports=("memory",),
    ),
    Requirement(
        "progress.stops",
        "progress#implementation-notes",
        "After the response, nothing more is sent about the request, even if the function left tasks running.",
        transports=STREAMED,
    ),
    Requirement(
        "progress.own-stream",
        "streamable-http#receiving-messages",
        "Messages about a request are sent only on the stream of its response.",
        transports=("http",),
    ),
    Requirement(
        "progress.draft",
        "house",
        "In the draft dialect progress is reported by request id, token or not, in the dialect's shape.",
        revisions=(DRAFT,),
        transports=STREAMED,
    ),
    # Pagination
    Requirement(
        "pagination.complete",
        "pagination#pagination-flow",
        "Following the cursors yields every item once, in order. The last page has no cursor.",
        transports=CHEAP,
    ),
    Requirement(
        "pagination.one-page",
        "pagination#response-format",
        "Without a page size a list is one page.",
        transports=("memory",),
    ),
    Requirement(
        "pagination.invalid",
        "pagination#error-handling",
        "A cursor that was not issued for this list, has another type or is empty is an error -32602.",
        transports=("memory", "http"),
    ),
    Requirement(
        "pagination.stable",
        "pagination#implementation-guidelines",
        "Items added behind or before a cursor neither repeat nor hide others.",
        transports=("memory",),
    ),
    Requirement(
        "pagination.page-size",
        "house",
        "A page size below one is refused when the server is made.",
        transports=("memory",),
    ),
    # Caching
    Requirement(
        "caching.hints",
        "caching#cacheable-results",
        "Every complete result of a cacheable method has a lifetime and a scope. Other results do not.",
        revisions=(STATELESS,),
        transports=BOTH,
    ),
    Requirement(
        "caching.choice",
        "caching#choosing-a-cache-scope",
        "Hints are set for the server, for a method or for one resource. The most specific one applies.",
        revisions=(STATELESS,),
        transports=("memory",),
    ),
    Requirement(
        "caching.pages",
        "caching#interaction-with-pagination",
        "All pages of a list have the same scope.",
        revisions=(STATELESS,),
        transports=("memory",),
    ),
    Requirement(
        "caching.not-before",
        "handshake/resources#reading-resources",
        "Handshake revisions have no hints.",
        revisions=SESSION_REVISIONS,
        transports=CHEAP,
    ),
    Requirement(
        "caching.never-negative",
        "caching#time-to-live-ttl-field",
        "A negative time or an unknown scope is refused where it is written.",
        transports=("memory",),
    ),
    # Changes
    Requirement(
        "changes.registration",
        "tools#list-changed-notification",
        "Adding or removing a tool, resource, template or prompt notifies every session, and changes the list.",
        revisions=SESSION_REVISIONS,
        transports=STREAMED,
    ),
    Requirement(
        "changes.from-a-thread",
        "house",
        "Any thread can report a change.",
        transports=STREAMED,
    ),
    Requirement(
        "changes.ready-first",
        "handshake/lifecycle#initialization",
        "A session receives no change notifications before notifications/initialized.",
        revisions=SESSION_REVISIONS,
        transports=CHEAP,
    ),
    Requirement(
        "changes.updated",
        "handshake/resources#subscriptions",
        "A session receives updates only of the resources it subscribed to.",
        revisions=SESSION_REVISIONS,
        transports=STREAMED,
    ),
    Requirement(
        "changes.spellings",
        "house",
        "A subscription to any equivalent spelling of a URI receives updates, with the subscriber's spelling.",
        transports=STREAMED,
    ),
    Requirement(
        "changes.unsubscribed",
        "handshake/resources#subscriptions",
        "After unsubscribing there is silence.",
        revisions=SESSION_REVISIONS,
        transports=STREAMED,
    ),
    Requirement(
        "changes.collected",
        "house",
        "Changes that a session missed while it had no stream are sent when it opens one, each once.",
        revisions=SESSION_REVISIONS,
        transports=("http",),
    ),
)
