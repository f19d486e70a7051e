"""The tools that a skill asks for in its front matter, and the user's permission to call them.

The server sets the field `allowed-tools`. It has no effect until the user allows these tools for this skill. If the
skill or a tool changes, the user is asked again. Rules that deny a call still apply.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from dovetail.errors import PolicyError
from dovetail.host.authorization import ToolRecord
from dovetail.host.catalog_item import CatalogEntry
from dovetail.host.consent.grants import peek_grant
from dovetail.host.consent.pins import fingerprint
from dovetail.host.host_skills import ALLOWED_TOOLS, HostSkill
from dovetail.host.parts import HostParts
from dovetail.host.policy.policy import PolicyRequest
from dovetail.wire.base import Struct
from dovetail.wire.codec import encode_canonical

_KIND: Final = "skill.tools"
_MAX_TOOLS: Final = 50  # a skill with more tools gets no permissions
_SEPARATORS: Final = re.compile(r"[\s,]+")


class _Permission(Struct, frozen=True):
    request: PolicyRequest
    fingerprint: str
    skill_fingerprint: str
    tools: frozenset[tuple[str, str, str, str]]
    is_stored: bool  # True if the permission comes from a grant, which the user may revoke


class SkillToolPermissions:
    """The tools that the user has allowed. Each permission belongs to a skill that the agent has loaded."""

    def __init__(self, parts: HostParts) -> None:
        self._authorizer = parts.authorizer
        self._servers = parts.servers
        self._permissions: dict[tuple[str, str], _Permission] = {}
        self._declined: set[str] = set()

    @property
    def is_empty(self) -> bool:
        """Return whether the user has allowed no tools."""
        return not self._permissions

    def start_run(self, skills: Iterable[HostSkill]) -> None:
        """Remove the permissions of the last run. Keep a permission if it is stored and its skill has not changed."""
        fingerprints = {(skill.server, skill.uri): skill.fingerprint for skill in skills}
        self._permissions = {
            key: permission
            for key, permission in self._permissions.items()
            if permission.is_stored and permission.skill_fingerprint == fingerprints.get(key)
        }
        self._declined.clear()

    def withdraw(self, skill: HostSkill) -> None:
        """Remove the permission that belongs to a skill."""
        self._permissions.pop((skill.server, skill.uri), None)

    async def request(self, skill: HostSkill, catalog: Iterable[CatalogEntry], *, wait: bool) -> None:
        """Ask the user to allow the tools that a loaded skill names, unless a grant already allows these tools.

        A dynamic skill gets no tools, because its content could change after the answer.
        """
        supervisor = self._servers.find(skill.server) if skill.server else None
        if supervisor is None or skill.is_dynamic:
            return
        tools = self._find_tools(skill, catalog)
        if not tools:
            return
        request = self._authorizer.create_request(supervisor, _KIND, skill.uri, None)
        tool_keys = frozenset(self._create_key(entry) for entry in tools)
        current = _compute_fingerprint(skill, tool_keys)
        known = self._permissions.get((skill.server, skill.uri))
        if current in self._declined or (known is not None and known.fingerprint == current and self._is_valid(known)):
            return
        try:
            authorization = await self._authorizer.authorize_skill_tools(
                request, current, _describe(skill, tools), wait=wait
            )
        except PolicyError:
            self._declined.add(current)
            self.withdraw(skill)
            return
        self._permissions[skill.server, skill.uri] = _Permission(
            request, current, skill.fingerprint, tool_keys, is_stored=not authorization.is_once
        )

    def find_reason(self, record: ToolRecord) -> str:
        """Return why the user need not be asked about a tool. Return "" if the user must be asked."""
        request = record.request
        key = (request.server, request.server_identity, request.tool, record.fingerprint)
        for (server, uri), permission in self._permissions.items():
            if key in permission.tools and self._is_valid(permission):
                return f"the user allowed this tool with the skill {uri} of {server}"
        return ""

    def _is_valid(self, permission: _Permission) -> bool:
        """Return whether the permission is still valid. It is not if the user has revoked its grant."""
        grants = self._authorizer.grants
        return not permission.is_stored or peek_grant(grants, permission.request, permission.fingerprint) is not None

    def _find_tools(self, skill: HostSkill, catalog: Iterable[CatalogEntry]) -> list[CatalogEntry]:
        """Return the tools that a skill names and that the policy asks about.

        A name without a server means a tool of the skill's server. Names cannot contain patterns.
        """
        names = parse_allowed_tools(skill.front_matter.get(ALLOWED_TOOLS))
        if not names or len(names) > _MAX_TOOLS:
            return []
        entries = [*catalog]
        by_name = {entry.full_name: entry for entry in entries}
        by_name |= {entry.name: entry for entry in entries if entry.server == skill.server}
        tools = {by_name[name].full_name: by_name[name] for name in names if name in by_name}
        return [entry for entry in tools.values() if self._is_asked(entry)]

    def _is_asked(self, entry: CatalogEntry) -> bool:
        supervisor = self._servers.find(entry.server)
        if supervisor is None:
            return False
        request = self._authorizer.create_request(supervisor, "tool.call", entry.name, None, entry.definition)
        return self._authorizer.policy.decide(request).action == "ask"

    def _create_key(self, entry: CatalogEntry) -> tuple[str, str, str, str]:
        supervisor = self._servers.get(entry.server)
        return entry.server, supervisor.identity, entry.name, fingerprint(entry.definition)


def parse_allowed_tools(value: Any) -> list[str]:
    """Return the names in the field `allowed-tools`, which is a text or a list of texts."""
    parts: list[Any] = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    names = (name for part in parts if isinstance(part, str) for name in _SEPARATORS.split(part))
    return [*dict.fromkeys(name for name in names if name)]


def _compute_fingerprint(skill: HostSkill, tools: Iterable[tuple[str, str, str, str]]) -> str:
    """Return a digest of everything that the user allows: the skill with its files, and the tools."""
    return hashlib.sha256(encode_canonical([skill.fingerprint, *map(list, sorted(tools))])).hexdigest()


def _describe(skill: HostSkill, tools: Sequence[CatalogEntry]) -> dict[str, Any]:
    own = [entry.name for entry in tools if entry.server == skill.server]
    others = [entry.full_name for entry in tools if entry.server != skill.server]
    details: dict[str, Any] = {"skill": skill.name, "description": skill.description}
    if own:
        details[f"tools of {skill.server}"] = own
    if others:
        details["tools of other servers"] = others
    return details
