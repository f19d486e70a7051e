"""Client: one typed coroutine per method, whatever the server speaks and however it is reached."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from dovetail.client.answering import EVERYTHING
from dovetail.client.clock import Progress
from dovetail.client.listening import Listening
from dovetail.client.options import check_level, check_times, expect, expect_callable
from dovetail.client.relation import Relation
from dovetail.client.requesting import CALL, PLAIN, Options
from dovetail.client.rounds import Pending
from dovetail.client.values import contents_of, says_unknown, value_as, value_of
from dovetail.errors import MCPError, NotOffered
from dovetail.wire.completion import Completion
from dovetail.wire.inputs import InputRequest
from dovetail.wire.lifecycle import ClientCapabilities, DiscoverResult, RootsCapability
from dovetail.wire.logs import LoggingLevel
from dovetail.wire.meta import CLIENT_CAPABILITIES
from dovetail.wire.methods import METHODS
from dovetail.wire.prompts import GetPromptResult, ListPromptsResult, Prompt
from dovetail.wire.resources import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
)
from dovetail.wire.shape import replace
from dovetail.wire.subscriptions import SubscriptionFilter
from dovetail.wire.tools import CallToolResult, ListToolsResult, Tool

if TYPE_CHECKING:  # loaded once it is mounted
    from dovetail.client.forwarding import Forwarding, Screen

T = TypeVar("T")


class Client(Relation):
    """The caller's side of one server."""

    def mountable(
        self, *, shared: bool = False, announced: bool = True, screen: "Screen | None" = None
    ) -> "Forwarding":
        """The server behind this client, as another one mounts it: `app.mount(Client(...), "prefix")`.

        Its questions and log messages then go to whoever called, unless this client has handlers for them. `shared`:
        the handlers are only for what this client itself requests; `announced`: a handshake server is told that
        others may call. `screen` looks at each question before a caller is asked it.
        """
        from dovetail.client.forwarding import Forwarding

        relaying = partial(self._relaying, announced=announced)
        return Forwarding(self, self._requesting, self._mailbox, relaying, shared=shared, screen=screen)

    async def discover(self) -> DiscoverResult:
        """What the server speaks and can do."""
        await self._here(self._keeper.ready)
        if self._requesting.stateless:
            return await self._here(self._requesting.cached, METHODS["server/discover"], {})
        return DiscoverResult(
            supported_versions=[self.revision or ""], capabilities=self.capabilities, instructions=self.instructions
        )

    async def ping(self) -> None:
        """Ask for a sign of life."""
        await self._here(self._keeper.ready)
        method = "server/discover" if self._requesting.stateless else "ping"
        await self._here(self._requesting.once, METHODS[method], {})

    # Tools

    async def list_tools(self) -> list[Tool]:
        """All tools."""
        return await self._here(self._requesting.list_tools)

    async def list_tools_page(self, cursor: str | None = None) -> ListToolsResult:
        """One page of tools."""
        page = await self._here(self._requesting.page, "tools/list", "tools", Tool, cursor)
        requesting = self._requesting
        return replace(page, tools=requesting.tools.usable(page.tools, self.name, mirrors=requesting.mirrors))

    @overload
    async def call(self, tool: str, /, *, into: type[T], **arguments: Any) -> T: ...
    @overload
    async def call(self, tool: str, /, **arguments: Any) -> Any: ...
    async def call(self, tool: str, /, *_others: Any, into: Any = None, **arguments: Any) -> Any:
        """Call a tool and get its value; ToolError if it failed.

        `into`: the type the value is to have. For options, or an argument called `into`, use `call_tool`.
        """
        if _others:
            raise TypeError(
                f"arguments are given by name: call({tool!r}, name=value), call({tool!r}, **arguments), or "
                f"call_tool({tool!r}, arguments)"
            )
        result = await self.call_tool(tool, arguments)
        if result.is_error and (missing := says_unknown(result, tool)) is not None:
            raise self._requesting.advised(missing, CALL.name, {"name": tool}) from None
        known, stateless = self._requesting.tools.get(tool), self._requesting.stateless
        wraps = known.wraps(stateless=stateless) if known is not None else None if stateless else True
        try:
            return value_of(result, wraps=wraps) if into is None else value_as(result, into, wraps=wraps)
        except MCPError as exc:
            raise self._requesting.located(exc, CALL.name, {"name": tool}) from None

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        total: float | None = None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
        retry: bool | None = None,
    ) -> CallToolResult:
        """Call a tool and get its whole result, also one that says it failed.

        `timeout` counts from the last sign of life, `total` from the beginning. `progress(done, total, message)` is
        called on the way. `retry=True`: it may run twice; else only what the tool declares harmless is repeated.
        """
        options = _options(timeout, total, progress, meta, retry)
        if type(arguments) is not dict:
            expect("arguments", arguments, Mapping, "a dict")
        params = {"name": name, "arguments": dict(arguments or {})}
        return await self._here(self._requesting.through, CALL, params, options)

    async def start_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        total: float | None = None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
        retry: bool | None = None,
    ) -> CallToolResult | Pending:
        """As `call_tool`, but questions come back as a Pending, to be answered with `resume`, here or elsewhere.

        No handlers are needed: without any, the server is told that everything may be asked. A handshake server cannot
        wait like that: its questions go to the handlers as ever.
        """
        options = _options(timeout, total, progress, await self._declaring(meta), retry)
        if type(arguments) is not dict:
            expect("arguments", arguments, Mapping, "a dict")
        params = {"name": name, "arguments": dict(arguments or {})}
        return await self._here(self._requesting.once, CALL, params, options)

    async def resume(
        self,
        pending: Pending,
        answers: Mapping[str, Any],
        *,
        timeout: float | None = None,
        total: float | None = None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Any:
        """Go on with what was pending: the result of its method, or a further Pending."""
        expect("pending", pending, Pending, "a Pending")
        expect("answers", answers, Mapping, "a dict: an answer for each key of pending.questions")
        row, params = METHODS.get(pending.method), pending.answered(answers)
        if row is None or not row.asks:
            raise ValueError(f"a pending {pending.method!r} cannot be resumed: no server asks during that")
        options = _options(timeout, total, progress, await self._declaring(meta), None)
        return await self._here(self._requesting.once, row, params, options, pending.rounds)

    async def answer(self, questions: Mapping[str, InputRequest]) -> dict[str, Any]:
        """What the handlers answer to questions of a Pending, for those who resume it themselves."""
        return await self._here(self._answering.answer_all, questions)

    async def _declaring(self, meta: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """What goes with a request whose questions come back: with no handlers, all may be asked."""
        await self._here(self._keeper.ready)
        if not self._requesting.stateless or self._answering.capabilities() != ClientCapabilities():
            return meta
        given = self._remembering.identity.capabilities
        told = replace(
            EVERYTHING, roots=RootsCapability(), experimental=given.experimental, extensions=given.extensions
        )
        return {CLIENT_CAPABILITIES: told, **(meta or {})}

    # Resources

    async def list_resources(self) -> list[Resource]:
        """All resources."""
        return await self._here(self._requesting.whole, "resources/list", "resources", Resource)

    async def list_resources_page(self, cursor: str | None = None) -> ListResourcesResult:
        """One page of resources."""
        return await self._here(self._requesting.page, "resources/list", "resources", Resource, cursor)

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        """All resource templates."""
        method, field = "resources/templates/list", "resource_templates"
        return await self._here(self._requesting.whole, method, field, ResourceTemplate)

    async def list_resource_templates_page(self, cursor: str | None = None) -> ListResourceTemplatesResult:
        """One page of resource templates."""
        method, field = "resources/templates/list", "resource_templates"
        return await self._here(self._requesting.page, method, field, ResourceTemplate, cursor)

    async def read(self, uri: str) -> Any:
        """What a resource holds: text or bytes, or a list of them where it has several parts."""
        return contents_of(await self.read_resource(uri))

    async def read_resource(
        self, uri: str, *, timeout: float | None = None, meta: Mapping[str, Any] | None = None
    ) -> ReadResourceResult:
        """The whole result of reading a resource."""
        options = _options(timeout, None, None, meta, None)
        return await self._here(self._requesting.cached, METHODS["resources/read"], {"uri": uri}, options)

    # Prompts and completion

    async def list_prompts(self) -> list[Prompt]:
        """All prompts."""
        return await self._here(self._requesting.whole, "prompts/list", "prompts", Prompt)

    async def list_prompts_page(self, cursor: str | None = None) -> ListPromptsResult:
        """One page of prompts."""
        return await self._here(self._requesting.page, "prompts/list", "prompts", Prompt, cursor)

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> GetPromptResult:
        """A prompt, filled in."""
        expect("arguments", arguments, Mapping, "a dict")
        params: dict[str, Any] = {"name": name}
        if arguments:
            params["arguments"] = dict(arguments)
        options = _options(timeout, None, None, meta, None)
        return await self._here(self._requesting.through, METHODS["prompts/get"], params, options)

    async def complete(
        self,
        argument: str,
        value: str,
        *,
        prompt: str | None = None,
        template: str | None = None,
        context: Mapping[str, str] | None = None,
    ) -> Completion:
        """Suggestions for an argument of a prompt, or of a resource template, of which `value` has been typed."""
        if (prompt is None) == (template is None):
            raise ValueError("give either prompt= or template=")
        ref = {"type": "ref/prompt", "name": prompt} if template is None else {"type": "ref/resource", "uri": template}
        params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
        if context:
            params["context"] = {"arguments": dict(context)}
        result = await self._here(self._requesting.once, METHODS["completion/complete"], params)
        return result.completion

    # Changes and the rest

    def listen(
        self,
        *,
        tools: bool | None = None,
        prompts: bool | None = None,
        resources: bool | None = None,
        uris: Iterable[str] = (),
    ) -> Listening:
        """Hear of changes: of the lists that are set to True and of the resources at these URIs; of all lists if you
        name nothing, or only what you do not want.

        Use it as `async for change in client.listen(...)`; within `async with` you know when it has begun.
        """
        found = [uris] if isinstance(uris, str) else [*uris]
        others = not (tools or prompts or resources or found)  # whether a list that is not named is wanted
        wanted = SubscriptionFilter(
            tools_list_changed=others if tools is None else tools,
            prompts_list_changed=others if prompts is None else prompts,
            resources_list_changed=others if resources is None else resources,
            resource_subscriptions=found or None,
        )
        return Listening(
            self._keeper, wanted, self.limits, self.timeouts.read, self._listeners, self._here, self._requesting.heard
        )

    async def subscribe(self, uri: str) -> None:
        """Ask a handshake server to tell when a resource changes, after a reconnect too.

        `listen` does this on every revision.
        """
        conversation = await self._here(self._keeper.ready)
        if not self._requesting.stateless:
            await self._here(conversation.channel.hearing)
        await self._handshake_only("resources/subscribe", {"uri": uri})
        current, kept = self._keeper.current, self._remembering.subscriptions
        if uri not in kept:
            kept.add(uri)
            if current is not None:
                current.subscribed[uri] += 1

    async def unsubscribe(self, uri: str) -> None:
        """Take back `subscribe`; what listens to the resource goes on listening."""
        current, kept = self._keeper.current, self._remembering.subscriptions
        if uri in kept:
            kept.discard(uri)
            if current is not None:
                current.subscribed[uri] -= 1
        if current is None or current.subscribed[uri] <= 0:
            await self._handshake_only("resources/unsubscribe", {"uri": uri})

    async def set_log_level(self, level: LoggingLevel) -> None:
        """The least severity of the log messages wanted from now on."""
        check_level("level", level)
        conversation = await self._here(self._keeper.ready)
        identity = self._remembering.identity = replace(self._remembering.identity, level=level)
        if conversation.speaker is not None and conversation.speaker.stateless:
            conversation.speaker = identity.speaker(conversation.speaker.revision)
        else:
            await self._handshake_only("logging/setLevel", {"level": level})

    async def roots_changed(self) -> None:
        """Tell the server that the roots are others now; a stateless server asks for them each time anyway."""
        conversation = await self._here(self._keeper.ready)
        if not self._requesting.stateless:
            await self._here(conversation.tell, "notifications/roots/list_changed")

    async def shutdown(self) -> None:
        """Ask a handshake server to end the session, then leave it."""
        await self._here(self._keeper.ready)
        if self._requesting.stateless:
            raise self._requesting.located(NotOffered("shutdown is not part of this revision"), "shutdown")
        await self.request("shutdown")  # whose result is null
        await self.close()

    async def _handshake_only(self, method: str, params: dict[str, Any]) -> None:
        await self._here(self._keeper.ready)
        if self._requesting.stateless:
            error = NotOffered(f"{method} is not part of this revision").at(hint=_INSTEAD.get(method))
            raise self._requesting.located(error, method, params)
        await self._here(self._requesting.once, METHODS[method], params)

    async def request(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Any:
        """Any request at all, for extensions: the result as plain JSON. It is never repeated."""
        return await self._here(self._requesting.any, method, dict(params or {}), timeout)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Any notification at all, for extensions."""
        conversation = await self._here(self._keeper.ready)
        await self._here(conversation.tell, method, dict(params or {}))


_INSTEAD = {
    "resources/subscribe": "listen(uris=[...]) tells of changes in every revision",
    "resources/unsubscribe": "listen(uris=[...]) tells of changes in every revision",
}


def _options(
    timeout: float | None,
    total: float | None,
    progress: Progress | None,
    meta: Mapping[str, Any] | None,
    retry: bool | None,
) -> Options:
    if timeout is None and total is None and progress is None and meta is None and retry is None:
        return PLAIN
    check_times(timeout=timeout, total=total)
    expect_callable("progress", progress)
    expect("meta", meta, Mapping, "a dict")
    return Options(timeout=timeout, total=total, progress=progress, meta=meta, retry=retry)
