"""Connect one user to many servers, with a policy, consent, grants, pins and an audit log. Names load on first use."""

from typing import TYPE_CHECKING

from dovetail.lazy import create_lazy_loader as _create_lazy_loader

if TYPE_CHECKING:
    from dovetail.host.audit_log import AuditLog as AuditLog
    from dovetail.host.audit_log import read_audit_log as read_audit_log
    from dovetail.host.catalog import Catalog as Catalog
    from dovetail.host.catalog_item import CatalogEntry as CatalogEntry
    from dovetail.host.catalog_item import ServerDefinitions as ServerDefinitions
    from dovetail.host.config.config_files import discover_configs as discover_configs
    from dovetail.host.config.config_files import load_config as load_config
    from dovetail.host.config.secret_lookup import SecretNotFound as SecretNotFound
    from dovetail.host.config.secret_lookup import SecretResolver as SecretResolver
    from dovetail.host.config.server_entry import ConfigProblem as ConfigProblem
    from dovetail.host.config.server_entry import ServerConfig as ServerConfig
    from dovetail.host.consent.consent import Allow as Allow
    from dovetail.host.consent.consent import AllowWithChanges as AllowWithChanges
    from dovetail.host.consent.consent import AnswerLater as AnswerLater
    from dovetail.host.consent.consent import ConsentAnswer as ConsentAnswer
    from dovetail.host.consent.consent import ConsentHandler as ConsentHandler
    from dovetail.host.consent.consent import ConsentRequest as ConsentRequest
    from dovetail.host.consent.consent import Deny as Deny
    from dovetail.host.consent.consent import DenyAllConsent as DenyAllConsent
    from dovetail.host.consent.definition_changes import DefinitionChange as DefinitionChange
    from dovetail.host.consent.definition_changes import diff_definitions as diff_definitions
    from dovetail.host.consent.definition_changes import format_changes as format_changes
    from dovetail.host.consent.grants import Grant as Grant
    from dovetail.host.consent.grants import GrantStore as GrantStore
    from dovetail.host.consent.inbox import CallAwaitingConsent as CallAwaitingConsent
    from dovetail.host.consent.inbox import FileConsent as FileConsent
    from dovetail.host.consent.inbox import PendingConsent as PendingConsent
    from dovetail.host.consent.pins import Pin as Pin
    from dovetail.host.consent.pins import PinComparison as PinComparison
    from dovetail.host.consent.pins import PinStore as PinStore
    from dovetail.host.consent.pins import fingerprint as fingerprint
    from dovetail.host.consent.terminal_consent import TerminalConsent as TerminalConsent
    from dovetail.host.events import EventKind as EventKind
    from dovetail.host.events import HostEvent as HostEvent
    from dovetail.host.host import Host as Host
    from dovetail.host.host_skills import HostSkill as HostSkill
    from dovetail.host.host_skills import SkillContent as SkillContent
    from dovetail.host.managed_server import ManagedServer as ManagedServer
    from dovetail.host.policy.conditions import Condition as Condition
    from dovetail.host.policy.conditions import argument as argument
    from dovetail.host.policy.policy import Decision as Decision
    from dovetail.host.policy.policy import Policy as Policy
    from dovetail.host.policy.policy import rule as rule
    from dovetail.host.policy.quotas import ToolLimits as ToolLimits
    from dovetail.host.policy.rules import ConsentKind as ConsentKind
    from dovetail.host.policy.rules import PolicyRequest as PolicyRequest
    from dovetail.host.policy.rules import Rule as Rule
    from dovetail.host.server_settings import ServerSettings as ServerSettings
    from dovetail.host.server_settings import compute_server_id as compute_server_id

_MODULE_BY_NAME = {
    "Allow": "dovetail.host.consent.consent",
    "AuditLog": "dovetail.host.audit_log",
    "Catalog": "dovetail.host.catalog",
    "CatalogEntry": "dovetail.host.catalog_item",
    "Condition": "dovetail.host.policy.conditions",
    "ConfigProblem": "dovetail.host.config.server_entry",
    "ConsentAnswer": "dovetail.host.consent.consent",
    "ConsentHandler": "dovetail.host.consent.consent",
    "ConsentKind": "dovetail.host.policy.rules",
    "ConsentRequest": "dovetail.host.consent.consent",
    "Decision": "dovetail.host.policy.policy",
    "AnswerLater": "dovetail.host.consent.consent",
    "DefinitionChange": "dovetail.host.consent.definition_changes",
    "Deny": "dovetail.host.consent.consent",
    "DenyAllConsent": "dovetail.host.consent.consent",
    "FileConsent": "dovetail.host.consent.inbox",
    "AllowWithChanges": "dovetail.host.consent.consent",
    "EventKind": "dovetail.host.events",
    "Grant": "dovetail.host.consent.grants",
    "GrantStore": "dovetail.host.consent.grants",
    "Host": "dovetail.host.host",
    "HostEvent": "dovetail.host.events",
    "HostSkill": "dovetail.host.host_skills",
    "ManagedServer": "dovetail.host.managed_server",
    "ServerDefinitions": "dovetail.host.catalog_item",
    "CallAwaitingConsent": "dovetail.host.consent.inbox",
    "PendingConsent": "dovetail.host.consent.inbox",
    "Pin": "dovetail.host.consent.pins",
    "PinComparison": "dovetail.host.consent.pins",
    "PinStore": "dovetail.host.consent.pins",
    "Policy": "dovetail.host.policy.policy",
    "PolicyRequest": "dovetail.host.policy.rules",
    "Rule": "dovetail.host.policy.rules",
    "SecretNotFound": "dovetail.host.config.secret_lookup",
    "SecretResolver": "dovetail.host.config.secret_lookup",
    "ServerConfig": "dovetail.host.config.server_entry",
    "ServerSettings": "dovetail.host.server_settings",
    "SkillContent": "dovetail.host.host_skills",
    "TerminalConsent": "dovetail.host.consent.terminal_consent",
    "ToolLimits": "dovetail.host.policy.quotas",
    "argument": "dovetail.host.policy.conditions",
    "diff_definitions": "dovetail.host.consent.definition_changes",
    "discover_configs": "dovetail.host.config.config_files",
    "fingerprint": "dovetail.host.consent.pins",
    "format_changes": "dovetail.host.consent.definition_changes",
    "compute_server_id": "dovetail.host.server_settings",
    "load_config": "dovetail.host.config.config_files",
    "read_audit_log": "dovetail.host.audit_log",
    "rule": "dovetail.host.policy.policy",
}

__all__ = [*_MODULE_BY_NAME]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = _create_lazy_loader(__name__, _MODULE_BY_NAME)
