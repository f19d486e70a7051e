"""Answering: what one server of a host may ask for — a form, a visit, the model, the roots — and who answers it.

Each server has its own, so an answer can only go to whoever asked. Policy comes first, then the person in charge.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from dovetail.errors import AnswerError, Declined, Dismissed, InvalidParams, MCPError, ModelError, PolicyError
from dovetail.host.consent import Deny, Edit, Later
from dovetail.host.deciding import Desk, Postponed, asked
from dovetail.host.models.model import Model, Reply
from dovetail.host.policy import Question
from dovetail.wire.codec import convert, plain
from dovetail.wire.elicitation import ElicitParams, ElicitResult
from dovetail.wire.sampling import CreateMessageParams, CreateMessageResult
from dovetail.wire.shape import replace

_KINDS: Final = {
    "elicitation/create": "elicit.form",
    "sampling/createMessage": "sampling.request",
    "roots/list": "roots.list",
}
_MOST_TOKENS: Final = 8192  # of one reply a server may have of the user's model


class Rejected(InvalidParams):
    """The user, or the policy, said no. spec: sampling#error-handling"""

    code = -1


class Answers:
    """The handlers of one server."""

    def __init__(
        self,
        server: str,
        desk: Desk,
        model: Model | None,
        roots: Sequence[Any] | Callable[[], Any],
        *,
        trusted: bool = False,
        identity: str = "",
        take: Callable[[str, str], Awaitable[None]] | None = None,
    ) -> None:
        self._server = server
        self._desk = desk
        self._model = model
        self._given = roots
        self._trusted = trusted
        self._identity = identity
        self._take = take  # counts against the server's share
        self._turn = asyncio.Lock()  # one question of a server at a time: a person has one attention

    def options(self) -> dict[str, Any]:
        """For the client: what is declared to the server is what can be answered."""
        found: dict[str, Any] = {"elicit": self.elicit, "elicit_url": self.elicit_url}
        if self._model is not None:
            found["sample"] = self.sample
        if self._given:
            found["roots"] = self.roots
        return found

    def _question(self, kind: str, arguments: dict[str, Any] | None = None) -> Question:
        return Question(
            server=self._server, kind=kind, arguments=arguments, trusted=self._trusted, identity=self._identity
        )

    def screened(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The answer to a question for somebody else's user, if the policy keeps it from them; None if it may be put.

        Whether it is answered is then for that user to say.
        """
        kind = "elicit.url" if params.get("mode") == "url" else _KINDS.get(method, method)
        decision = self._desk.look(self._question(kind))
        if decision.verdict not in ("deny", "hide"):
            return None
        self._desk.heard(self._question(kind), Deny(decision.reason), decision.reason)
        match method:
            case "elicitation/create":
                return {"action": "decline"}
            case "roots/list":
                return {"roots": []}
            case _:
                raise Rejected(f"The request was rejected: {decision.reason}")

    # Forms and visits

    async def elicit(self, question: ElicitParams) -> Any:
        """What a person fills in."""
        details = {"message": question.message, "schema": question.requested_schema or {}}
        return await self._asked("elicit.form", details)

    async def elicit_url(self, question: ElicitParams) -> Any:
        """Whether a person agrees to visit a page; opening it is the broker's business."""
        host = urlsplit(question.url or "").hostname or ""
        return await self._asked("elicit.url", {"message": question.message, "url": question.url, "host": host})

    async def _asked(self, kind: str, details: dict[str, Any]) -> Any:
        """A server's question is always for a person: a policy can only keep it from them."""
        decision = self._desk.look(self._question(kind))
        if decision.verdict in ("deny", "hide"):
            return ElicitResult(action="decline")
        async with self._turn:
            answer = await self._desk.broker.ask(asked(self._question(kind), decision.reason, details))
        self._desk.heard(self._question(kind), answer, decision.reason)
        match answer:
            case Edit():
                return answer.value
            case Deny(dismissed=True):
                raise Dismissed
            case Later():
                raise Postponed(answer.ticket)
            case Deny():
                raise Declined
            case _:
                if kind == "elicit.url":
                    return True
                raise AnswerError("a form is answered by what was filled in: Edit({...}) or a dict; or by Deny()")

    # The model

    async def sample(self, params: CreateMessageParams) -> CreateMessageResult:
        """What the host's model says. The server sees no other server's context, and gets no more than its share."""
        assert self._model is not None
        params = replace(params, include_context="none", max_tokens=min(params.max_tokens, _MOST_TOKENS))
        try:
            if self._take is not None:
                await self._take(self._server, "sampling.request")
            async with self._turn:
                settled = await self._desk.settle(
                    self._question("sampling.request"), details={"messages": plain(params.messages), **_said(params)}
                )
            if settled.edited is not None:
                params = _edited(params, settled.edited)
            reply = await self._replied(params, self._model)
            if reply.unread:
                raise ModelError(f"the model's call of a tool cannot be read: {next(iter(reply.unread.values()))}")
            return await self._reviewed(reply)
        except PolicyError as exc:
            raise Rejected(f"The sampling request was rejected: {exc.args[0]}") from None

    async def _replied(self, params: CreateMessageParams, model: Model) -> Reply:
        return await model.reply(
            params.messages,
            params.tools or (),
            max_tokens=params.max_tokens,
            system=params.system_prompt,
            temperature=params.temperature,
            stop=params.stop_sequences or (),
            choice=params.tool_choice,
            preferences=params.model_preferences,
        )

    async def _reviewed(self, reply: Reply) -> CreateMessageResult:
        content: Any = reply.content[0] if len(reply.content) == 1 else reply.content
        result = CreateMessageResult(
            role="assistant", content=content, model=reply.model, stop_reason=reply.stop_reason
        )
        async with self._turn:
            settled = await self._desk.settle(
                self._question("sampling.response"), details={"content": plain(result.content), "model": reply.model}
            )
        if settled.edited is None:
            return result
        return convert(
            plain(result) | {"content": _content(settled.edited)}, CreateMessageResult, what="an edited answer"
        )

    # Roots

    async def roots(self) -> Sequence[Any]:
        """The folders this server may work in."""
        given: Any = self._given() if callable(self._given) else self._given
        given = await given if asyncio.iscoroutine(given) else given
        try:
            settled = await self._desk.settle(self._question("roots.list"), details={"roots": [*map(str, given)]})
        except PolicyError:
            return []
        return given if settled.edited is None else settled.edited


def _said(params: CreateMessageParams) -> dict[str, Any]:
    told = {
        "system": params.system_prompt,
        "preferences": params.model_preferences,
        "tools": [tool.name for tool in params.tools or ()] or None,
        "max_tokens": params.max_tokens,
    }
    return {name: plain(value) for name, value in told.items() if value is not None}


def _content(edited: Any) -> Any:
    return {"type": "text", "text": edited} if isinstance(edited, str) else plain(edited)


def _edited(params: CreateMessageParams, edited: Any) -> CreateMessageParams:
    """The request as the person changed it: its messages, or any of its fields."""
    if isinstance(edited, str):
        edited = [{"role": "user", "content": _content(edited)}]
    changes = {"messages": plain(edited)} if isinstance(edited, list) else plain(edited)
    return convert(plain(params) | changes, CreateMessageParams, what="an edited request")


_CURES: Final = {"sampling": "Host(model=...)", "roots": "Host(roots=[...])"}


@contextmanager
def lacking() -> Generator[None]:
    """Whatever a server wanted to ask in vain, the error names what of the host would answer it."""
    try:
        yield
    except MCPError as exc:
        data = getattr(exc, "data", None)
        wanted: Any = data.get("requiredCapabilities") if isinstance(data, dict) else None
        cures = [_CURES[name] for name in wanted if name in _CURES] if isinstance(wanted, dict) else []
        if cures:
            exc.hint = f"give the host what answers it: {' and '.join(cures)}"
        raise
