"""Host: many servers, one user who stays in charge.

Everything that happens goes by the policy and, where that asks, by the user; what servers ask in turn goes the same
way. The whole can be served again as one server.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, Self

from dovetail.client.clock import Progress
from dovetail.client.rounds import Pending
from dovetail.connect import Client
from dovetail.host.answering import lacking
from dovetail.host.config import check_level
from dovetail.host.consent import Broker, read_answer
from dovetail.host.deciding import Postponed
from dovetail.host.entries import Entry, Problem
from dovetail.host.events import Event
from dovetail.host.following import Following, check_files
from dovetail.host.gateway import Gateway, Mode
from dovetail.host.grants import Grants
from dovetail.host.inbox import Item
from dovetail.host.journal import Journal
from dovetail.host.member import Member
from dovetail.host.models.model import Model
from dovetail.host.noting import journaling
from dovetail.host.performing import barred, passed, performed
from dovetail.host.pinned import Pins
from dovetail.host.policy import Policy, Question
from dovetail.host.postponing import Postponing
from dovetail.host.roster import PATIENCE, Roster
from dovetail.host.searching import CALL, OWN, inner_call, looked_up
from dovetail.host.secrets import Level, Secrets
from dovetail.protocol.stats import HostStats
from dovetail.serve import Server, Transport, serving
from dovetail.wire.codec import plain
from dovetail.wire.completion import Completion
from dovetail.wire.prompts import GetPromptResult
from dovetail.wire.resources import ReadResourceResult

_WEB_TIME: Final = 15.0  # seconds for callers of a gateway to get their answers at the end


class Host(Roster):
    """Servers, and what may happen with them.

    policy: rules, or a TOML file of them. consent: a broker, or a function that is asked. model: answers what servers
    ask a model. grants, pins: files that keep what the user agreed to, and the definitions it was agreed to for, which
    are kept in pins.json beside the grants unless it is said where; without a file that is forgotten with the host.
    journal: a file of what was done and why. roots: folders the servers may work in. patience: seconds a list waits for
    servers that are not ready. secrets: looks up what configurations refer to, and masks it in all that is told. Other
    options are settings for all servers.
    """

    def __init__(
        self,
        *,
        policy: Policy | str | Path | None = None,
        consent: Broker | Callable[..., Any] | None = None,
        model: Model | None = None,
        grants: Grants | str | Path | None = None,
        pins: Pins | str | Path | None = None,
        journal: Journal | str | Path | None = None,
        roots: Sequence[Any] = (),
        patience: float = PATIENCE,
        project: str = "",
        secrets: Secrets | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(
            policy=policy,
            consent=consent,
            model=model,
            grants=grants,
            pins=pins,
            roots=roots,
            patience=patience,
            project=project,
            secrets=secrets,
            settings=settings,
        )
        self.postponing = Postponing(self)
        self._following: Following | None = None
        self._watching: asyncio.Task[None] | None = None
        self._web: dict[Any, asyncio.Task[None]] = {}
        self._journal = Journal(journal) if isinstance(journal, str | Path) else journal
        if self._journal is not None:
            self._journal.mask(self.secrets)
            self.on("*", journaling(self._journal))

    # Configuration

    @classmethod
    def from_config(
        cls,
        *paths: str | Path,
        level: Level = "user",
        watch: bool = False,
        secrets: Secrets | None = None,
        **options: Any,
    ) -> Self:
        """A host of the servers in configuration files of any known host; without paths, of all that are found here.

        level: whose files they are; servers of a "project" are only started with the user's consent. watch: follow
        the files while the host is open. What cannot be read is in `problems`; a file that is named and not there is
        an error. Options are those of the host, and hold for all servers whose entries say nothing else.
        """
        check_level(level)
        check_files(paths)
        host = cls(secrets=secrets, **options)
        host._following = Following(paths, level, host.secrets, watch=watch)
        host._follow(*host._following.read())
        return host

    async def reload(self) -> None:
        """Read the configuration again: what changed in it is started anew, what did not goes on."""
        if self._following is None:
            raise ValueError("only a host made by from_config has something to read again")
        entries, problems = self._following.read()
        for name in self._following.gone(entries):
            if name in self._members:  # else somebody else was faster
                await self.remove(name)
        self._follow(entries, problems)

    def _follow(self, entries: Mapping[str, Entry], problems: Sequence[Problem]) -> None:
        assert self._following is not None
        refused: list[Problem] = []
        for name, entry in entries.items():
            if name in self._following.known:
                continue
            try:
                self.add(name, self._following.target(entry), **self._following.options(entry))
                self._following.known[name] = entry
            except (ValueError, TypeError) as exc:
                refused.append(Problem(entry.source, entry.path, f"{entry.written}: {exc}"))
        self.problems = (*problems, *refused)
        for problem in self.problems:
            self.tell(Event(kind="problem", server="", reason=problem.text, details=problem))

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
        if self._following is not None and self._following.watch and self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._following.watched(self.reload))

    def stats(self) -> HostStats:
        """Return what is open or running now. All counts are 0 when nothing is left."""
        members = [one for server in self.servers for one in self.members_of(server)]
        return HostStats(
            connected_servers=sum(member.client is not None for member in members),
            running_calls=sum(member.uses for member in members),
            open_questions=self.postponing.open_questions,
            gateways=sum(not task.done() for task in self._web.values()),
        )

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop all servers, at once and in bounded time; none is started again unless the host is."""
        self._open = False
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            self._watching = None
        for web in self._web:
            web.should_exit = True
        served, self._web = [*self._web.values()], {}
        if served:
            await asyncio.wait(served, timeout=_WEB_TIME)
        own = [member for callers in self._callers.values() for member in callers.members]
        await asyncio.gather(*(member.stop() for member in (*self.servers, *own)))
        if self._journal is not None:
            self._journal.close()  # written to again, it is opened again

    # Using it

    async def call(
        self,
        name: str,
        /,
        arguments: Mapping[str, Any] | None = None,
        *,
        wait: bool = True,
        timeout: float | None = None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
        retry: bool | None = None,
        **named: Any,
    ) -> Any:
        """Call a tool by "server.tool", by what a model sees, or by its bare name if only one server has it.

        Arguments are given as a mapping, or by name where no option is called so. Returns its result; with `wait=False`
        and a `DurableConsent`, a `Waiting` if somebody has to answer first.

        Raises:
            PolicyError: the policy, or the user, said no.
        """
        arguments = {**(arguments or {}), **named}
        if name in OWN and OWN[name] != CALL:
            return looked_up(await self._listed("tool"), OWN[name], arguments or {})
        if name in OWN:
            name, arguments = inner_call(arguments or {})
        member, tool = await self.find(name)
        declared = await self.declared(member, tool)
        question = self.question(member, "tool.call", tool, plain(arguments or {}), declared)
        try:
            settled = await self.desk.settle(question, declared, {"description": declared.description or ""}, wait=wait)
        except Postponed as put_off:
            return await self.postponing.put_off(put_off.ticket, question, declared)
        await self.check_same(member, declared)
        return await self.perform(
            member, declared, settled.question, wait=wait, timeout=timeout, progress=progress, meta=meta, retry=retry
        )

    async def perform(
        self,
        member: Member,
        declared: Any,
        question: Question,
        *,
        wait: bool = True,
        resume: Callable[[Client], Awaitable[Any]] | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> Any:
        """Do what may be done, within the limits, with the arguments that were judged.

        `resume` goes on with a call that waited.
        """

        async def work(client: Client, most: float | None) -> Any:
            if resume is not None:
                return await resume(client)
            start = client.call_tool if wait else client.start_tool
            idle = timeout if most is None else min(timeout or most, most)
            return await start(question.tool, dict(question.arguments or {}), timeout=idle, total=most, **options)

        with lacking():
            result = await performed(self, member, question, work)
        if isinstance(result, Pending):
            return await self.postponing.asked(member, declared, question, result)
        return await passed(self, member, declared, result)

    async def read(self, server: str, uri: str) -> ReadResourceResult:
        """Read a resource of a server."""
        member = self._member(server)
        question = self.question(member, "resource.read", uri, None)
        await self.desk.settle(question)
        return await performed(self, member, question, lambda client, most: client.read_resource(uri, timeout=most))

    async def prompt(self, server: str, name: str, arguments: Mapping[str, str] | None = None) -> GetPromptResult:
        """A prompt of a server, filled in."""
        member = self._member(server)
        question = self.question(member, "prompt.get", name, dict(arguments or {}))
        question = (await self.desk.settle(question)).question
        judged: Mapping[str, Any] = question.arguments or {}
        return await performed(
            self, member, question, lambda client, most: client.get_prompt(name, judged, timeout=most)
        )

    async def complete(self, server: str, argument: str, value: str, **reference: Any) -> Completion:
        """Suggestions of a server, as `Client.complete` gives them."""
        member = self._member(server)
        of = reference.get("prompt") or reference.get("template") or ""
        if (why := barred(self, member, "prompt.get" if "prompt" in reference else "resource.read", of)) is not None:
            raise why
        question = self.question(member, "complete", of, None)
        await self.desk.settle(question)
        return await performed(self, member, question, lambda client, _: client.complete(argument, value, **reference))

    # Questions that wait

    async def inbox(self) -> "AsyncGenerator[Item]":
        """The questions that wait for an answer, oldest first."""
        for item in await self.postponing.items():
            yield item

    async def answer(self, ticket: str, answer: Any) -> Any:
        """Answer a question of the inbox: True, False, Allow, Deny, Edit, or what was filled in.

        Returns the result of the call that waited for it, or None if somebody else has it.
        """
        return await self.postponing.answer(ticket, read_answer(answer))

    # As a server itself

    def as_server(self, mode: Mode = "merged", *, only: str | None = None, **options: Any) -> Server:
        """All servers as one: `mode` "merged", or "search" for three tools that find the others; or `only` one of them.

        Options are those of `Server`.
        """
        gateway = Gateway(self, lambda: nullcontext() if self.is_open else self, mode=mode, only=only, **options)
        self.on("server.added", lambda _: gateway.seat())
        self.on("server.removed", lambda _: gateway.seat())
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
