"""Seat: one server of a host, as a gateway mounts it.

Policy and consent come first, asked of the caller's own user; then the request is forwarded as it came, by the road of
the host's own requests. A caller's credentials are never handed on.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from dovetail.errors import (
    InternalError,
    InvalidParams,
    MCPError,
    NotOffered,
    PolicyError,
    PromptNotFound,
    ProtocolError,
    ResourceNotFound,
    ToolNotFound,
    clip,
)
from dovetail.host.asking import Needed, Round, Tickets, question_in
from dovetail.host.caller_pins import ANONYMOUS
from dovetail.host.consent import Answer, ConsentRequest, Deny, attended
from dovetail.host.member import Member
from dovetail.host.performing import barred, passed, performed
from dovetail.host.pins import fingerprint
from dovetail.host.policy import Question
from dovetail.host.roster import Roster
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.mounting import Hear, Kind
from dovetail.protocol.principal import Principal
from dovetail.server.tool import error_result
from dovetail.wire.lifecycle import ListChangedCapability, ResourcesCapability, ServerCapabilities
from dovetail.wire.shape import Result, Struct, replace

log = logging.getLogger("dovetail")

# Servers that sleep may have anything.
_ANYTHING: Final = ServerCapabilities(
    tools=ListChangedCapability(list_changed=True),
    prompts=ListChangedCapability(list_changed=True),
    resources=ResourcesCapability(subscribe=True, list_changed=True),
    completions={},
)


class Wanted(Struct, frozen=True):
    """What a request is about, as a policy sees it."""

    kind: str
    name: str
    arguments: dict[str, Any] | None = None
    part_of: str = ""  # the kind of the thing it is only a part of


class Seat:
    """One server of a host, as a gateway mounts it."""

    distant = True

    def __init__(self, host: Roster, member: Member, tickets: Tickets) -> None:
        self.name = member.name
        self.member = member
        self._host = host
        self._tickets = tickets

    def mountable(self) -> "Seat":
        """What a server mounts."""
        return self

    async def start(self) -> None:
        """Nothing is started before it is needed."""

    async def stop(self) -> None:
        """The host stops its servers."""

    def capabilities(self) -> ServerCapabilities:
        """What it may offer."""
        return _ANYTHING

    async def listed(self, kind: Kind, exchange: Exchange) -> Mapping[str, Any]:
        """What it offers this caller; of one that is slow or gone, what it offered last."""
        member = self.member
        try:
            member = self._of(exchange.caller.principal)
            async with asyncio.timeout(self._host.patience):
                found = await member.listed(kind)
        except PolicyError:
            return {}
        except (MCPError, TimeoutError):
            found = member.known.get(kind, {})
        return {name: one for name, one in found.items() if self._host.shows(member, kind, name, one)}

    async def holds(self, kind: Kind, name: str, exchange: Exchange) -> bool:
        """Whether it offers something of this name, or may."""
        return kind == "resource" or name in await self.listed(kind, exchange)

    def known(self, kind: Kind) -> Mapping[str, Any]:
        """What it offered last, to whomever."""
        found: dict[str, Any] = {}
        for member in self._host.members_of(self.member):
            found |= member.known.get(kind, {})
        return found

    def _of(self, principal: Principal | None) -> Member:
        return self._host.member_for(self.member, principal)

    # Changes

    def follow(self, hear: Hear) -> Callable[[], None]:
        """Hear of its changes."""
        return self.member.follow(hear)

    def audible(self, uri: str, principal: Principal | None) -> bool:
        """Whether a caller may hear of a resource."""
        try:
            member = self._of(principal)
        except PolicyError:
            return False
        return barred(self._host, member, "resource.read", uri) is None

    async def subscribed(self, uris: list[str], principal: Principal | None) -> Callable[[], None]:
        """Hear of these resources; a server that cannot tell of them keeps nobody from hearing of others."""
        wanted = [uri for uri in uris if self.audible(uri, principal)]
        if not wanted:
            return lambda: None
        try:
            return await self._of(principal).subscribe(wanted)
        except MCPError as exc:
            log.warning("%s does not tell of changes: %s", self.name, exc)
            return lambda: None

    # Requests

    async def serve(self, exchange: Exchange) -> Result | bytes:
        """Have it done, if it may be."""
        member = self.member
        try:
            member = self._of(exchange.caller.principal)
            return await self._served(exchange, member)
        except Needed as needed:
            return needed.result
        except PolicyError as exc:
            return _refused(exchange, exc)
        except ProtocolError:
            raise
        except NotOffered:
            raise _not_found(exchange) from None
        except MCPError as exc:
            log.warning("a request for %s failed: %s", self.name, exc)
            raise InternalError(f"{self.name} cannot be used now: {self._why(member)}") from None

    def _why(self, member: Member) -> str:
        """Its state, and the reason for it on one line, without what is secret or only for this machine's user."""
        said = str(member.reason.args[0]).partition("\n")[0] if member.reason is not None and member.reason.args else ""
        state = member.state.replace("_", " ")
        return f"{state}: {clip(self._host.secrets.mask(said))}" if said else state

    async def _served(self, exchange: Exchange, member: Member) -> Result | bytes:
        host, wanted = self._host, _wanted(exchange)
        self._check_there(member, wanted)
        definition = await host.declared(member, wanted.name) if wanted.kind == "tool.call" else None
        question = host.question(member, wanted.kind, wanted.name, wanted.arguments, definition)
        round_ = Round(exchange, self._tickets, self.name, "" if definition is None else fingerprint(definition))
        question = await self._agreed(question, definition, round_)
        if definition is not None:
            await host.check_same(member, definition)

        async def work(_: Any, most: float | None) -> Result | bytes:
            return await (await member.forwarding()).serve(exchange, most)

        with round_.going_on(**_changed_arguments(question, exchange.params)):
            result = await performed(host, member, question, work)
        if definition is not None and question_in(result, exchange.method) is None:
            ask = partial(self._ask_later, round_=round_)
            return await passed(host, member, definition, result, ask, question.caller)
        return round_.wrapped(result)

    def _check_there(self, member: Member, wanted: Wanted) -> None:
        """Before anything is started: what is hidden is not there, and neither are its parts."""
        why = barred(self._host, member, wanted.part_of or wanted.kind, wanted.name)
        if why is not None and (wanted.part_of or why.verdict == "hide"):
            raise why

    async def _agreed(self, question: Question, definition: Any, round_: Round) -> Question:
        """The question that was agreed to, perhaps with the user's own arguments."""
        settled = await self._host.desk.settle(
            replace(question, caller=round_.who or ANONYMOUS),
            definition,
            {"description": definition.description or ""} if definition is not None else {},
            ask=lambda request: self._ask(request, round_),
        )
        return settled.question

    async def _ask(self, request: ConsentRequest, round_: Round) -> Answer:
        if round_.able:
            return await round_.ask(request)
        return await self._ask_host(request, "it declares no elicitation")

    async def _ask_later(self, request: ConsentRequest, round_: Round) -> Answer:
        """When it has been done: another round would do it again."""
        if round_.at_once:
            return await round_.ask(request)
        return await self._ask_host(request, "it cannot be asked about what has come back")

    async def _ask_host(self, request: ConsentRequest, why: str) -> Answer:
        broker = self._host.desk.broker
        if not attended(broker):
            return Deny(f"this needs the user's consent, and the client cannot ask for it: {why}")
        return await broker.ask(request)


