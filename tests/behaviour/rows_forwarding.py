"""Requirements on servers that forward requests: mounts, proxies and gateways."""

from behaviour.manifest import PUBLISHED, SESSION_REVISIONS, Requirement
from support.driver import STATELESS

ROWS = (
    Requirement(
        "forward.headers",
        "streamable-http#server-validation",
        "A server that forwards a call checks the headers that repeat its arguments, as a server with the tool does.",
        revisions=(STATELESS,),
        transports=("http",),
    ),
    Requirement(
        "forward.schema",
        "house",
        "A forwarded result has all members that the caller's version requires, whatever the version of the server.",
        revisions=PUBLISHED,
        transports=("memory",),
    ),
    Requirement(
        "forward.hints",
        "caching#choosing-a-cache-scope",
        "A forwarded result without valid cache hints gets hints of the forwarding server. The scope is private.",
        revisions=(STATELESS,),
        transports=("memory",),
    ),
    Requirement(
        "forward.meta",
        "house",
        "A client of the handshake era receives no `_meta` keys that only stateless versions define.",
        revisions=SESSION_REVISIONS,
        transports=("memory",),
    ),
)
