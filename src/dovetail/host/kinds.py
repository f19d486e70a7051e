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

KINDS: Final[tuple[str, ...]] = get_args(Kind)

# What the user has said yes to by configuring it: only a rule that means it makes it a question.
GIVEN: Final = frozenset({"server.start", "tool.result", "sampling.response", "roots.list", "complete"})
# What a server asks for: allowed only by a rule that names it.
DEMANDED: Final = frozenset({"sampling.request", "elicit.form", "elicit.url", "login"})
# What a person sees, whatever is allowed.
PERSONAL: Final = frozenset({"elicit.form", "elicit.url", "definition.changed"})


def read_kind(given: str) -> str:
    """A kind, or ValueError."""
    if given not in KINDS:
        raise _unknown(given)
    return given


def read_kinds(given: str) -> str:
    """A kind, or a glob of some; ValueError if nothing can ever match it."""
    if not any(fnmatchcase(kind, given) for kind in KINDS):
        raise _unknown(given)
    return given


def _unknown(given: str) -> ValueError:
    near = get_close_matches(given.replace("/", ".").replace("_", "."), KINDS, n=1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return ValueError(f"there is no kind {given!r}{meant} There are {', '.join(KINDS)}")
