"""Many servers, one user who stays in charge: configuration, policy, pins, grants, catalog and journal."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.host.catalog import Catalog as Catalog
    from dovetail.host.catalog import Manifest as Manifest
    from dovetail.host.catalog import Offered as Offered
    from dovetail.host.conditions import arg as arg
    from dovetail.host.config import read_file as read_file
    from dovetail.host.config import read_known as read_known
    from dovetail.host.entries import Entry as Entry
    from dovetail.host.entries import Problem as Problem
    from dovetail.host.entries import Settings as Settings
    from dovetail.host.grants import Grant as Grant
    from dovetail.host.grants import Grants as Grants
    from dovetail.host.grants import grant as grant
    from dovetail.host.identity import identity_of as identity_of
    from dovetail.host.journal import Journal as Journal
    from dovetail.host.journal import read_journal as read_journal
    from dovetail.host.pinned import Pin as Pin
    from dovetail.host.pinned import Pins as Pins
    from dovetail.host.pins import Difference as Difference
    from dovetail.host.pins import changes as changes
    from dovetail.host.pins import describe as describe
    from dovetail.host.pins import fingerprint as fingerprint
    from dovetail.host.policy import Decision as Decision
    from dovetail.host.policy import Policy as Policy
    from dovetail.host.policy import Question as Question
    from dovetail.host.policy import Rule as Rule
    from dovetail.host.policy import rule as rule
    from dovetail.host.secrets import Secrets as Secrets
    from dovetail.host.secrets import Unresolved as Unresolved

_HOMES = {
    "Catalog": "dovetail.host.catalog",
    "Decision": "dovetail.host.policy",
    "Difference": "dovetail.host.pins",
    "Entry": "dovetail.host.entries",
    "Grant": "dovetail.host.grants",
    "Grants": "dovetail.host.grants",
    "Journal": "dovetail.host.journal",
    "Manifest": "dovetail.host.catalog",
    "Offered": "dovetail.host.catalog",
    "Pin": "dovetail.host.pinned",
    "Pins": "dovetail.host.pinned",
    "Policy": "dovetail.host.policy",
    "Problem": "dovetail.host.entries",
    "Question": "dovetail.host.policy",
    "Rule": "dovetail.host.policy",
    "Secrets": "dovetail.host.secrets",
    "Settings": "dovetail.host.entries",
    "Unresolved": "dovetail.host.secrets",
    "arg": "dovetail.host.conditions",
    "changes": "dovetail.host.pins",
    "describe": "dovetail.host.pins",
    "fingerprint": "dovetail.host.pins",
    "grant": "dovetail.host.grants",
    "identity_of": "dovetail.host.identity",
    "read_file": "dovetail.host.config",
    "read_journal": "dovetail.host.journal",
    "read_known": "dovetail.host.config",
    "rule": "dovetail.host.policy",
}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'dovetail.host' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
