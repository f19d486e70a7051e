"""The skills of a host: those of its servers, and those of the user.

A skill is identified by its server and its URI. The user allows a skill with all its files and their digests. The
client verifies each file, and only listed files are read, from the same server. The files of a dynamic skill have no
digests, so the user is asked again for each file.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from dovetail.client.client import Client
from dovetail.error_context import add_context, clip
from dovetail.errors import (
    ConsentDeferred,
    InvalidParams,
    MCPError,
    NotFound,
    ProcessStartError,
    RequestTimeout,
    SkillMismatch,
)
from dovetail.host.authorization import Authorization, RequestAuthorizer
from dovetail.host.consent.inbox import DeferredCall, DeferredSkill, get_inbox
from dovetail.host.consent.pins import fingerprint
from dovetail.host.execution import ServerUse
from dovetail.host.parts import HostParts
from dovetail.host.policy.policy import Decision, PolicyRequest
from dovetail.host.servers import HOST_NOT_OPEN
from dovetail.host.supervisor import ServerSupervisor
from dovetail.log import log
from dovetail.protocol.safe_text import escape_line
from dovetail.skills.local_skill import list_local_skills
from dovetail.skills.remote_skill import Skill, make_unknown_file_error
from dovetail.skills.skill import MANIFEST, SkillFile, get_root, quote_path
from dovetail.skills.skill_folder import SkillFolder
from dovetail.wire.base import Struct, replace
from dovetail.wire.codec import encode_canonical

_KIND: Final = "resource.read"
ALLOWED_TOOLS: Final = "allowed-tools"
_ONCE_ANSWER_S: Final = 300.0  # The answer "once" allows reading the files of a skill for this long.
# Do not change this text. It is a part of the fingerprint of each dynamic skill.
_DYNAMIC_FILES: Final = "dynamic: the server generates the files, and they are not verified"
_MAX_AGE_S: Final = 1.0  # the seconds after which a large folder is scanned again


class SkillContent(Struct, frozen=True, kw_only=True):
    """A verified file of a skill, with its origin."""

    server: str  # the name of the server, or "" for a skill of the user
    uri: str  # the URI of the file
    content: str | bytes  # the content of the file. It is bytes if the file is not text.

    @property
    def model_text(self) -> str:
        """Return the content for a model, with a line before and after it. The first line names the server and the URI.

        Both lines contain a digest of the content. Therefore the content cannot contain a forged last line.
        """
        data = self.content.encode() if isinstance(self.content, str) else self.content
        text = self.content if isinstance(self.content, str) else f"({len(data)} bytes that are not text)"
        boundary = hashlib.sha256(data).hexdigest()[:32]
        origin = f"server={json.dumps(self.server)} " if self.server else ""
        uri = json.dumps(escape_line(self.uri), ensure_ascii=False)
        return f"<skill-file {origin}uri={uri} id={boundary}>\n{text}\n</skill-file id={boundary}>"


class HostSkill:
    """A skill that a host can load. `Host.list_skills` returns these objects."""

    def __init__(
        self,
        _skill: Skill,
        _parts: HostParts,
        _supervisor: ServerSupervisor | None = None,
        _client: Client | None = None,
    ) -> None:
        self._skill = _skill
        self._authorizer = _parts.authorizer
        self._executor = _parts.executor
        self._supervisor = _supervisor  # None if the skill belongs to the user
        self._client = _client  # the client that fetched `_skill`
        self._definition = build_definition(_skill)
        self._allowed_until = 0.0  # the time until which the answer "once" is valid
        # Readers with `wait=True` and readers with `wait=False` use different locks.
        self._locks = {True: asyncio.Lock(), False: asyncio.Lock()}

    @property
    def server(self) -> str:
        """Return the name of the server, or "" for a skill of the user."""
        return "" if self._supervisor is None else self._supervisor.name

    @property
    def uri(self) -> str:
        """Return the URI of the SKILL.md on its server."""
        return self._skill.uri

    @property
    def name(self) -> str:
        """Return the name of the skill. Several skills may have the same name."""
        return self._skill.name

    @property
    def description(self) -> str:
        """Return the description, which says when to use the skill. The text comes from the server."""
        return self._skill.description

    @property
    def front_matter(self) -> Mapping[str, Any]:
        """Return all fields of the front matter. The user must still allow the tools in `allowed-tools`."""
        return self._skill.front_matter

    @property
    def files(self) -> Mapping[str, SkillFile]:
        """Return a dict of the files with their paths as keys. A dynamic skill lists no files."""
        return self._skill.files

    @property
    def is_dynamic(self) -> bool:
        """Return whether the skill has no digests to verify its files. The user's answer is then never stored."""
        return self._skill.is_dynamic

    @property
    def fingerprint(self) -> str:
        """Return a digest of the front matter and of all files with their digests."""
        return fingerprint(self._definition)

    def __repr__(self) -> str:
        return f"<HostSkill {self.server!r} {self.uri!r}>"

    async def read(self, path: str = MANIFEST, *, wait: bool = True) -> SkillContent:
        """Fetch a file, verify it, and return it with its origin. The user must allow the skill first.

        Args:
            path: The path of the file in the skill.
            wait: False raises `ConsentDeferred` if the user has not answered a `FileConsent` yet. Pass its `ticket` to
                `Host.answer`, and read again.

        Raises:
            ConsentDeferred: the user has not answered yet, and `wait` is False.
            PolicyError: the policy or the user denied the skill, or the policy denied the file.
            NotFound: the entry does not list the file.
            SkillMismatch: the file differs from its entry.
        """
        file = self.files.get(path)
        uri = f"{get_root(self.uri)}/{quote_path(path)}" if file is None else file.uri
        if file is None and not self.is_dynamic:
            raise add_context(make_unknown_file_error(self.uri, path, self.files), server=self.server or None)
        supervisor = self._supervisor
        if supervisor is None:
            return SkillContent(server="", uri=uri, content=await self._skill.read(path))
        async with self._locks[wait]:  # The user is asked once, even if several files are read at the same time.
            authorization = await self._authorize(supervisor, path, uri, wait)
        async with ServerUse(self._executor, supervisor, authorization) as use:
            content = await self._fetch(supervisor, use.client, path, authorization.limits.timeout)
            use.result = content if isinstance(content, str) else None
        return SkillContent(server=supervisor.name, uri=uri, content=content)

    async def _authorize(self, supervisor: ServerSupervisor, path: str, uri: str, wait: bool) -> Authorization:
        request = self._authorizer.create_request(supervisor, _KIND, uri, None)
        decision = self._authorizer.check(request)
        authorization = await self._authorize_skill(supervisor, path, decision, wait)
        if uri != self.uri:
            is_asked = decision.action == "ask"
            reason = f"allowed with the skill {clip(self.uri)}: {authorization.reason}" if is_asked else ""
            authorization = self._authorizer.allow(request, decision, reason)
        return replace(authorization, limits=self._authorizer.get_limits(supervisor, uri))

    async def _authorize_skill(
        self, supervisor: ServerSupervisor, path: str, file_decision: Decision, wait: bool
    ) -> Authorization:
        request = self._authorizer.create_request(supervisor, _KIND, self.uri, None)
        decision = self._decide(supervisor, file_decision)
        if decision.action == "ask" and time.monotonic() < self._allowed_until:
            return self._authorizer.allow(request, decision, "the user allowed the skill a short time ago")
        await self._authorizer.revoke_changed(request, self.fingerprint)
        answer_key = self._build_answer_key(path)
        if decision.action == "ask" and await self._authorizer.use_once_grant(request, answer_key):
            self._keep_once_answer()
            return self._authorizer.allow(request, decision, "the user allowed the request: once")
        try:
            authorization = await self._authorizer.authorize(
                request,
                self._definition,
                self._describe(path),
                decision=decision,
                wait=wait,
                # A dynamic skill can change after the user allowed it, so the answer is not stored.
                can_remember=not self.is_dynamic,
            )
        except ConsentDeferred as deferred:
            await self._defer(deferred.ticket, request, answer_key)
            raise
        if authorization.is_once:
            self._keep_once_answer()
        return authorization

    def _build_answer_key(self, path: str) -> str:
        return f"{self.fingerprint} {path}" if self.is_dynamic else self.fingerprint

    def _keep_once_answer(self) -> None:
        if not self.is_dynamic:
            self._allowed_until = time.monotonic() + _ONCE_ANSWER_S

    async def _defer(self, ticket: str, request: PolicyRequest, answer_key: str) -> None:
        """Store the skill's definition with the question, so that the user's answer applies only to this definition."""
        inbox = get_inbox(self._authorizer.consent_handler)
        if inbox is not None and request.server_identity:
            deferred_call = DeferredCall(
                server=request.server,
                identity=request.server_identity,
                tool=request.tool,
                arguments={},
                fingerprint=answer_key,
                skill=DeferredSkill(definition=self._definition, can_remember=not self.is_dynamic),
            )
            await inbox.attach(ticket, deferred_call)

    def _decide(self, supervisor: ServerSupervisor, file_decision: Decision) -> Decision:
        """Return the decision about a whole skill. The decision is to ask if any file of the skill needs consent.

        A dynamic skill lists no files, so only the file that is read counts.
        """
        decision = decide_read(self._authorizer, supervisor, self.uri)
        if decision.action != "allow":
            return decision
        if file_decision.action == "ask":
            return file_decision
        decisions = (decide_read(self._authorizer, supervisor, file.uri) for file in self.files.values())
        return next((other for other in decisions if other.action == "ask"), decision)

    def _describe(self, path: str) -> dict[str, Any]:
        details: dict[str, Any] = {"skill": self.name, "description": self.description}
        if self.is_dynamic:
            details["file"] = path
            details["files"] = "The server generates the files. They can change at any time and are not verified."
        else:
            details["files"] = [f"{path} ({file.size} bytes)" for path, file in self.files.items()]
        if (tools := self.front_matter.get(ALLOWED_TOOLS)) is not None:
            details["tools that the skill asks for (this answer does not allow them)"] = tools
        return details

    async def _fetch(
        self, supervisor: ServerSupervisor, client: Client, path: str, timeout: float | None
    ) -> str | bytes:
        try:
            async with asyncio.timeout(timeout):
                return await (await self._bind(client)).read(path)
        except SkillMismatch:
            await self._withdraw_consent(supervisor, client)
            raise
        except RequestTimeout:
            raise
        except TimeoutError:
            error = RequestTimeout(f"{clip(path)} of {clip(self.uri)} was not read within {timeout:g} s")
            raise add_context(error, server=supervisor.name) from None

    async def _bind(self, client: Client) -> Skill:
        """Fetch the skill again if the client is new. Raise SkillMismatch if the skill has changed."""
        if client is not self._client:
            skill = await client.get_skill(self.uri)
            if build_definition(skill) != self._definition:
                raise SkillMismatch(self.uri, "files", sorted(self.files), sorted(skill.files))
            self._skill, self._client = skill, client
        return self._skill

    async def _withdraw_consent(self, supervisor: ServerSupervisor, client: Client) -> None:
        """Revoke the grants of the skill if its files have changed since the user allowed it."""
        self._allowed_until = 0.0
        try:
            current = build_definition(await client.get_skill(self.uri))
        except MCPError:
            current = {}
        if current != self._definition:
            request = self._authorizer.create_request(supervisor, _KIND, self.uri, None)
            await self._authorizer.revoke_changed(request, fingerprint(current))


