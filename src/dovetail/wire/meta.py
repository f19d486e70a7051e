"""The keys of `_meta`: reserved keys, and the rule for all keys.

Reads keys only, never values. Each check takes time linear in the length of the key.
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

# The key grammar, spec: basic#_meta. Possessive quantifiers give nothing back, so no key can make a match backtrack.
# Compiled by the first key that is looked at.
_LABEL = r"[A-Za-z](?:-*+[A-Za-z0-9])*+"
_NAME = r"(?:[A-Za-z0-9](?:[._-]*+[A-Za-z0-9])*+)?"
_PREFIX = rf"{_LABEL}(?:\.{_LABEL})*+"

# The second label decides, spec: basic#_meta; alone, the label is a prefix some peers use.
_RESERVED_LABELS = frozenset({"modelcontextprotocol", "mcp"})


def is_valid_key(name: str) -> bool:
    """Whether a key has the form the specification asks for: labels and a slash if it likes, then a name."""
    prefix, slash, tail = name.rpartition("/")
    return re.fullmatch(_NAME, tail) is not None and (not slash or re.fullmatch(_PREFIX, prefix) is not None)


def is_reserved(name: str) -> bool:
    """Whether a key's prefix belongs to the protocol, so that nobody else may coin keys under it."""
    prefix, slash, _ = name.partition("/")
    labels = prefix.split(".", 2)
    return bool(slash) and (prefix in _RESERVED_LABELS or (len(labels) > 1 and labels[1] in _RESERVED_LABELS))
