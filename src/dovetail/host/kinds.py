"""Kinds: everything that can happen in a host, by name, and what counts for each beside the rules.

What a user configured needs no yes of its own; what a server asks for needs one that says so.
"""

from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Final, Literal, TypeAlias, get_args

Kind: TypeAlias = Literal[
    "server.start",
    "tool.call",
    "tool.result",
    "resource.read",
    "prompt.get",
    "complete",
    "definition.changed",
    "sampling.request",
    "sampling.response",
    "elicit.form",
    "elicit.url",
    "roots.list",
    "login",
]

CONSENT_KINDS: Final[tuple[str, ...]] = get_args(Kind)

# What the user has said yes to by configuring it: only a rule that means it makes it a question.
CONFIGURED_KINDS: Final = frozenset({"server.start", "tool.result", "sampling.response", "roots.list", "complete"})
# What a server asks for: allowed only by a rule that names it.
SERVER_REQUESTED_KINDS: Final = frozenset({"sampling.request", "elicit.form", "elicit.url", "login"})
# What a person sees, whatever is allowed.
ALWAYS_ASK_KINDS: Final = frozenset({"elicit.form", "elicit.url", "definition.changed"})


def check_consent_kind(kind: str) -> str:
    """A kind, or ValueError."""
    if kind not in CONSENT_KINDS:
        raise _unknown_kind_error(kind)
    return kind


def check_kind_glob(glob: str) -> str:
    """A kind, or a glob of some; ValueError if nothing can ever match it."""
    if not any(fnmatchcase(kind, glob) for kind in CONSENT_KINDS):
        raise _unknown_kind_error(glob)
    return glob


def _unknown_kind_error(name: str) -> ValueError:
    matches = get_close_matches(name.replace("/", ".").replace("_", "."), CONSENT_KINDS, n=1)
    hint = f"; did you mean {matches[0]!r}?" if matches else ""
    return ValueError(f"there is no kind {name!r}{hint} There are {', '.join(CONSENT_KINDS)}")
