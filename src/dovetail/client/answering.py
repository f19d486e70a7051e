"""The user's handlers for what a server may ask: forms, visits to a URL, a model, roots. Both eras end up here.

What is declared to the server is exactly what there are handlers for. An answer is checked against the schema it was
asked with before it leaves; a URL is never opened here, and only handed on if it is one a browser should open.
"""

import asyncio
import contextlib
import contextvars
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from dovetail.client.checking import Unusable, compile_schema, with_defaults
from dovetail.errors import (
    AnswerError,
    Declined,
    Dismissed,
    InvalidParams,
    MethodNotFound,
    ProtocolError,
    ResultError,
    clip,
)
from dovetail.protocol.http import LOOPBACK
from dovetail.wire.codec import convert, encode, plain
from dovetail.wire.content import TextContent
from dovetail.wire.elicitation import ElicitParams, ElicitResult
from dovetail.wire.incoming import body
from dovetail.wire.incoming import plain as raw_plain
from dovetail.wire.inputs import InputRequest
from dovetail.wire.lifecycle import ClientCapabilities, ElicitationCapability, RootsCapability, SamplingCapability
from dovetail.wire.roots import ListRootsResult, Root
from dovetail.wire.sampling import CreateMessageParams, CreateMessageResult

_TOLD: Final = 300

ElicitHandler: TypeAlias = Callable[[ElicitParams], Any]
SampleHandler: TypeAlias = Callable[[CreateMessageParams], Any]
RootsGiven: TypeAlias = Sequence[str | Path | Root] | Callable[[], Any]


Relay: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[Any]]

EVERYTHING: Final = ClientCapabilities(
    elicitation=ElicitationCapability(form={}, url={}),
    sampling=SamplingCapability(tools={}),
    roots=RootsCapability(list_changed=True),
)


class Answering:
    """What this client can be asked, and who answers."""

    def __init__(
        self,
        *,
        elicit: ElicitHandler | None = None,
        elicit_url: ElicitHandler | None = None,
        sample: SampleHandler | None = None,
        roots: RootsGiven | None = None,
    ) -> None:
        self._elicit = elicit
        self._elicit_url = elicit_url
        self._sample = sample
        self._roots = roots
        self.relay: Relay | None = None  # where questions go for which there is no handler
        self.own: Callable[[], bool] | None = None  # whether a question is for the handlers though there is a relay
        self.open = 0  # questions without an answer yet

    def capabilities(self) -> ClientCapabilities:
        """What the handlers stand for."""
        if (
            self.relay is not None
            and self.own is None
            and not any((self._elicit, self._elicit_url, self._sample, self._roots))
        ):
            return EVERYTHING
        elicitation = None
        if self._elicit is not None or self._elicit_url is not None:
            elicitation = ElicitationCapability(
                form={} if self._elicit is not None else None, url={} if self._elicit_url is not None else None
            )
        return ClientCapabilities(
            elicitation=elicitation,
            sampling=SamplingCapability(tools={}) if self._sample is not None else None,
            roots=RootsCapability(list_changed=True) if self._roots is not None else None,
        )

    async def answer(self, method: str, params: Any) -> Any:
        """The answer to one question, given as raw parameters; ProtocolError if it is none this client takes."""
        relay = self.relay if self.relay is not None and self._relays() else None
        return await self._answer(method, params, relay)

    async def _answer(self, method: str, params: Any, relay: Relay | None) -> Any:
        self.open += 1
        try:
            if relay is not None:
                return await relay(method, plain(params) if isinstance(params, dict) else raw_plain(params))
            return await self._handled(method, params)
        finally:
            self.open -= 1

    def _relays(self) -> bool:
        return self.capabilities() is EVERYTHING if self.own is None else not self.own()

    async def _handled(self, method: str, params: Any) -> Any:
        match method:
            case "elicitation/create" | "elicitation/createDialog":
                return _sendable("elicit", await self.elicited(_typed(params, ElicitParams, method)))
            case "sampling/createMessage" if self._sample is not None:
                question = _typed(params, CreateMessageParams, method)
                return _sendable("sample", await self._sampled(question, self._sample))
            case "roots/list" if self._roots is not None:
                return _sendable("roots", await self._listed(self._roots))
            case _:
                raise MethodNotFound(method)

    async def answer_all(self, questions: Mapping[str, InputRequest]) -> dict[str, Any]:
        """The answers to the questions of one round, one after the other: there is one user."""
        answers: dict[str, Any] = {}
        answer = self.answer if self.own is None else partial(self._answer, relay=None)
        for key, question in questions.items():
            try:
                answers[key] = plain(await answer(question.method, question.params))
            except MethodNotFound:
                raise AnswerError(f"nothing here answers {clip(question.method)}").at(hint=_hint(question)) from None
            except ProtocolError as exc:
                raise AnswerError(exc.message) from None
        return answers

    # Forms and visits

    async def elicited(self, question: ElicitParams) -> ElicitResult:
        """What the user does about one question."""
        handler = self._elicit if question.mode == "form" else self._elicit_url
        if handler is None:
            raise MethodNotFound(f"elicitation/create in {question.mode} mode")
        if question.mode == "url" and not presentable(question.url or ""):
            raise InvalidParams("Invalid params: url must be https, or http on this machine")
        try:
            given = await _called("elicit" if question.mode == "form" else "elicit_url", handler, question)
        except Declined:
            return ElicitResult(action="decline")
        except Dismissed:
            return ElicitResult(action="cancel")
        return _accepted(question, given)

    async def _sampled(self, question: CreateMessageParams, handler: SampleHandler) -> CreateMessageResult:
        given = await _called("sample", handler, question)
        if isinstance(given, str):
            return CreateMessageResult(role="assistant", content=TextContent(text=given), model="unknown")
        if not isinstance(given, CreateMessageResult):
            raise AnswerError(f"the sample handler must return a CreateMessageResult or text, not {_kind(given)}")
        return given

    async def _listed(self, given: RootsGiven) -> ListRootsResult:
        listed: Any = await _called("roots", given) if callable(given) else given
        if isinstance(listed, str | Path | Root):
            listed = [listed]  # one root, not its letters
        if not isinstance(listed, Iterable):
            raise AnswerError(f"the roots handler must return a list of paths, URIs or Root, not {_kind(listed)}")
        try:
            return ListRootsResult(roots=[_root(one) for one in listed])
        except AnswerError:
            raise
        except Exception as exc:
            raise _failed("roots", exc) from exc


