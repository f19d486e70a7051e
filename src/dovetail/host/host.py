"""Host: many servers, one user who stays in charge.

It owns a member for each server, decides with the policy and the user what may happen, and puts what all of them offer
into one catalog. A server that is slow, broken or gone costs the others nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Self

from dovetail.client.clock import Progress
from dovetail.client.rounds import Pending
from dovetail.connect import Client
from dovetail.errors import MCPError, NotOffered, clip
from dovetail.host.answering import Answers
from dovetail.host.callers import PerCaller
from dovetail.host.catalog import Catalog
from dovetail.host.consent import Broker, CallbackConsent, DenyAll, read_answer
from dovetail.host.deciding import Desk, Postponed
from dovetail.host.gateway import Gateway, Mode
from dovetail.host.grants import Grants
from dovetail.host.identity import identity_of
from dovetail.host.inbox import Item
from dovetail.host.member import Event, Member, Settings
from dovetail.host.metering import Meter, shortened
from dovetail.host.models.model import Model
from dovetail.host.names import check_server
from dovetail.host.offers import Manifest, Offered
from dovetail.host.pinned import Pins
from dovetail.host.policy import Policy, Question
from dovetail.host.postponing import Postponing
from dovetail.host.searching import CALL, OWN, SERVER, inner_call, looked_up, searching
from dovetail.protocol.mounting import KINDS, Kind
from dovetail.serve import Server, Transport, serving
from dovetail.wire.codec import convert, plain
from dovetail.wire.completion import Completion
from dovetail.wire.prompts import GetPromptResult
from dovetail.wire.resources import ReadResourceResult
from dovetail.wire.tools import CallToolResult

log = logging.getLogger("dovetail")

_WEB_TIME: Final = 15.0  # seconds for callers of a gateway to get their answers at the end
PATIENCE: Final = 5.0  # seconds a list waits for servers that are not ready; they are in the next one
_NOTHING: Final[dict[str, Any]] = {}
_FIELDS: Final[Mapping[Kind, str]] = {
    "tool": "tools",
    "resource": "resources",
    "resource template": "templates",
    "prompt": "prompts",
}


class Host:
    """Servers, and what may happen with them.

    policy: rules, or a TOML file of them. consent: a broker, or a function that is asked. model: answers what servers
    ask a model. grants, pins: files that keep what the user agreed to, and the definitions it was agreed to for;
    without them that is forgotten with the host. roots: folders the servers may work in.
    """

    def __init__(
        self,
        *,
        policy: Policy | str | Path | None = None,
        consent: Broker | Callable[..., Any] | None = None,
        model: Model | None = None,
        grants: Grants | str | Path | None = None,
        pins: Pins | str | Path | None = None,
        roots: Sequence[Any] = (),
        patience: float = PATIENCE,
        project: str = "",
        **settings: Any,
    ) -> None:
        self.policy = Policy.load(policy) if isinstance(policy, str | Path) else policy or Policy()
        self.model = model
        self.patience = patience
        self._roots = roots
        self._project = project
        self._settings = settings
        Settings(**settings)  # a wrong one shows at once
        self._members: dict[str, Member] = {}
        self._listeners: list[tuple[str, Callable[[Event], Any]]] = []
        broker: Any = consent or DenyAll()
        broker = broker if hasattr(broker, "ask") else CallbackConsent(broker)
        self.desk = Desk(
            self.policy,
            broker,
            grants if isinstance(grants, Grants) else Grants(grants),
            pins if isinstance(pins, Pins) else Pins(pins),
            self._tell,
        )
        self.meter = Meter()
        self.postponing = Postponing(self)
        self._snapshots: dict[tuple[Kind, ...], tuple[list[Any], Catalog]] = {}
        self._open = False
        self._gateways: list[Gateway] = []
        self._callers: dict[str, PerCaller] = {}
        self._web: dict[Any, asyncio.Task[None]] = {}

    # Servers

    def add(self, name: str, target: Any, *, identity: str | None = None, source: str = "", **options: Any) -> Member:
        """One more server: any target of a `Client`. Options are those of `Settings`, and those of `Client`."""
        check_server(name)
        if name == SERVER:
            raise ValueError(f"{SERVER!r} is the name of the host's own tools")
        if name in self._members:
            raise ValueError(f"there is already a server {name!r}")
        own = {key: options.pop(key) for key in tuple(options) if key in Settings.__struct_fields__}
        settings = Settings(**{**self._settings, **own})
        enabled = options.pop("enabled", True)
        identity = identity or identity_of(target)
        credentials = options.pop("credentials", None)
        answers = Answers(
            name,
            self.desk,
            self.model,
            self._roots if settings.roots is None else settings.roots,
            trusted=settings.trust,
            identity=identity,
            take=self._take,
        )

        def make(**more: Any) -> Client:
            to = target() if callable(target) and not hasattr(target, "link") else target
            return Client(to, name=name, on_log=logged, **{**answers.options(), **options, **more})

        def logged(message: Any) -> None:
            self._tell(Event(kind="server.log", server=name, new=message.level, details=message))

        async def permit() -> None:
            await self.desk.settle(
                Question(server=name, kind="server.start", identity=identity, trusted=settings.trust)
            )

        member = Member(
            name, make, settings, self._tell, identity=identity, source=source, enabled=enabled, permit=permit
        )
        if credentials is not None:
            self._callers[name] = PerCaller(member, make, credentials)
        self._members[name] = member
        self._seat()
        self._tell(Event(kind="server.added", server=name))
        if self._open and settings.start == "eager":
            self._begin(member)
        return member

    async def remove(self, name: str) -> None:
        """Stop a server and forget it."""
        member = self._member(name)
        del self._members[name]
        callers = self._callers.pop(name, None)
        self._seat()
        await asyncio.gather(member.stop(), *(one.stop() for one in (callers.members if callers else ())))
        self._tell(Event(kind="server.removed", server=name))

    def _seat(self) -> None:
        for gateway in self._gateways:
            gateway.seat()

    @property
    def servers(self) -> tuple[Member, ...]:
        """All of them, by name, with their states."""
        return tuple(self._members[name] for name in sorted(self._members))

    async def restart(self, name: str) -> None:
        """Start a server anew, now."""
        await self._member(name).restart()

    @asynccontextmanager
    async def server(self, name: str) -> AsyncGenerator[Client]:
        """The client of one server, for what the host has no method for. No policy stands before it."""
        async with self._member(name).using() as client:
            yield client

    def _member(self, name: str) -> Member:
        found = self._members.get(name)
        if found is None:
            known = ", ".join(sorted(self._members)) or "none"
            raise NotOffered(f"there is no server {clip(name)}; there are: {known}")
        return found

    @property
    def is_open(self) -> bool:
        """Whether it has been entered and not been left."""
        return self._open

    def member_for(self, member: Member, principal: str | None) -> Member:
        """The server as one caller of a gateway uses it; PolicyError if it does not know who that is."""
        callers = self._callers.get(member.name)
        return member if callers is None else callers.of(principal)

    async def _take(self, server: str, what: str) -> None:
        rate = self.policy.quota(server, what).rate
        if rate is not None:
            self.meter.count(server, what, rate)

    # Life

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def open(self) -> None:
        """Start what is to be started at once; nothing is waited for."""
        self._open = True
        for member in self.servers:
            if member.settings.start == "eager" and member.state != "disabled":
                self._begin(member)

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop all servers, at once and in bounded time."""
        self._open = False
        for web in self._web:
            web.should_exit = True
        served, self._web = [*self._web.values()], {}
        if served:
            await asyncio.wait(served, timeout=_WEB_TIME)
        own = [member for callers in self._callers.values() for member in callers.members]
        await asyncio.gather(*(member.stop() for member in (*self.servers, *own)))

    def _begin(self, member: Member) -> None:
        async def begin() -> None:
            with contextlib.suppress(MCPError):  # its state says why
                await member.ready()

        member.spawn(begin())

    # Events

    def on(self, kind: str, function: Callable[[Event], Any]) -> Callable[[], None]:
        """Hear of events of a kind, which may be a glob; call what is returned to stop."""
        entry = (kind, function)
        self._listeners.append(entry)

        def stop() -> None:
            if entry in self._listeners:
                self._listeners.remove(entry)

        return stop

    def _tell(self, event: Event) -> None:
        for kind, function in tuple(self._listeners):
            if fnmatchcase(event.kind, kind):
                try:
                    function(event)
                except Exception as exc:
                    log.error("a listener of the host failed", exc_info=exc)

    # What all of them offer

    async def tools(self) -> tuple[Offered, ...]:
        """The tools of all servers, with names that cannot clash, in an order that does not change."""
        return (await self._listed("tool")).tools

    async def resources(self) -> tuple[Offered, ...]:
        """The resources of all servers."""
        return (await self._listed("resource")).resources

    async def templates(self) -> tuple[Offered, ...]:
        """The resource templates of all servers."""
        return (await self._listed("resource template")).templates

    async def prompts(self) -> tuple[Offered, ...]:
        """The prompts of all servers."""
        return (await self._listed("prompt")).prompts

    async def catalog(self, budget_tokens: int | None = None) -> Catalog:
        """Everything, as a snapshot. Where the tools take more than a budget, three that search stand for them."""
        catalog = await self._listed("tool", "resource", "resource template", "prompt")
        if budget_tokens is not None and catalog.tokens > budget_tokens:
            return searching(catalog)
        return catalog

    async def _listed(self, *kinds: Kind) -> Catalog:
        members = [member for member in self.servers if member.state != "disabled"]
        tasks = [asyncio.get_running_loop().create_task(self._learn(member, kinds)) for member in members]
        if tasks:
            await asyncio.wait(tasks, timeout=self.patience)
            for task in tasks:
                task.cancel()  # the member goes on learning
        return self.known(*kinds)

    async def _learn(self, member: Member, kinds: Sequence[Kind]) -> None:
        for kind in kinds:
            with contextlib.suppress(MCPError):
                await member.listed(kind)

    def known(self, *kinds: Kind) -> Catalog:
        """What is known of all servers now, without asking any."""
        members = [member for member in self.servers if member.state != "disabled"]
        wanted: Sequence[Kind] = kinds or KINDS
        offered: list[tuple[Member, Kind, dict[str, Any]]] = [
            (member, kind, member.known.get(kind, _NOTHING)) for member in members for kind in wanted
        ]
        kept = self._snapshots.get(kinds)
        if kept is not None and len(kept[0]) == len(offered) and all(map(_same, kept[0], offered)):
            return kept[1]
        manifests: dict[str, dict[str, Any]] = {}
        for member, kind, known in offered:
            shown = [one for name, one in known.items() if self.shows(member, kind, name, one)]
            manifests.setdefault(member.name, {})[_FIELDS[kind]] = shown
        catalog = Catalog.of({name: Manifest(**found) for name, found in manifests.items()})
        self._snapshots[kinds] = offered, catalog
        return catalog

    def shows(self, member: Member, kind: Kind, name: str, declaration: Any) -> bool:
        """Whether something is offered at all: by the server's settings, and by the policy."""
        if kind == "tool" and not _picked(name, member.settings):
            return False
        asked = {"tool": "tool.call", "prompt": "prompt.get"}.get(kind, "resource.read")
        return self.desk.look(self.question(member, asked, name, None, declaration)).verdict != "hide"

    def question(
        self, member: Member, kind: str, name: str, arguments: Mapping[str, Any] | None, declaration: Any = None
    ) -> Question:
        """What the policy is asked about one thing of one server."""
        return Question(
            server=member.name,
            tool=name,
            kind=kind,
            arguments=arguments,
            annotations=getattr(declaration, "annotations", None) if kind.startswith("tool.") else None,
            trusted=member.settings.trust,
            identity=member.identity,
            project=self._project,
        )

    # Using it

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        wait: bool = True,
        timeout: float | None = None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
        retry: bool | None = None,
    ) -> Any:
        """Call a tool by "server.tool", by what a model sees, or by its bare name if only one server has it.

        Returns its result; with `wait=False` and a `DurableConsent`, a `Waiting` if somebody has to answer first.

        Raises:
            PolicyError: the policy, or the user, said no.
        """
        if name in OWN and OWN[name] != CALL:
            return looked_up(await self._listed("tool"), OWN[name], arguments or {})
        if name in OWN:
            name, arguments = inner_call(arguments or {})
        member, tool = await self.find(name)
        declared = await self.declared(member, tool)
        question = self.question(member, "tool.call", tool, dict(arguments or {}), declared)
        try:
            settled = await self.desk.settle(question, declared, {"description": declared.description or ""}, wait=wait)
        except Postponed as put_off:
            return await self.postponing.put_off(put_off.ticket, question, declared)
        told = settled.edited if settled.edited is not None else dict(question.arguments or {})
        return await self.perform(
            member, declared, told, wait=wait, timeout=timeout, progress=progress, meta=meta, retry=retry
        )

    async def perform(
        self,
        member: Member,
        declared: Any,
        arguments: dict[str, Any],
        *,
        wait: bool = True,
        resume: Callable[[Client], Awaitable[Any]] | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> Any:
        """Do what may be done, within the limits; `resume` goes on with a call that waited."""
        tool: str = declared.name
        quota = self.policy.quota(member.name, tool)
        async with self.meter.within(member.name, tool, quota), member.using() as client:
            question = self.question(member, "tool.call", tool, arguments, declared)
            self._tell(Event(kind="call", server=member.name, new=tool, details=question))
            if resume is not None:
                result = await resume(client)
            else:
                most = timeout if quota.timeout is None else min(timeout or quota.timeout, quota.timeout)
                start = client.call_tool if wait else client.start_tool
                result = await start(tool, arguments, timeout=most, total=quota.timeout, **options)
        if isinstance(result, Pending):
            return await self.postponing.asked(member, declared, arguments, result)
        return await self._passed(member, tool, declared, shortened(result, quota.result_bytes))

    async def inbox(self) -> "AsyncGenerator[Item]":
        """The questions that wait for an answer, oldest first."""
        for item in await self.postponing.items():
            yield item

    async def answer(self, ticket: str, answer: Any) -> Any:
        """Answer a question of the inbox: True, False, Allow, Deny, Edit, or what was filled in.

        Returns the result of the call that waited for it, or None if somebody else has it.
        """
        return await self.postponing.answer(ticket, read_answer(answer))

    async def _passed(self, member: Member, tool: str, declared: Any, result: CallToolResult) -> CallToolResult:
        question = self.question(member, "tool.result", tool, None, declared)
        settled = await self.desk.settle(question, details={"result": plain(result.content)})
        if settled.edited is None:
            return result
        edited = settled.edited
        content = [{"type": "text", "text": edited}] if isinstance(edited, str) else edited
        return convert({"content": content, "isError": result.is_error}, CallToolResult, what="an edited result")

    async def find(self, name: str) -> tuple[Member, str]:
        """The server and the tool a name means."""
        server, dot, tool = name.partition(".")
        if dot and server in self._members:
            return self._members[server], tool
        found = self.known("tool").find(name) or (await self._listed("tool")).find(name)
        if found is None:
            raise NotOffered(f"there is no tool {clip(name)}, or several servers have one")
        return self._members[found.server], found.name

    async def declared(self, member: Member, tool: str) -> Any:
        """The definition of a tool, looked up again if it is not known; NotOffered if there is none."""
        known = member.known.get("tool") or {}
        if tool not in known:
            known = await member.listed("tool")
        found = known.get(tool)
        if found is None or not self.shows(member, "tool", tool, found):
            raise NotOffered(f"there is no tool {clip(tool)}").at(server=member.name)
        return found

    async def read(self, server: str, uri: str) -> ReadResourceResult:
        """Read a resource of a server."""
        member = self._member(server)
        await self.desk.settle(self.question(member, "resource.read", uri, None))
        async with member.using() as client:
            return await client.read_resource(uri)

    async def prompt(self, server: str, name: str, arguments: Mapping[str, str] | None = None) -> GetPromptResult:
        """A prompt of a server, filled in."""
        member = self._member(server)
        await self.desk.settle(self.question(member, "prompt.get", name, dict(arguments or {})))
        async with member.using() as client:
            return await client.get_prompt(name, arguments)

    async def complete(self, server: str, argument: str, value: str, **reference: Any) -> Completion:
        """Suggestions of a server, as `Client.complete` gives them."""
        member = self._member(server)
        await self.desk.settle(self.question(member, "complete", argument, None))
        async with member.using() as client:
            return await client.complete(argument, value, **reference)

    # As a server itself

    def as_server(self, mode: Mode = "merged", *, only: str | None = None, **options: Any) -> Server:
        """All servers as one: `mode` "merged", or "search" for three tools that find the others; or `only` one of them.

        Options are those of `Server`.
        """
        gateway = Gateway(self, mode=mode, only=only, **options)
        self._gateways.append(gateway)
        return gateway.server

    def asgi(self, mode: Mode = "merged", *, name: str = "gateway", auth: Any = None, **options: Any) -> Any:
        """The gateway as an ASGI application: `/mcp`, `/search/mcp`, and `/s/NAME/mcp` for each server.

        Options are those of `Server.asgi`.
        """
        return self.as_server(mode, name=name, auth=auth).asgi(**options)

    def serve(
        self,
        transport: Transport = "stdio",
        mode: Mode = "merged",
        *,
        name: str = "gateway",
        auth: Any = None,
        **options: Any,
    ) -> "asyncio.Task[None] | None":
        """Serve all servers as one until told to stop; options are those of `Server.run`.

        Within a running loop, over HTTP, it goes on beside you until the host is left; what is returned can be awaited.
        """
        server = self.as_server(mode, name=name, auth=auth)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            server.run(transport, **options)
            return None
        if transport != "http":
            raise RuntimeError(f"within a running loop only 'http' can be served, not {transport!r}")
        web, work = serving(server, **options)
        self._web[web] = loop.create_task(work)
        return self._web[web]


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(a is b for a, b in zip(one, other, strict=True))


def _picked(tool: str, settings: Settings) -> bool:
    return any(fnmatchcase(tool, glob) for glob in settings.allow) and not any(
        fnmatchcase(tool, glob) for glob in settings.deny
    )
