"""Many servers, one user who stays in charge. Each name is loaded when it is first used."""

from typing import TYPE_CHECKING

from dovetail.exports import create_lazy_loader

if TYPE_CHECKING:
    from dovetail.host.agent import Agent as Agent
    from dovetail.host.agent import Answered as Answered
    from dovetail.host.agent import Called as Called
    from dovetail.host.agent import Done as Done
    from dovetail.host.agent import Paused as Paused
    from dovetail.host.agent import Said as Said
    from dovetail.host.catalog import Catalog as Catalog
    from dovetail.host.catalog import Manifest as Manifest
    from dovetail.host.catalog import Offered as Offered
    from dovetail.host.conditions import arg as arg
    from dovetail.host.config import read_file as read_file
    from dovetail.host.config import read_known as read_known
    from dovetail.host.consent import Allow as Allow
    from dovetail.host.consent import Broker as Broker
    from dovetail.host.consent import CallbackConsent as CallbackConsent
    from dovetail.host.consent import ConsentRequest as ConsentRequest
    from dovetail.host.consent import Deny as Deny
    from dovetail.host.consent import DenyAll as DenyAll
    from dovetail.host.consent import Edit as Edit
    from dovetail.host.consent import Later as Later
    from dovetail.host.consent import TerminalConsent as TerminalConsent
    from dovetail.host.entries import Entry as Entry
    from dovetail.host.entries import Problem as Problem
    from dovetail.host.entries import Settings as Settings
    from dovetail.host.events import Event as Event
    from dovetail.host.grants import Grant as Grant
    from dovetail.host.grants import Grants as Grants
    from dovetail.host.grants import grant as grant
    from dovetail.host.host import Host as Host
    from dovetail.host.identity import identity_of as identity_of
    from dovetail.host.inbox import DurableConsent as DurableConsent
    from dovetail.host.inbox import Item as Item
    from dovetail.host.inbox import Waiting as Waiting
    from dovetail.host.journal import Journal as Journal
    from dovetail.host.journal import read_journal as read_journal
    from dovetail.host.member import Member as Member
    from dovetail.host.models.anthropic import AnthropicModel as AnthropicModel
    from dovetail.host.models.choosing import Variant as Variant
    from dovetail.host.models.model import Model as Model
    from dovetail.host.models.model import Reply as Reply
    from dovetail.host.models.model import Usage as Usage
    from dovetail.host.models.named import named as named
    from dovetail.host.models.openai import OpenAIModel as OpenAIModel
    from dovetail.host.models.scripted import Scripted as Scripted
    from dovetail.host.models.scripted import use as use
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
    from dovetail.host.spending import Spent as Spent
    from dovetail.host.terms import Terms as Terms

_HOMES = {
    "Agent": "dovetail.host.agent",
    "Allow": "dovetail.host.consent",
    "Answered": "dovetail.host.agent",
    "AnthropicModel": "dovetail.host.models.anthropic",
    "Broker": "dovetail.host.consent",
    "CallbackConsent": "dovetail.host.consent",
    "Called": "dovetail.host.agent",
    "Catalog": "dovetail.host.catalog",
    "ConsentRequest": "dovetail.host.consent",
    "Decision": "dovetail.host.policy",
    "Deny": "dovetail.host.consent",
    "DenyAll": "dovetail.host.consent",
    "Difference": "dovetail.host.pins",
    "Done": "dovetail.host.agent",
    "DurableConsent": "dovetail.host.inbox",
    "Edit": "dovetail.host.consent",
    "Entry": "dovetail.host.entries",
    "Event": "dovetail.host.events",
    "Grant": "dovetail.host.grants",
    "Grants": "dovetail.host.grants",
    "Host": "dovetail.host.host",
    "Item": "dovetail.host.inbox",
    "Journal": "dovetail.host.journal",
    "Later": "dovetail.host.consent",
    "Manifest": "dovetail.host.catalog",
    "Member": "dovetail.host.member",
    "Model": "dovetail.host.models.model",
    "Offered": "dovetail.host.catalog",
    "OpenAIModel": "dovetail.host.models.openai",
    "Paused": "dovetail.host.agent",
    "Pin": "dovetail.host.pinned",
    "Pins": "dovetail.host.pinned",
    "Policy": "dovetail.host.policy",
    "Problem": "dovetail.host.entries",
    "Question": "dovetail.host.policy",
    "Reply": "dovetail.host.models.model",
    "Rule": "dovetail.host.policy",
    "Said": "dovetail.host.agent",
    "Scripted": "dovetail.host.models.scripted",
    "Secrets": "dovetail.host.secrets",
    "Settings": "dovetail.host.entries",
    "Spent": "dovetail.host.spending",
    "TerminalConsent": "dovetail.host.consent",
    "Terms": "dovetail.host.terms",
    "Unresolved": "dovetail.host.secrets",
    "Usage": "dovetail.host.models.model",
    "Variant": "dovetail.host.models.choosing",
    "Waiting": "dovetail.host.inbox",
    "arg": "dovetail.host.conditions",
    "changes": "dovetail.host.pins",
    "describe": "dovetail.host.pins",
    "fingerprint": "dovetail.host.pins",
    "grant": "dovetail.host.grants",
    "identity_of": "dovetail.host.identity",
    "named": "dovetail.host.models.named",
    "read_file": "dovetail.host.config",
    "read_journal": "dovetail.host.journal",
    "read_known": "dovetail.host.config",
    "rule": "dovetail.host.policy",
    "use": "dovetail.host.models.scripted",
}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = create_lazy_loader(__name__, _HOMES)