def _typed(params: Any, kind: type[Any], method: str) -> Any:
    try:
        if params is None or isinstance(params, dict):
            return convert(params or {}, kind)
        return body(params, kind, method)
    except ResultError as exc:
        raise InvalidParams(f"Invalid params: {exc}") from None


def _accepted(question: ElicitParams, given: Any) -> ElicitResult:
    if isinstance(given, ElicitResult) and given.action != "accept":
        return given
    if given is None and question.mode == "form":
        return ElicitResult(action="decline")
    if question.mode == "url":
        return ElicitResult(action="decline" if given is False else "accept")
    content = plain(_sendable("elicit", given.content or {} if isinstance(given, ElicitResult) else given))
    if not isinstance(content, dict):
        raise AnswerError(f"the elicit handler must return the fields of the form, not {_kind(given)}")
    schema = question.requested_schema or {}
    filled = with_defaults(schema, content)
    _check(schema, filled)
    return ElicitResult(action="accept", content=filled)


def _check(schema: dict[str, Any], content: dict[str, Any]) -> None:
    try:
        fault = compile_schema(schema).check(content)
    except Unusable:
        return  # nothing can be said about it
    if fault is not None:
        raise AnswerError(f"the answer does not fit the form: {fault}")


def presentable(url: str) -> bool:
    """Whether a URL may be shown to a user to open: https, or http on this machine, and nothing hidden in it."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    if not host or not url.isprintable() or parts.username is not None:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK)


async def _called(name: str, handler: Callable[..., Any], *args: Any) -> Any:
    """What a handler returns; AnswerError names the one that failed, whatever it raised."""
    try:
        return await run(handler, *args)
    except (Declined, Dismissed) as exc:
        if name.startswith("elicit"):
            raise
        raise AnswerError(f"the {name} handler refused: {exc}") from None
    except (AnswerError, ProtocolError):
        raise
    except Exception as exc:
        raise _failed(name, exc) from exc


def _failed(name: str, exc: Exception) -> AnswerError:
    told = f"{_kind(exc)}: {clip(str(exc), _TOLD)}" if str(exc) else _kind(exc)
    return AnswerError(f"the {name} handler failed: {told}")


def _sendable(name: str, answer: Any) -> Any:
    """The same; AnswerError names the handler whose answer is nothing that JSON can say."""
    try:
        encode(answer)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise AnswerError(f"the {name} handler returned what cannot be sent: {clip(str(exc), _TOLD)}") from exc
    return answer


async def run(handler: Callable[..., Any], *args: Any) -> Any:
    """Call a handler; a plain function may wait for the user, so it has a thread of its own."""
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
        return await handler(*args)
    made = await _in_thread(handler, *args)
    return await made if inspect.isawaitable(made) else made


async def _in_thread(handler: Callable[..., Any], *args: Any) -> Any:
    """In a thread of its own that keeps no program alive: one that waits for a key must not outlast an interrupt."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, exc: BaseException | None) -> None:
        if not done.done():
            done.set_result(value) if exc is None else done.set_exception(exc)

    def work(_stdin: Any) -> None:
        value, fault = None, None
        try:
            value = context.run(handler, *args)
        except BaseException as exc:
            fault = exc if isinstance(exc, Exception) else AnswerError(f"the handler ended with {_kind(exc)}")
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, value, fault)

    context = contextvars.copy_context()
    # It holds on to stdin: an interpreter that ends while input() reads there would else try to close it, and abort.
    threading.Thread(target=work, args=(sys.stdin,), name="dovetail-handler", daemon=True).start()
    return await done


def _root(given: Any) -> Root:
    match given:
        case Root():
            return given
        case Path():
            return Root(uri=given.absolute().as_uri(), name=given.name or None)
        case str() if "://" in given:
            return Root(uri=given)
        case str():
            return _root(Path(given))
        case _:
            raise AnswerError(f"a root must be a path, a URI or a Root, not {_kind(given)}")


def _kind(value: Any) -> str:
    return type(value).__name__


def _hint(question: InputRequest) -> str:
    name = {
        "elicitation/create": "elicit_url" if (question.params or {}).get("mode") == "url" else "elicit",
        "sampling/createMessage": "sample",
        "roots/list": "roots",
    }.get(question.method)
    return f"pass {name}= to the client" if name else "ask the server's author what it needs"