def _changed_arguments(question: Question, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that were judged, if they differ from those of the request."""
    given, judged = params.get("arguments"), question.arguments
    same = judged is None or judged is given or (given is None and not judged)
    return {} if same else {"arguments": judged}


def _wanted(exchange: Exchange) -> Wanted:
    params = exchange.params
    arguments = params.get("arguments")
    match exchange.method:
        case "tools/call":
            return Wanted("tool.call", str(params.get("name")), arguments if type(arguments) is dict else {})
        case "prompts/get":
            return Wanted("prompt.get", str(params.get("name")), arguments if type(arguments) is dict else {})
        case "resources/read":
            return Wanted("resource.read", str(params.get("uri")))
        case _:
            ref: Any = params.get("ref")
            part_of = "prompt.get" if ref.get("type") == "ref/prompt" else "resource.read"
            return Wanted("complete", str(ref.get("name") or ref.get("uri")), None, part_of)


def _refused(exchange: Exchange, exc: PolicyError) -> Result:
    if exc.verdict == "hide":
        raise _not_found(exchange)
    if exchange.method == "tools/call":
        return error_result(f"Not allowed: {exc.args[0]}")
    raise InvalidParams(f"Not allowed: {exc.args[0]}")


def _not_found(exchange: Exchange) -> ProtocolError:
    params = exchange.params
    match exchange.method:
        case "tools/call":
            return ToolNotFound(str(params.get("name")))
        case "resources/read":
            return ResourceNotFound(str(params.get("uri")))
        case "prompts/get":
            return PromptNotFound(str(params.get("name")))
        case _:
            return InvalidParams("Invalid params: there is nothing of this name")
