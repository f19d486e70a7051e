"""The skills of all servers behind a gateway.

Each URI of a skill has the same prefix as the other resources of its server. Callers read the files as resources, so
the policy and the consent of the caller's user apply to each file. The caller verifies the digests.
"""

import asyncio
from collections.abc import Callable, Sequence

from dovetail.client.client import Client
from dovetail.error_context import clip
from dovetail.errors import InternalError, InvalidParams, MCPError, NotFound, NotSupported, PolicyError
from dovetail.host.execution import find_denial
from dovetail.host.gateway.upstream import Upstream
from dovetail.host.parts import HostParts
from dovetail.host.supervisor import ServerSupervisor
from dovetail.log import log
from dovetail.mounts.name_map import NameMap
from dovetail.protocol.exchange import Exchange, make_uri_length_error
from dovetail.protocol.limits import ServerLimits
from dovetail.skills.remote_skill import Skill
from dovetail.skills.skill import (
    DYNAMIC,
    IDENTIFIER,
    GetSkillParams,
    GetSkillResult,
    ListSkillsParams,
    ListSkillsResult,
    ReadDirectoryParams,
    ReadDirectoryResult,
    SkillEntry,
)
from dovetail.skills.skill_methods import SkillMethods
from dovetail.skills.skills_extension import MAX_SKILLS_PER_PAGE, take_page
from dovetail.wire.base import replace

ListMounts = Callable[[], Sequence[tuple[Upstream, NameMap]]]


class GatewaySkills:
    """Serves the skills of all servers behind a gateway."""

    def __init__(self, parts: HostParts, list_mounts: ListMounts, limits: ServerLimits) -> None:
        self._methods = SkillMethods(self)
        self.extension = self._methods.extension
        self._servers = parts.servers
        self._authorizer = parts.authorizer
        self._ready_timeout = parts.catalog.ready_timeout
        self._list_mounts = list_mounts
        self._limits = limits

    async def list_skills(self, params: ListSkillsParams, exchange: Exchange) -> ListSkillsResult:
        mounts = self._list_mounts()
        lists = await asyncio.gather(*(self._list_mounted(upstream, names, exchange) for upstream, names in mounts))
        entries = {entry.uri: entry for mounted in lists for entry in mounted}
        page, next_cursor = take_page(
            exchange.method, params.cursor, entries, MAX_SKILLS_PER_PAGE, self._limits.max_cursor_bytes, _count_files
        )
        return ListSkillsResult(skills=page, next_cursor=next_cursor, ttl_ms=0, cache_scope="private")

    async def _list_mounted(self, upstream: Upstream, names: NameMap, exchange: Exchange) -> list[SkillEntry]:
        """Return the skills of one server, or no skills if the server is slow or fails."""
        try:
            supervisor = self._servers.get_for_caller(upstream.supervisor, exchange.caller.principal)
            async with asyncio.timeout(self._ready_timeout), supervisor.using() as client:
                await client.connect()
                skills = await client.list_skills()
        except PolicyError:
            return []
        except (MCPError, TimeoutError) as exc:
            log.warning("could not list the skills of %s: %s", upstream.name, exc)
            return []
        return [
            self._to_entry(supervisor, names, skill) for skill in skills if not self._is_hidden(supervisor, skill.uri)
        ]

    async def get_skill(self, params: GetSkillParams, exchange: Exchange) -> GetSkillResult:
        upstream, names, uri = self._find_mount(params.uri)
        try:
            supervisor = self._find_server(upstream, uri, exchange)
            async with supervisor.using() as client:
                skill = await client.get_skill(uri)
        except (NotFound, NotSupported, PolicyError):
            raise InvalidParams(f"No skill has the URI {clip(params.uri)}", {"uri": params.uri}) from None
        except MCPError as exc:
            raise _to_unavailable(upstream, exc) from None
        entry = self._to_entry(supervisor, names, skill)
        return GetSkillResult(skill=entry, ttl_ms=0, cache_scope="private")

    async def read_directory(self, params: ReadDirectoryParams, exchange: Exchange) -> ReadDirectoryResult:
        upstream, names, uri = self._find_mount(params.uri)
        try:
            supervisor = self._find_server(upstream, uri, exchange)
            async with supervisor.using() as client:
                await client.connect()
                _check_directory_support(client)
                result = await client.request(self._methods.read_directory, replace(params, uri=uri))
        except (NotSupported, PolicyError):
            raise InvalidParams(f"{clip(params.uri)} is not a directory", {"uri": params.uri}) from None
        except MCPError as exc:
            if getattr(exc, "code", None) == InvalidParams.code:
                text = f"{clip(params.uri)} is not a directory, or the cursor is invalid"
                raise InvalidParams(text, {"uri": params.uri}) from None
            raise _to_unavailable(upstream, exc) from None
        children = [
            replace(child, uri=names.to_outer("resource", child.uri))
            for child in result.resources
            if not self._is_hidden(supervisor, child.uri)
        ]
        return ReadDirectoryResult(resources=children, next_cursor=result.next_cursor)

    def _find_mount(self, uri: str) -> tuple[Upstream, NameMap, str]:
        """Return the server of a gateway URI, and the URI that this server uses."""
        if len(uri) > self._limits.max_uri_bytes:
            raise make_uri_length_error(self._limits.max_uri_bytes)
        for upstream, names in self._list_mounts():
            inner_uri = names.to_inner("resource", uri)
            if inner_uri is not None:
                return upstream, names, inner_uri
        raise InvalidParams(f"No skill has the URI {clip(uri)}", {"uri": uri})

    def _find_server(self, upstream: Upstream, uri: str, exchange: Exchange) -> ServerSupervisor:
        supervisor = self._servers.get_for_caller(upstream.supervisor, exchange.caller.principal)
        denial = find_denial(self._authorizer, supervisor, "resource.read", uri)
        if denial is not None and denial.action == "hide":
            raise denial
        return supervisor

    def _is_hidden(self, supervisor: ServerSupervisor, uri: str) -> bool:
        request = self._authorizer.create_request(supervisor, "resource.read", uri, None)
        return self._authorizer.policy.decide(request).action == "hide"

    def _to_entry(self, supervisor: ServerSupervisor, names: NameMap, skill: Skill) -> SkillEntry:
        """Convert a skill to an entry of the gateway. Files that the policy hides are left out."""
        files = [
            replace(file, uri=names.to_outer("resource", file.uri))
            for file in skill.files.values()
            if not self._is_hidden(supervisor, file.uri)
        ]
        return SkillEntry(
            uri=names.to_outer("resource", skill.uri),
            frontmatter=dict(skill.front_matter),
            resources=DYNAMIC if skill.is_dynamic else files,
        )


def _check_directory_support(client: Client) -> None:
    """Raise NotSupported if the server does not list directories."""
    settings = (client.server_capabilities.extensions or {}).get(IDENTIFIER)
    if not isinstance(settings, dict) or settings.get("directoryRead") is not True:
        raise NotSupported("the server does not list directories")


def _count_files(entry: SkillEntry) -> int:
    return 1 if isinstance(entry.resources, str) else len(entry.resources)


def _to_unavailable(upstream: Upstream, exc: MCPError) -> InternalError:
    log.warning("request to %s failed: %s", upstream.name, exc)
    return InternalError(f"the server {upstream.name} is not available")
