"""Requirements on asking the client, on what is remembered between rounds, and on subscriptions of the newest revision."""

from driver import DRAFT, MODERN

from behaviour.manifest import SESSIONS, Requirement

CHEAP = ("memory", "pipe")
STREAMED = ("memory", "pipe", "sse", "http")
FORMS = ("2025-06-18", "2025-11-25", MODERN, DRAFT)  # where users can be asked at all
ALONE = (MODERN,)

ROWS: tuple[Requirement, ...] = (
    Requirement(
        "asking.elicit",
        "elicitation#form-mode-elicitation-requests",
        "Tools, prompts and resources can have the user fill in a form, and get a value of the form's type back.",
        revisions=FORMS,
        transports=STREAMED,
    ),
    Requirement(
        "asking.form-schema",
        "elicitation#requested-schema",
        "A form speaks of flat fields only: texts with formats and lengths, numbers with bounds, booleans, single and "
        "several choices, titled or not, and defaults.",
        revisions=("2025-11-25", MODERN),
        transports=CHEAP,
    ),
    Requirement(
        "asking.form-schema-june",
        "handshake/elicitation#supported-schema-types",
        "In 2025-06-18 titled choices are enum with enumNames, and several choices at once cannot be asked for.",
        revisions=("2025-06-18",),
        transports=CHEAP,
    ),
    Requirement(
        "asking.declined",
        "elicitation#response-actions",
        "A user who declines or dismisses is told apart; an author who does not care ends with an error that says so.",
        revisions=FORMS,
        transports=CHEAP,
    ),
    Requirement(
        "asking.invalid-answer",
        "elicitation#form-mode-security",
        "An answer that does not fit the form, or is none, is an error -32602 and never reaches the author.",
        revisions=FORMS,
        transports=CHEAP,
    ),
    Requirement(
        "asking.client-error",
        "elicitation#error-handling",
        "A client that answers with an error fails the question, not the session.",
        revisions=SESSIONS,
        transports=STREAMED,
    ),
    Requirement(
        "asking.url",
        "elicitation#url-mode-elicitation-requests",
        "A user can be sent to a page; where the revision wants it, the question has an id of its own.",
        revisions=("2025-11-25", MODERN),
        transports=CHEAP,
    ),
    Requirement(
        "asking.sample",
        "sampling#creating-messages",
        "Tools, prompts and resources can have the client's model complete a message, with all its options.",
        transports=STREAMED,
    ),
    Requirement(
        "asking.sample-tools",
        "sampling#sampling-with-tools",
        "A model can be given tools, and the conversation about their use goes on.",
        revisions=("2025-11-25", MODERN),
        transports=CHEAP,
    ),
    Requirement(
        "asking.sample-blocks",
        "handshake/sampling#messages",
        "Before 2025-11-25 a message holds one block: several become several messages.",
        revisions=("2024-11-05", "2025-03-26", "2025-06-18"),
        transports=("memory",),
    ),
    Requirement(
        "asking.roots",
        "roots#listing-roots",
        "The directories a client lets the server work in can be asked for.",
        transports=STREAMED,
    ),
    Requirement(
        "asking.together",
        "mrtr#inputrequests",
        "Several questions asked at once go out together, in one round, and come back under their names.",
        revisions=FORMS,
        transports=STREAMED,
    ),
    Requirement(
        "asking.side-by-side",
        "house",
        "Questions may be asked from tasks of the author's own that run side by side.",
        revisions=FORMS,
        transports=("memory",),
    ),
    Requirement(
        "asking.one-fails",
        "house",
        "When one of several questions fails, the others are withdrawn.",
        revisions=("2025-06-18", "2025-11-25", DRAFT),
        transports=STREAMED,
    ),
    Requirement(
        "asking.rounds",
        "mrtr#basic-workflow",
        "A function may ask again and again, depending on earlier answers; nothing is asked twice.",
        revisions=FORMS,
        transports=STREAMED,
    ),
    Requirement(
        "asking.once",
        "house",
        "A step marked to run once runs once, however many rounds the call takes, and its value is the same in all.",
        revisions=FORMS,
        transports=CHEAP,
    ),
    Requirement(
        "asking.explicit",
        "mrtr#inputrequiredresult",
        "An author can drive the rounds: say what is needed and what to be told again, in every era.",
        revisions=FORMS,
        transports=STREAMED,
    ),
    Requirement(
        "asking.state-only",
        "mrtr#server-requirements-basic-workflow",
        "A round may ask for nothing but to be called again with its state.",
        revisions=FORMS,
        transports=CHEAP,
    ),
    Requirement(
        "asking.missing-capability",
        "basic#_meta",
        "What the client did not declare is not asked: the call is refused with -32021 (in handshake revisions -32602) "
        "naming all that is missing, over HTTP with 400 in the newest.",
        transports=STREAMED,
    ),
    Requirement(
        "asking.sub-capabilities",
        "elicitation#capabilities",
        "Modes of elicitation and tools in sampling need declarations of their own.",
        revisions=("2025-11-25", MODERN),
        transports=("memory",),
    ),
    Requirement(
        "asking.not-yet",
        "handshake/lifecycle#capability-negotiation",
        "What a revision has no method for is not asked, whatever the client declares.",
        revisions=("2024-11-05", "2025-03-26", "2025-06-18"),
        transports=("memory",),
    ),
    Requirement(
        "asking.no-way",
        "house",
        "Where a handshake client cannot be asked, because its answers are plain JSON or it has no session, the call "
        "is refused; it never gets a result of the newest revision.",
        revisions=("2025-06-18", "2025-11-25"),
        transports=("http", "http-stateless"),
    ),
    Requirement(
        "asking.partial",
        "mrtr#error-handling",
        "Answers that are missing are asked for again; answers nobody asked for are ignored.",
        revisions=ALONE,
        transports=CHEAP,
    ),
    Requirement(
        "asking.malformed",
        "mrtr#error-handling",
        "Answers that are no object, or a state that is no string, are an error -32602.",
        revisions=ALONE,
        transports=("memory", "http"),
    ),
    Requirement(
        "asking.no-requests",
        "mrtr#multi-round-trip-requests",
        "A server of the newest revision asks in its result and never sends a request.",
        revisions=ALONE,
        transports=("memory", "http"),
    ),
    Requirement(
        "asking.own-time",
        "house",
        "The time a user takes to answer does not count as the tool's.",
        revisions=("2025-11-25",),
        transports=("memory",),
    ),
    Requirement(
        "asking.withdrawn",
        "handshake/cancellation#cancellation-flow",
        "A question whose call was cancelled is withdrawn.",
        revisions=("2025-06-18", "2025-11-25"),
        transports=STREAMED,
    ),
    Requirement(
        "asking.changed-mind",
        "house",
        "A function that does not ask the same in each round is found out in debug mode, and otherwise never given an "
        "answer to another question.",
        revisions=ALONE,
        transports=("memory",),
    ),
    # State
    Requirement(
        "state.sealed",
        "mrtr#security-considerations",
        "What the client carries between rounds tells it nothing and differs each time.",
        revisions=ALONE,
        transports=("memory",),
    ),
    Requirement(
        "state.refused",
        "mrtr#server-requirements-basic-workflow",
        "A state that was changed, cut, made up or is past its time is refused with -32602, always the same.",
        revisions=ALONE,
        transports=("memory", "http"),
    ),
    Requirement(
        "state.bound",
        "mrtr#server-requirements-basic-workflow",
        "A state is good only for the same method, name and arguments, and for nothing else about the request.",
        revisions=ALONE,
        transports=("memory",),
    ),
    Requirement(
        "state.principal",
        "mrtr#server-requirements-basic-workflow",
        "A state is good only for the principal it was given to.",
        revisions=ALONE,
        transports=("http",),
    ),
    Requirement(
        "state.rotation",
        "house",
        "A server opens what an older secret of its list sealed, and seals with the first.",
        revisions=ALONE,
        transports=("memory",),
    ),
    Requirement(
        "state.anywhere",
        "basic#statelessness",
        "Another process with the same secret can finish what one began; one with another secret cannot.",
        revisions=ALONE,
        transports=("memory", "http"),
    ),
    Requirement(
        "state.weak-secret", "house", "A secret too short to be one is refused.", revisions=ALONE, transports=("memory",)
    ),
    # Listening
    Requirement(
        "listen.acknowledged",
        "subscriptions#acknowledgment",
        "The first message of a subscription acknowledges what of its filter will be honoured.",
        revisions=ALONE,
        transports=STREAMED,
    ),
    Requirement(
        "listen.subscription-id",
        "subscriptions#receiving-notifications",
        "Everything said on a subscription carries its id, which is the id of the request, in its own type.",
        revisions=ALONE,
        transports=CHEAP,
    ),
    Requirement(
        "listen.filter",
        "subscriptions#opening-a-stream",
        "A subscription hears what it asked for and nothing else, no progress and no log messages either.",
        revisions=ALONE,
        transports=STREAMED,
    ),
    Requirement(
        "listen.several",
        "subscriptions#multiple-concurrent-subscriptions",
        "Several subscriptions live side by side, each with its own filter.",
        revisions=ALONE,
        transports=STREAMED,
    ),
    Requirement(
        "listen.graceful",
        "subscriptions#graceful-closure",
        "A server that stops ends each subscription with a result that names it.",
        revisions=ALONE,
        transports=STREAMED,
    ),
    Requirement(
        "listen.cancelled",
        "subscriptions#cancellation",
        "A subscription ends without an answer when the client cancels it or drops its connection.",
        revisions=ALONE,
        transports=STREAMED,
    ),
    Requirement(
        "listen.not-offered",
        "subscriptions#acknowledgment",
        "A server that has nothing to tell does not have the method; malformed filters are -32602.",
        revisions=ALONE,
        transports=("memory", "http"),
    ),
    Requirement(
        "listen.silent-without",
        "subscriptions#opening-a-stream",
        "Who did not subscribe hears of no change.",
        revisions=ALONE,
        transports=CHEAP,
    ),
    # Mirrored headers
    Requirement(
        "headers.params",
        "streamable-http#server-behavior-for-custom-headers",
        "An argument marked to be mirrored must stand in its header too, as text, integer or boolean; anything else is "
        "-32020 with 400 and the tool is not run.",
        revisions=ALONE,
        transports=("http",),
    ),
    Requirement(
        "headers.name",
        "streamable-http#standard-request-headers",
        "The name or URI asked for stands in Mcp-Name, in base64 where it must; anything else is -32020 with 400.",
        revisions=ALONE,
        transports=("http",),
    ),
    Requirement(
        "headers.encoding",
        "streamable-http#value-encoding",
        "Encoded values are decoded before they are compared, and what is not exactly an encoding is refused.",
        revisions=ALONE,
        transports=("http",),
    ),
    Requirement(
        "headers.elsewhere",
        "streamable-http#custom-headers-from-tool-parameters",
        "Where there are no headers, or the revision does not know them, arguments are not mirrored.",
        transports=STREAMED,
    ),
    Requirement(
        "headers.registration",
        "streamable-http#schema-extension",
        "A mark that breaks the rules is refused when the tool is registered.",
        revisions=ALONE,
        transports=("http",),
    ),
)
