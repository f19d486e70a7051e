"""Roster: the servers of a host, what all of them offer, and what may happen with it.

A server that is slow, broken or gone costs the others nothing: nobody waits for it longer than a list is willing to.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from dovetail.connect import Client
from dovetail.errors import MCPError, NotOffered, PolicyError, clip
from dovetail.host.answering import Answers
from dovetail.host.callers import PerCaller
from dovetail.host.catalog import Catalog
from dovetail.host.consent import Broker, read_broker
from dovetail.host.deciding import Desk
from dovetail.host.entries import Problem
from dovetail.host.events import Event, check_kind
from dovetail.host.grants import Grants
from dovetail.host.identity import identity_of
from dovetail.host.member import Member
from dovetail.host.metering import Meter
from dovetail.host.missing import meant, no_server, no_tool
from dovetail.host.models.model import Model
from dovetail.host.names import check_server
from dovetail.host.offers import Manifest, Offered
from dovetail.host.pinned import Pins
from dovetail.host.pins import fingerprint
from dovetail.host.policy import Policy, Question, read_policy
from dovetail.host.quotas import Quota
from dovetail.host.searching import SERVER, searching
from dovetail.host.secrets import Secrets
from dovetail.host.terms import Terms
from dovetail.protocol.mounting import KINDS, Kind

log = logging.getLogger("dovetail")

PATIENCE: Final = 5.0  # seconds a list waits for servers that are not ready; they are in the next one
_NOTHING: Final[dict[str, Any]] = {}
_FIELDS: Final[Mapping[Kind, str]] = {
    "tool": "tools",
    "resource": "resources",
    "resource template": "templates",
    "prompt": "prompts",
}


class Roster:
    """The servers of a host."""

    def __init__(
        self,
        *,
        policy: Policy | str | Path | None,
        consent: Broker | Callable[..., Any] | None,
        model: Model | None,
        grants: Grants | str | Path | None,
        pins: Pins | str | Path | None,
        roots: Sequence[Any],
        patience: float,
        project: str,
        secrets: Secrets | None,
        settings: Mapping[str, Any],
    ) -> None:
        Terms(**settings)  # a wrong one shows at once
        self.policy = read_policy(policy)
        self.model = model
        self.patience = patience
        self.meter = Meter()
        self.problems: tuple[Problem, ...] = ()  # what of the configuration could not be read
        self._roots = roots
        self._project = project
        self.secrets = secrets or Secrets()  # what was looked up, so that it is masked wherever it would be told
        self._settings = settings
        self._members: dict[str, Member] = {}
        self._callers: dict[str, PerCaller] = {}
        self._listeners: list[tuple[str, Callable[[Event], Any]]] = []
        self._snapshots: dict[tuple[Kind, ...], tuple[list[Any], Catalog]] = {}
        self._open = False
        kept = grants if isinstance(grants, Grants) else Grants(grants)
        self.desk = Desk(self.policy, read_broker(consent), kept, _pins(pins, kept), self.tell)

    # Servers

    def add(self, name: str, target: Any, *, identity: str | None = None, source: str = "", **options: Any) -> Member:
        """One more server: any target of a `Client`. Options are those of `Terms`, and those of `Client`."""
        check_server(name)
        if name == SERVER:
            raise ValueError(f"{SERVER!r} is the name of the host's own tools")
        if name in self._members:
            raise ValueError(f"there is already a server {name!r}")
        own = {key: options.pop(key) for key in tuple(options) if key in Terms.__struct_fields__}
        settings = Terms(**{**self._settings, **own})
        enabled = options.pop("enabled", True)
        identity = identity or identity_of(target)
        credentials = options.pop("credentials", None)
        foreign, shown = options.pop("foreign", False), options.pop("shown", {"from": source} if source else {})
        answers = Answers(
            name,
            self.desk,
            self.model,
            self._roots if settings.roots is None else settings.roots,
            trusted=settings.trust,
            identity=identity,
            take=self._take,
        )

        async def make(**more: Any) -> Client:
            # Looking up a secret may take a while.
            to = await asyncio.to_thread(target) if callable(target) and not hasattr(target, "link") else target
            given: dict[str, Any] = {**(heard if _is_process(to) else {}), **answers.options(), **options, **more}
            for one in (to, given):
                self._mask_in(one)
            return Client(to, name=name, on_log=logged, **given)

        def logged(message: Any) -> None:
            self.tell(Event(kind="server.log", server=name, new=message.level, details=message))

        def wrote(line: str) -> None:
            self.tell(Event(kind="server.stderr", server=name, new=self.secrets.mask(line)))

        heard = {"stderr": wrote}

        async def permit() -> None:
            question = Question(
                server=name, kind="server.start", identity=identity, trusted=settings.trust, foreign=foreign
            )
            await self.desk.settle(question, details=shown)

        def barred() -> str:
            if not self._open:
                return "the host is not open: use it within `async with`"
            return "" if self._members.get(name) is member else "it was removed"

        member = Member(
            name,
            make,
            settings,
            self.tell,
            identity=identity,
            source=source,
            enabled=enabled,
            permit=permit,
            barred=barred,
            mask=self.secrets.mask,
            screen=answers.screened,
        )
        if credentials is not None:
            self._callers[name] = PerCaller(member, make, credentials)
        self._members[name] = member
        self.tell(Event(kind="server.added", server=name))
        if self._open and settings.start == "eager":
            self._begin(member)
        return member

    def _mask_in(self, told: Any) -> None:
        for part in ("env", "headers"):
            named = told.get(part) if isinstance(told, Mapping) else None
            if isinstance(named, Mapping):
                self.secrets.remember_named(named)

    async def remove(self, name: str) -> None:
        """Stop a server and forget it."""
        member = self._member(name)
        del self._members[name]
        callers = self._callers.pop(name, None)
        self.tell(Event(kind="server.removed", server=name))
        await asyncio.gather(member.stop(), *(one.stop() for one in (callers.members if callers else ())))

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
            raise NotOffered(no_server(name, self.servers, self.problems))
        return found

    @property
    def is_open(self) -> bool:
        """Whether it has been entered and not been left."""
        return self._open

    def member_for(self, member: Member, principal: str | None) -> Member:
        """The server as one caller of a gateway uses it; PolicyError if it does not know who that is."""
        callers = self._callers.get(member.name)
        return member if callers is None else callers.of(principal)

    def members_of(self, member: Member) -> tuple[Member, ...]:
        """A server, and the same server as single callers use it."""
        callers = self._callers.get(member.name)
        return (member,) if callers is None else (member, *callers.members)

    async def _take(self, server: str, what: str) -> None:
        rate = self.policy.quota(server, what).rate
        if rate is not None:
            self.meter.count(server, what, rate)

    def _begin(self, member: Member) -> None:
        async def begin() -> None:
            with contextlib.suppress(MCPError):  # its state says why
                await member.ready()

        member.spawn(begin())

    # Events

    def on(self, kind: str, function: Callable[[Event], Any]) -> Callable[[], None]:
        """Hear of events of a kind, which may be a glob; call what is returned to stop."""
        entry = (check_kind(kind), function)
        self._listeners.append(entry)

        def stop() -> None:
            if entry in self._listeners:
                self._listeners.remove(entry)

        return stop

    def tell(self, event: Event) -> None:
        """Tell everyone who wants to know."""
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
            try:
                await asyncio.wait(tasks, timeout=self.patience)
            finally:
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

    # One thing of one server

    def question(
        self, member: Member, kind: str, name: str, arguments: Mapping[str, Any] | None, declaration: Any = None
    ) -> Question:
        """What the policy is asked about one thing of one server."""
        question = Question(
            server=member.name,
            tool=name,
            kind=kind,
            schema=getattr(declaration, "input_schema", None) if kind == "tool.call" else None,
            annotations=getattr(declaration, "annotations", None) if kind.startswith("tool.") else None,
            trusted=member.settings.trust,
            identity=member.identity,
            project=self._project,
        )
        return question if arguments is None else question.with_arguments(arguments)

    def quota(self, member: Member, tool: str) -> Quota:
        """The limits of one tool."""
        return self.policy.quota(member.name, tool).tightened(member.settings.quota)

    async def find(self, name: str) -> tuple[Member, str]:
        """The server and the tool a name means."""
        server, dot, tool = name.partition(".")
        if dot and server in self._members:
            return self._members[server], tool
        found = self.known("tool").find(name) or (await self._listed("tool")).find(name)
        if found is None:
            raise NotOffered(no_tool(name, self.known("tool"), self.servers, self.problems))
        return self._members[found.server], found.name

    async def declared(self, member: Member, tool: str) -> Any:
        """The definition of a tool as it is now; NotOffered if there is none."""
        known = await member.current("tool")
        found = known.get(tool)
        if found is None or not self.shows(member, "tool", tool, found):
            shown = [name for name, one in known.items() if self.shows(member, "tool", name, one)]
            raise NotOffered(f"there is no tool {clip(tool)}{meant(tool, shown)}").at(server=member.name)
        return found

    async def check_same(self, member: Member, definition: Any) -> None:
        """PolicyError if a tool is no longer what was agreed to: asking may have taken a while."""
        now = await self.declared(member, definition.name)
        if now is not definition and fingerprint(now) != fingerprint(definition):
            text = f"{member.name}.{definition.name}: its definition changed while it was asked about; call it again"
            raise PolicyError(text).at(server=member.name)


def _is_process(target: Any) -> bool:
    if isinstance(target, Mapping):
        return "command" in target
    if isinstance(target, str):
        return "://" not in target and not target.startswith("unix:")
    return isinstance(target, Path | list | tuple)


def _pins(given: Pins | str | Path | None, grants: Grants) -> Pins:
    """Where definitions are kept: unless it is said, beside what was agreed to for them."""
    if given is None and grants.path is not None:
        return Pins(grants.path.with_name("pins.json"))
    return given if isinstance(given, Pins) else Pins(given)


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(a is b for a, b in zip(one, other, strict=True))


def _picked(tool: str, settings: Terms) -> bool:
    return any(fnmatchcase(tool, glob) for glob in settings.allow) and not any(
        fnmatchcase(tool, glob) for glob in settings.deny
    )
