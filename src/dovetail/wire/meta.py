"""Check which keys of `_meta` are valid, and which are reserved.

Each check takes time linear in the length of the key.
"""

import re
from typing import Final

PROTOCOL_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"
SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
PROGRESS_TOKEN: Final = "progressToken"
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
BAGGAGE: Final = "baggage"

# The syntax of a `_meta` key. Possessive quantifiers prevent backtracking. spec: basic#_meta
# The patterns are compiled on first use.
_LABEL = r"[A-Za-z](?:-*+[A-Za-z0-9])*+"
_NAME = r"(?:[A-Za-z0-9](?:[._-]*+[A-Za-z0-9])*+)?"
_PREFIX = rf"{_LABEL}(?:\.{_LABEL})*+"

# A prefix such as "com.mcp" is reserved if its second label is in this set. spec: basic#_meta
# A prefix with only one label is reserved if the label is in this set.
_RESERVED_LABELS = frozenset({"modelcontextprotocol", "mcp"})


def is_valid_key(name: str) -> bool:
    """Return whether a `_meta` key is valid. A key has the form `name` or `prefix/name`."""
    prefix, slash, tail = name.rpartition("/")
    return re.fullmatch(_NAME, tail) is not None and (not slash or re.fullmatch(_PREFIX, prefix) is not None)


def is_reserved(name: str) -> bool:
    """Return whether the prefix of a `_meta` key is reserved for the protocol."""
    prefix, slash, _ = name.partition("/")
    labels = prefix.split(".", 2)
    return bool(slash) and (prefix in _RESERVED_LABELS or (len(labels) > 1 and labels[1] in _RESERVED_LABELS))
