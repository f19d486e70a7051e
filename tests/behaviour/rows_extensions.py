"""Requirements on extensions of the protocol."""

from behaviour.manifest import ALL_HTTP, SESSION_REVISIONS, Requirement
from support.driver import STATELESS

ROWS = (
    Requirement(
        "ext.methods",
        "specification#extensions",
        "A server declares its extensions in its capabilities, and answers their methods in every version and over "
        "every transport.",
    ),
    Requirement(
        "ext.versions",
        "house",
        "A method of an extension exists only in its versions. A version without a method of an extension does not "
        "declare the extension.",
        transports=("memory", "http"),
    ),
    Requirement(
        "ext.unknown",
        "basic#error-codes",
        "A method of an extension that the server does not have is unknown.",
    ),
    Requirement(
        "ext.client-required",
        "basic#error-codes",
        "If a method requires that the client declares the extension, a request without the declaration is refused "
        "before the method runs, with the extension in the data of the error.",
    ),
    Requirement(
        "ext.each-request",
        "specification#extensions",
        "In versions without a handshake, a declaration holds for one request.",
        revisions=(STATELESS,),
    ),
    Requirement(
        "ext.name-header",
        "streamable-http#server-validation",
        "If a method of an extension has a name parameter, a Mcp-Name header must have the same value.",
        revisions=(STATELESS,),
        transports=ALL_HTTP,
    ),
    Requirement(
        "ext.server-notifications",
        "house",
        "A method of an extension can send notifications before its result.",
    ),
    Requirement(
        "ext.client-notifications",
        "house",
        "Notifications of the client reach the functions of an extension.",
        revisions=SESSION_REVISIONS,
    ),
    Requirement(
        "ext.like-any-request",
        "house",
        "Middleware, limits and deadlines apply to the methods of extensions.",
        transports=("memory", "http"),
    ),
)