def build_definition(skill: Skill) -> dict[str, Any]:
    """Return the definition of a skill for use in grants and pins.

    It consists of texts, because each change of a text counts as a new instruction.
    """
    lines = (f"{path}: {file.digest} {file.size}" for path, file in sorted(skill.files.items()))
    return {
        "name": skill.uri,
        "frontmatter": encode_canonical(dict(skill.front_matter)).decode(),
        "files": _DYNAMIC_FILES if skill.is_dynamic else "\n".join(lines),
    }


class SkillCatalog:
    """Lists and reads the skills of a host."""

    def __init__(self, parts: HostParts, folder: str | Path | None) -> None:
        self._parts = parts
        self._servers = parts.servers
        self._folder = None if folder is None else SkillFolder(folder)
        self._known: WeakKeyDictionary[ServerSupervisor, list[HostSkill]] = WeakKeyDictionary()
        self._list_tasks: WeakKeyDictionary[ServerSupervisor, asyncio.Task[None]] = WeakKeyDictionary()
        self._slow_servers: WeakSet[ServerSupervisor] = WeakSet()

    async def list(self) -> tuple[HostSkill, ...]:
        """Return the skills of the user, and then those of all servers. No file is fetched."""
        if not self._servers.is_open:
            raise ProcessStartError(HOST_NOT_OPEN)
        servers = [supervisor for supervisor in self._servers.list() if supervisor.state != "disabled"]
        lists = await asyncio.gather(self._list_local(), *map(self._list_server, servers))
        return tuple(skill for skills in lists for skill in skills)

    async def _list_local(self) -> Iterable[HostSkill]:
        folder = self._folder
        if folder is None:
            return []
        await asyncio.to_thread(folder.refresh, _MAX_AGE_S)
        return [HostSkill(skill, self._parts) for skill in list_local_skills(folder)]

    async def _list_server(self, supervisor: ServerSupervisor) -> Iterable[HostSkill]:
        """Return the skills of a server. If the server is stopped, slow or fails, return the last known skills.

        After a slow response, lists do not wait for the server until it has listed its skills in the background.
        """
        if supervisor not in self._known or not supervisor.asleep:
            task = self._list_tasks.get(supervisor)
            if task is None or task.done():
                task = self._list_tasks[supervisor] = supervisor.spawn(self._fetch_list(supervisor))
            max_wait_s = 0 if supervisor in self._slow_servers else self._parts.catalog.ready_timeout
            await asyncio.wait([task], timeout=max_wait_s)
            if not task.done():
                self._slow_servers.add(supervisor)
        known, authorizer = self._known.get(supervisor, []), self._parts.authorizer
        return [skill for skill in known if decide_read(authorizer, supervisor, skill.uri).action != "hide"]

    async def _fetch_list(self, supervisor: ServerSupervisor) -> None:
        try:
            async with supervisor.using() as client, asyncio.timeout(supervisor.settings.list_timeout):
                await client.connect()  # The extensions of the server are unknown before the connection is open.
                skills = await client.list_skills()
        except (MCPError, TimeoutError) as exc:
            log.warning("could not list the skills of %s: %s", supervisor.name, exc)
            return
        self._known[supervisor] = [HostSkill(skill, self._parts, supervisor, client) for skill in skills]
        self._slow_servers.discard(supervisor)

    async def get(self, server: str, uri: str) -> HostSkill:
        """Return the skill with this URI as it is now. Raise PolicyError if the policy denies it."""
        if not server:
            skill = next((skill for skill in await self._list_local() if skill.uri == uri), None)
            if skill is None:
                raise NotFound(InvalidParams.code, f"the user has no skill {clip(uri)}")
            return skill
        supervisor = self._servers.get(server)
        authorizer = self._parts.authorizer
        authorizer.check(authorizer.create_request(supervisor, _KIND, uri, None))
        async with supervisor.using() as client:
            return HostSkill(await client.get_skill(uri), self._parts, supervisor, client)


def decide_read(authorizer: RequestAuthorizer, supervisor: ServerSupervisor, uri: str) -> Decision:
    """Return the policy's decision about reading a skill's file."""
    return authorizer.policy.decide(authorizer.create_request(supervisor, _KIND, uri, None))
