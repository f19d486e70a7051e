"""Many servers, one user who stays in charge. Each name is loaded when it is first used."""

from typing import TYPE_CHECKING

from dovetail.lazy import create_lazy_loader

if TYPE_CHECKING:
    from dovetail.host.audit_log import Journal as Journal
    from dovetail.host.audit_log import read_journal as read_journal
    from dovetail.host.catalog import Catalog as Catalog
    from dovetail.host.catalog import Manifest as Manifest
    from dovetail.host.catalog import Offered as Offered
    from dovetail.host.config.config_files import read_file as read_file
    from dovetail.host.config.config_files import read_known as read_known
    from dovetail.host.config.secret_lookup import Secrets as Secrets
    from dovetail.host.config.secret_lookup import Unresolved as Unresolved
    from dovetail.host.config.server_entry import Entry as Entry
    from dovetail.host.config.server_entry import Problem as Problem
    from dovetail.host.config.server_entry import Settings as Settings
    from dovetail.host.consent.consent import Allow as Allow
    from dovetail.host.consent.consent import Broker as Broker
    from dovetail.host.consent.consent import CallbackConsent as CallbackConsent
    from dovetail.host.consent.consent import ConsentRequest as ConsentRequest
    from dovetail.host.consent.consent import Deny as Deny
    from dovetail.host.consent.consent import DenyAll as DenyAll
    from dovetail.host.consent.consent import Edit as Edit
    from dovetail.host.consent.consent import Later as Later
    from dovetail.host.consent.grants import Grant as Grant
    from dovetail.host.consent.grants import Grants as Grants
    from dovetail.host.consent.grants import grant as grant
    from dovetail.host.consent.inbox import DurableConsent as DurableConsent
    from dovetail.host.consent.inbox import Item as Item
    from dovetail.host.consent.inbox import Waiting as Waiting
    from dovetail.host.consent.pins import Pin as Pin
    from dovetail.host.consent.pins import Pins as Pins
    from dovetail.host.consent.pins import fingerprint as fingerprint
    from dovetail.host.consent.terminal_consent import TerminalConsent as TerminalConsent
    from dovetail.host.events import Event as Event
    from dovetail.host.host import Host as Host
    from dovetail.host.managed_server import Member as Member
    from dovetail.host.managed_server import Terms as Terms
    from dovetail.host.managed_server import identity_of as identity_of
    from dovetail.host.policy.conditions import arg as arg
    from dovetail.host.policy.policy import Decision as Decision
    from dovetail.host.policy.policy import Policy as Policy
    from dovetail.host.policy.policy import Question as Question
    from dovetail.host.policy.policy import Rule as Rule
    from dovetail.host.policy.policy import rule as rule
    from dovetail.schemas.definition_changes import Difference as Difference
    from dovetail.schemas.definition_changes import changes as changes
    from dovetail.schemas.definition_changes import describe as describe

_HOMES = {
    "Allow": "dovetail.host.consent.consent",
    "Broker": "dovetail.host.consent.consent",
    "CallbackConsent": "dovetail.host.consent.consent",
    "Catalog": "dovetail.host.catalog",
    "ConsentRequest": "dovetail.host.consent.consent",
    "Decision": "dovetail.host.policy.policy",
    "Deny": "dovetail.host.consent.consent",
    "DenyAll": "dovetail.host.consent.consent",
    "Difference": "dovetail.schemas.definition_changes",
    "DurableConsent": "dovetail.host.consent.inbox",
    "Edit": "dovetail.host.consent.consent",
    "Entry": "dovetail.host.config.server_entry",
    "Event": "dovetail.host.events",
    "Grant": "dovetail.host.consent.grants",
    "Grants": "dovetail.host.consent.grants",
    "Host": "dovetail.host.host",
    "Item": "dovetail.host.consent.inbox",
    "Journal": "dovetail.host.audit_log",
    "Later": "dovetail.host.consent.consent",
    "Manifest": "dovetail.host.catalog",
    "Member": "dovetail.host.managed_server",
    "Offered": "dovetail.host.catalog",
    "Pin": "dovetail.host.consent.pins",
    "Pins": "dovetail.host.consent.pins",
    "Policy": "dovetail.host.policy.policy",
    "Problem": "dovetail.host.config.server_entry",
    "Question": "dovetail.host.policy.policy",
    "Rule": "dovetail.host.policy.policy",
    "Secrets": "dovetail.host.config.secret_lookup",
    "Settings": "dovetail.host.config.server_entry",
    "TerminalConsent": "dovetail.host.consent.terminal_consent",
    "Terms": "dovetail.host.managed_server",
    "Unresolved": "dovetail.host.config.secret_lookup",
    "Waiting": "dovetail.host.consent.inbox",
    "arg": "dovetail.host.policy.conditions",
    "changes": "dovetail.schemas.definition_changes",
    "describe": "dovetail.schemas.definition_changes",
    "fingerprint": "dovetail.host.consent.pins",
    "grant": "dovetail.host.consent.grants",
    "identity_of": "dovetail.host.managed_server",
    "read_file": "dovetail.host.config.config_files",
    "read_journal": "dovetail.host.audit_log",
    "read_known": "dovetail.host.config.config_files",
    "rule": "dovetail.host.policy.policy",
}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = create_lazy_loader(__name__, _HOMES)
