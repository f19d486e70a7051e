"""Requirements on errors, on what surrounds a request, and on the life of a server."""

from behaviour.manifest import PUBLISHED, Requirement
from support.driver import DRAFT, STATELESS

BOTH = ("memory", "http")
STREAMED = ("memory", "pipe", "sse", "http")

ROWS: tuple[Requirement, ...] = (
    Requirement(
        "errors.masked",
        "house",
        "An unexpected exception is logged once with its traceback, and the caller sees only a reference.",
        transports=BOTH,
    ),
    Requirement(
        "errors.debug", "house", "In debug mode the caller also sees its type and text.", transports=("memory",)
    ),
    Requirement(
        "errors.contained",
        "house",
        "Nothing an author raises, of any kind, ends the server, the session or another call.",
        revisions=("2025-11-25", STATELESS),
        transports=STREAMED,
    ),
    Requirement(
        "errors.codes",
        "basic#error-codes",
        "The newest version uses the codes of JSON-RPC, the three codes of the specification, and codes "
        "outside the reserved range. It never uses a retired code.",
        revisions=(STATELESS,),
        transports=("memory", "http"),
    ),
    Requirement(
        "errors.codes-before",
        "handshake/resources#error-handling",
        "Handshake revisions use JSON-RPC's own codes and -32002 for resources.",
        revisions=PUBLISHED[:-1],
        transports=("memory",),
    ),
    Requirement(
        "errors.codes-draft",
        "house",
        "The draft dialect has separate codes for resources, tools and prompts that are not found.",
        revisions=(DRAFT,),
        transports=("memory",),
    ),
    Requirement(
        "errors.field",
        "house",
        "The data of an error -32602 names the path of the first invalid parameter.",
        transports=("memory", "pipe"),
    ),
    Requirement(
        "errors.unsayable",
        "house",
        "A result that has no JSON form is an error of the server.",
        revisions=("2025-11-25", STATELESS),
        transports=BOTH,
    ),
    Requirement(
        "errors.too-large",
        "house",
        "A tool's result beyond the limit is an error that names the limit.",
        revisions=("2025-11-25", STATELESS),
        transports=BOTH,
    ),
    Requirement(
        "errors.timeout",
        "house",
        "A function over its time limit is cancelled, its caller gets an error, and the session continues.",
        revisions=("2025-11-25", STATELESS),
        transports=BOTH,
    ),
    Requirement(
        "errors.busy",
        "house",
        "Beyond the limit of calls at work, a call is refused with 429 and a time after which to try again.",
        revisions=("2025-11-25", STATELESS),
        transports=BOTH,
    ),
    Requirement(
        "sync.threads",
        "house",
        "A plain function runs in a thread, with the context of its request, and blocks no other call.",
        revisions=("2025-11-25", STATELESS),
        transports=BOTH,
    ),
    Requirement(
        "sync.inline",
        "house",
        "A plain function declared inline runs on the loop itself.",
        revisions=(STATELESS,),
        transports=("memory",),
    ),
    Requirement(
        "middleware.order",
        "house",
        "Middleware wraps a request in the order of registration, the first outermost.",
        transports=("memory",),
    ),
    Requirement(
        "middleware.result",
        "house",
        "Middleware that returns nothing is an internal error, and named in the log.",
        transports=BOTH,
    ),
    Requirement(
        "middleware.short-circuit",
        "house",
        "Middleware may answer or refuse instead of going on.",
        transports=BOTH,
    ),
    Requirement(
        "middleware.sees",
        "house",
        "Middleware sees the exchange: method, parameters, caller, version and headers.",
        transports=STREAMED,
    ),
    Requirement(
        "middleware.everything",
        "house",
        "Middleware wraps every method that the server answers.",
        transports=("memory",),
    ),
    Requirement(
        "context.tells",
        "house",
        "The context tells a function who calls, in which revision, with which _meta, unknown keys included, and with "
        "which headers and principal where there are any.",
        transports=BOTH,
    ),
    Requirement(
        "lifespan.once",
        "house",
        "The lifespan is entered once, before the first request, and left at the end. Functions get its "
        "value from the context.",
        revisions=("2025-11-25", STATELESS),
        transports=STREAMED,
    ),
    Requirement(
        "lifespan.lazy",
        "house",
        "If the server is not started explicitly, the first request enters the lifespan.",
        revisions=("2025-11-25", STATELESS),
        transports=("memory",),
    ),
    Requirement(
        "lifespan.loops",
        "house",
        "Each event loop has its own lifespan: the first user there opens it, the last client closes it, and one that "
        "was closed is opened again.",
        revisions=("2025-11-25", STATELESS),
        transports=("memory",),
    ),
    Requirement(
        "lifespan.failure",
        "house",
        "A lifespan that fails at its start fails every request and is logged. A failure at its end is logged.",
        revisions=("2025-11-25", STATELESS),
        transports=("memory",),
    ),
)
