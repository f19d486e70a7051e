"""Client: one typed coroutine per method of the protocol, for every protocol version and every kind of target."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, TypeVar, overload

from dovetail.client.deadlines import ProgressHandler
from dovetail.client.handlers import (
    ALL_CAPABILITIES,
    ElicitationHandler,
    LogHandler,
    RootsProvider,
    SamplingHandler,
)
from dovetail.client.input_rounds import PendingRequest, build_resume_params
from dovetail.client.option_checks import check_callable, check_durations, check_log_level, check_type
from dovetail.client.pagination import PROMPTS, RESOURCES, TEMPLATES, TOOLS
from dovetail.client.request_sender import CALL_TOOL, DEFAULT_OPTIONS, RequestOptions
from dovetail.client.result_values import convert_value, extract_contents, extract_value, find_unknown_tool_error
from dovetail.client.session import Session
from dovetail.client.subscription import Subscription
from dovetail.client.targets import Target, resolve_target
from dovetail.error_context import add_context
from dovetail.errors import MCPError, NotSupported
from dovetail.oauth.login.login_settings import ClientAuth
from dovetail.protocol.limits import ClientLimits, Timeouts
from dovetail.protocol.middleware import Middleware
from dovetail.protocol.negotiation import Era
from dovetail.protocol.stats import ClientStats
from dovetail.version import VERSION
from dovetail.wire.base import JSONValue, replace
from dovetail.wire.completion import Completion
from dovetail.wire.input_required import InputRequest
from dovetail.wire.lifecycle import (
    ClientCapabilities,
    DiscoverResult,
    Implementation,
    RootsCapability,
    ServerCapabilities,
)
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
from dovetail.wire.subscriptions import SubscriptionFilter
from dovetail.wire.tools import CallToolResult, ListToolsResult, Tool

if TYPE_CHECKING:  # loaded once it is mounted
    from dovetail.client.mounted_client import InputFilter, MountedClient

T = TypeVar("T")


class ClientOptions(TypedDict, total=False):
    """The options of `Client` and `SyncClient`."""

    name: str | None
    headers: Mapping[str, str] | None
    auth: ClientAuth | None
    env: Mapping[str, str] | None
    cwd: str | Path | None
    elicitation_handler: ElicitationHandler | None
    url_elicitation_handler: ElicitationHandler | None
    sampling_handler: SamplingHandler | None
    roots: RootsProvider | None
    log_handler: LogHandler | None
    log_level: LoggingLevel | None
    protocol_version: str | Era | None
    client_info: Implementation | None
    capabilities: ClientCapabilities | None
    timeout: float | Timeouts | None
    limits: ClientLimits | None
    cache: bool
    validate_results: bool
    middleware: Sequence[Middleware]
    recording: str | Path | None


class Client:
    """A client of one server.

    target: a URL, a command as a list, a script, a `Server`, "unix:/path", "tcp://host:port", an entry of an mcp.json,
    an `HTTPTarget`, a `CommandTarget`, or a transport of your own.
    name: the name of the server in errors and logs.
    headers, auth: for a URL. env, cwd: for a command. `HTTPTarget` and `CommandTarget` have more options.
    timeout: seconds for one request, or a `Timeouts`.
    protocol_version: insist on a version, or on the newest version of the "handshake" or the "stateless" era.
    """

    def __init__(
        self,
        target: Target,
        *,
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
        auth: ClientAuth | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        elicitation_handler: ElicitationHandler | None = None,
        url_elicitation_handler: ElicitationHandler | None = None,
        sampling_handler: SamplingHandler | None = None,
        roots: RootsProvider | None = None,
        log_handler: LogHandler | None = None,
        log_level: LoggingLevel | None = None,
        protocol_version: str | Era | None = None,
        client_info: Implementation | None = None,
        capabilities: ClientCapabilities | None = None,
        timeout: float | Timeouts | None = None,
        limits: ClientLimits | None = None,
        cache: bool = True,
        validate_results: bool = True,
        middleware: Sequence[Middleware] = (),
        recording: str | Path | None = None,
    ) -> None:
        check_type("name", name, str, "a text")
        check_type("limits", limits, ClientLimits, "a ClientLimits(...)")
        check_type("recording", recording, (str, Path), "the path of a file")
        limits, timeouts = limits or ClientLimits(), _build_timeouts(timeout)
        resolved = resolve_target(
            target, limits=limits, timeouts=timeouts, headers=headers, auth=auth, env=env, cwd=cwd
        )
        self._session = session = Session(
            resolved.create_transport,
            name=name or resolved.name,
            key=resolved.key,
            client_info=client_info or Implementation(name="dovetail", version=VERSION),
            protocol_version=protocol_version,
            elicitation_handler=elicitation_handler,
            url_elicitation_handler=url_elicitation_handler,
            sampling_handler=sampling_handler,
            roots=roots,
            log_handler=log_handler,
            log_level=log_level,
            capabilities=capabilities,
            timeouts=timeouts,
            limits=limits,
            cache=cache,
            validate_results=validate_results,
            middleware=middleware,
        )
        recording_path = recording or os.environ.get("DOVETAIL_RECORDING")
        if recording_path:
            from dovetail.recording.trace import RecordingWriter

            session.recorders.append(RecordingWriter(recording_path, session.name).record)
        self._sender = session.sender
        self._run = session.run_on_loop  # every request runs on the loop of the session

    def middleware(self, function: Middleware) -> Middleware:
        """Put a function around every request: `async def around(exchange, call_next)`, awaiting `call_next(exchange)`.

        It sees the result as its type, or a `PendingRequest`. It does not see the requests that open a connection, nor
        results that come from the cache.
        """
        self._session.add_middleware(function)
        return function

    def __mountable__(self) -> "MountedClient":
        return mount_client(self)

    # Opening and closing

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Open the connection now. Otherwise the first request opens it."""
        await self._session.connect()

    async def close(self) -> None:
        """Close the connection. Any task or thread may call this, as often as it likes. `connect` opens it again."""
        await self._session.close()

    # State

    @property
    def name(self) -> str:
        """The name of the server in errors and logs."""
        return self._session.name

    def stats(self) -> ClientStats:
        """Return what is open or running now. Any thread may call this. All counts are 0 when nothing is left."""
        return self._session.stats()

    @property
    def is_connected(self) -> bool:
        """Whether a connection is open."""
        return self._session.current is not None

    @property
    def protocol_version(self) -> str | None:
        """The protocol version of the connection, or None if none is open."""
        return self._session.protocol_version

    @property
    def server_info(self) -> Implementation | None:
        """The name and the version of the server, as it gives them."""
        current = self._session.current
        return None if current is None else current.server_info

    @property
    def server_capabilities(self) -> ServerCapabilities:
        """The capabilities that the server declares."""
        current = self._session.current
        return ServerCapabilities() if current is None else current.server_capabilities

    @property
    def instructions(self) -> str | None:
        """The server's instructions for models."""
        current = self._session.current
        return None if current is None else current.instructions

    @property
    def invalid_message_count(self) -> int:
        """How many invalid messages the server has written on this connection."""
        current = self._session.current
        return 0 if current is None else current.invalid_message_count

    @property
    def skipped_items(self) -> list[str]:
        """The malformed items that are missing from the lists read so far, and why."""
        return self._sender.skipped_items.list_reasons()

    async def discover(self) -> DiscoverResult:
        """Return the protocol versions and capabilities of the server."""
        await self._run(self._session.reconnector.get_connection)
        if self._sender.is_stateless:
            return await self._run(self._sender.send_cached, METHODS["server/discover"], {})
        return DiscoverResult(
            supported_versions=[self.protocol_version or ""],
            capabilities=self.server_capabilities,
            instructions=self.instructions,
        )

    async def ping(self) -> None:
        """Check that the server answers."""
        await self._run(self._session.reconnector.get_connection)
        method = "server/discover" if self._sender.is_stateless else "ping"
        await self._run(self._sender.send, METHODS[method], {})

    # Tools

    async def list_tools(self) -> list[Tool]:
        """Return all tools."""
        return await self._run(self._sender.list_all, TOOLS)

    async def list_tools_page(self, cursor: str | None = None) -> ListToolsResult:
        """Return one page of tools."""
        page = await self._run(self._sender.list_page, TOOLS, cursor)
        sender = self._sender
        return replace(
            page, tools=sender.tool_index.add_listed(page.tools, self.name, sends_headers=sender.sends_headers)
        )

    @overload
    async def call(self, tool: str, /, *, into: type[T], **arguments: Any) -> T: ...
    @overload
    async def call(self, tool: str, /, **arguments: Any) -> Any: ...
    async def call(self, tool: str, /, *_args: Any, into: Any = None, **arguments: Any) -> Any:
        """Call a tool and return its value. Raise ToolError if the tool failed.

        `into` is the type to convert the value to. For options, or an argument named `into`, use `call_tool`.
        """
        if _args:
            raise TypeError(
                f"arguments are given by name: call({tool!r}, name=value), call({tool!r}, **arguments), or "
                f"call_tool({tool!r}, arguments)"
            )
        result = await self.call_tool(tool, arguments)
        if result.is_error and (not_found := find_unknown_tool_error(result, tool)) is not None:
            raise self._sender.add_name_hint(not_found, CALL_TOOL.name, {"name": tool}) from None
        entry, is_stateless = self._sender.tool_index.get(tool), self._sender.is_stateless
        is_wrapped = (
            entry.is_wrapped(is_stateless=is_stateless) if entry is not None else None if is_stateless else True
        )
        try:
            return (
                extract_value(result, is_wrapped=is_wrapped)
                if into is None
                else convert_value(result, into, is_wrapped=is_wrapped)
            )
        except MCPError as exc:
            raise self._sender.add_request_context(exc, CALL_TOOL.name, {"name": tool}) from None

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        *,
        timeout: float | None = None,
        total_timeout: float | None = None,
        progress_handler: ProgressHandler | None = None,
        meta: Mapping[str, JSONValue] | None = None,
        retry: bool | None = None,
        allow_input_required: Literal[False] = False,
    ) -> CallToolResult: ...
    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        *,
        timeout: float | None = None,
        total_timeout: float | None = None,
        progress_handler: ProgressHandler | None = None,
        meta: Mapping[str, JSONValue] | None = None,
        retry: bool | None = None,
        allow_input_required: bool,
    ) -> CallToolResult | PendingRequest: ...
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        *,
        timeout: float | None = None,
        total_timeout: float | None = None,
        progress_handler: ProgressHandler | None = None,
        meta: Mapping[str, JSONValue] | None = None,
        retry: bool | None = None,
        allow_input_required: bool = False,
    ) -> CallToolResult | PendingRequest:
        """Call a tool and return its whole result, also if the tool failed.

        `timeout` counts from the last progress, `total_timeout` from the start. `progress_handler` receives
        `(progress, total, message)`. `retry=True` allows the call to run twice. Otherwise only calls that the tool
        declares safe to repeat are retried.

        `allow_input_required=True` returns a `PendingRequest` when the server asks for input, instead of calling the
        handlers. Answer it with `resume`, in this process or in another. A handshake server cannot wait for that, so
        its requests always go to the handlers. If the client has no handlers, it declares all capabilities.
        """
        if allow_input_required:
            meta = await self._declare_capabilities(meta)
        options = _build_options(timeout, total_timeout, progress_handler, meta, retry)
        if type(arguments) is not dict:
            check_type("arguments", arguments, Mapping, "a dict")
        params = {"name": name, "arguments": dict(arguments or {})}
        started_at = time.monotonic()
        result = await self._run(self._sender.send, CALL_TOOL, params, options)
        if allow_input_required or not isinstance(result, PendingRequest):
            return result
        return await self._run(self._sender.complete, result, options, started_at)

    async def resume(
        self,
        pending: PendingRequest,
        responses: Mapping[str, Any],
        *,
        timeout: float | None = None,
        total_timeout: float | None = None,
        progress_handler: ProgressHandler | None = None,
        meta: Mapping[str, JSONValue] | None = None,
    ) -> Any:
        """Answer a pending request. Return the result of its method, or another `PendingRequest`."""
        check_type("pending", pending, PendingRequest, "a PendingRequest")
        check_type("responses", responses, Mapping, "a dict with a response for each key of pending.input_requests")
        row, params = METHODS.get(pending.method), build_resume_params(pending, responses)
        if row is None or not row.may_require_input:
            raise ValueError(f"cannot resume {pending.method!r}: the method never requires input")
        options = _build_options(timeout, total_timeout, progress_handler, await self._declare_capabilities(meta), None)
        return await self._run(self._sender.send, row, params, options, pending.round)

    async def answer_input_requests(self, requests: Mapping[str, InputRequest]) -> dict[str, Any]:
        """Call the handlers for the input requests of a `PendingRequest`. Return the responses for `resume`."""
        return await self._run(self._session.handlers.answer_all, requests)

    async def _declare_capabilities(self, meta: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return the `_meta` of a request whose input requests come back. Without handlers, it declares all of them."""
        await self._run(self._session.reconnector.get_connection)
        if not self._sender.is_stateless or self._session.handlers.capabilities() != ClientCapabilities():
            return meta
        own_capabilities = self._session.connector.identity.capabilities
        capabilities = replace(
            ALL_CAPABILITIES,
            roots=RootsCapability(),
            experimental=own_capabilities.experimental,
            extensions=own_capabilities.extensions,
        )
        return {CLIENT_CAPABILITIES: capabilities, **(meta or {})}

    # Resources

    async def list_resources(self) -> list[Resource]:
        """Return all resources."""
        return await self._run(self._sender.list_all, RESOURCES)

    async def list_resources_page(self, cursor: str | None = None) -> ListResourcesResult:
        """Return one page of resources."""
        return await self._run(self._sender.list_page, RESOURCES, cursor)

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        """Return all resource templates."""
        return await self._run(self._sender.list_all, TEMPLATES)

    async def list_resource_templates_page(self, cursor: str | None = None) -> ListResourceTemplatesResult:
        """Return one page of resource templates."""
        return await self._run(self._sender.list_page, TEMPLATES, cursor)

    async def read(self, uri: str) -> Any:
        """Return the content of a resource: text or bytes, or a list of them if it has several parts."""
        return extract_contents(await self.read_resource(uri))

    async def read_resource(
        self, uri: str, *, timeout: float | None = None, meta: Mapping[str, JSONValue] | None = None
    ) -> ReadResourceResult:
        """Read a resource and return the whole result."""
        options = _build_options(timeout, None, None, meta, None)
        return await self._run(self._sender.send_cached, METHODS["resources/read"], {"uri": uri}, options)

    # Prompts and completion

    async def list_prompts(self) -> list[Prompt]:
        """Return all prompts."""
        return await self._run(self._sender.list_all, PROMPTS)

    async def list_prompts_page(self, cursor: str | None = None) -> ListPromptsResult:
        """Return one page of prompts."""
        return await self._run(self._sender.list_page, PROMPTS, cursor)

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
        meta: Mapping[str, JSONValue] | None = None,
    ) -> GetPromptResult:
        """Return a prompt, filled in with the arguments."""
        check_type("arguments", arguments, Mapping, "a dict")
        params: dict[str, Any] = {"name": name}
        if arguments:
            params["arguments"] = dict(arguments)
        options = _build_options(timeout, None, None, meta, None)
        return await self._run(self._sender.send_until_complete, METHODS["prompts/get"], params, options)

    async def complete(
        self,
        argument: str,
        value: str,
        *,
        prompt: str | None = None,
        template: str | None = None,
        context: Mapping[str, str] | None = None,
    ) -> Completion:
        """Return suggestions for an argument of a prompt or a resource template. `value` is the text typed so far."""
        if (prompt is None) == (template is None):
            raise ValueError("give either prompt= or template=")
        ref = {"type": "ref/prompt", "name": prompt} if template is None else {"type": "ref/resource", "uri": template}
        params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
        if context:
            params["context"] = {"arguments": dict(context)}
        result = await self._run(self._sender.send, METHODS["completion/complete"], params)
        return result.completion

    # Changes and the rest

    def listen(
        self,
        *,
        tools: bool | None = None,
        prompts: bool | None = None,
        resources: bool | None = None,
        uris: Iterable[str] = (),
    ) -> Subscription:
        """Receive changes of the lists that are True and of the resources at these URIs.

        If no list is True and there are no URIs, all lists count, except those that are False. Use it as `async for
        change in client.listen(...)`. Enter it with `async with` first to know when it has begun.
        """
        uri_list = [uris] if isinstance(uris, str) else [*uris]
        default = not (tools or prompts or resources or uri_list)  # whether a list that is not named is wanted
        subscription_filter = SubscriptionFilter(
            tools_list_changed=default if tools is None else tools,
            prompts_list_changed=default if prompts is None else prompts,
            resources_list_changed=default if resources is None else resources,
            resource_subscriptions=uri_list or None,
        )
        return Subscription(
            self._session.reconnector,
            subscription_filter,
            self._session.limits,
            self._session.timeouts.request,
            self._session.subscriptions,
            self._run,
            self._sender.invalidate,
        )

    async def subscribe_resource(self, uri: str) -> None:
        """Ask a handshake server for notices when a resource changes, after a reconnect too.

        `listen` works with every protocol version.
        """
        connection = await self._run(self._session.reconnector.get_connection)
        if not self._sender.is_stateless:
            await self._run(connection.transport.wait_until_listening)
        await self._send_handshake_request("resources/subscribe", {"uri": uri})
        current, subscriptions = self._session.reconnector.current, self._session.connector.resource_subscriptions
        if uri not in subscriptions:
            subscriptions.add(uri)
            if current is not None:
                current.subscriber_counts[uri] += 1

    async def unsubscribe_resource(self, uri: str) -> None:
        """Undo `subscribe_resource`. A `listen` of the same resource goes on."""
        current, subscriptions = self._session.reconnector.current, self._session.connector.resource_subscriptions
        if uri in subscriptions:
            subscriptions.discard(uri)
            if current is not None:
                current.subscriber_counts[uri] -= 1
        if current is None or current.subscriber_counts[uri] <= 0:
            await self._send_handshake_request("resources/unsubscribe", {"uri": uri})

    async def set_logging_level(self, level: LoggingLevel) -> None:
        """Set the lowest level of the log messages that the server sends."""
        check_log_level("level", level)
        connection = await self._run(self._session.reconnector.get_connection)
        identity = self._session.connector.identity = replace(self._session.connector.identity, log_level=level)
        if connection.encoder is not None and connection.encoder.is_stateless:
            connection.encoder = identity.create_encoder(connection.encoder.revision)
        else:
            await self._send_handshake_request("logging/setLevel", {"level": level})

    async def send_roots_list_changed(self) -> None:
        """Notify the server that the roots have changed. A stateless server asks for them each time instead."""
        connection = await self._run(self._session.reconnector.get_connection)
        if not self._sender.is_stateless:
            await self._run(connection.notify, "notifications/roots/list_changed")

    async def shutdown(self) -> None:
        """Ask a handshake server to end its session, then close the connection."""
        await self._run(self._session.reconnector.get_connection)
        if self._sender.is_stateless:
            raise self._sender.add_request_context(NotSupported("shutdown is not part of this revision"), "shutdown")
        await self.request("shutdown")  # whose result is null
        await self.close()

    async def _send_handshake_request(self, method: str, params: dict[str, Any]) -> None:
        await self._run(self._session.reconnector.get_connection)
        if self._sender.is_stateless:
            error = add_context(
                NotSupported(f"{method} is not part of this revision"), hint=_STATELESS_HINTS.get(method)
            )
            raise self._sender.add_request_context(error, method, params)
        await self._run(self._sender.send, METHODS[method], params)

    async def request(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Any:
        """Send any request, for extensions. Return the result as plain JSON. It is never sent twice."""
        return await self._run(self._sender.send_raw, method, dict(params or {}), timeout)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send any notification, for extensions."""
        connection = await self._run(self._session.reconnector.get_connection)
        await self._run(connection.notify, method, dict(params or {}))


_STATELESS_HINTS = {
    "resources/subscribe": "listen(uris=[...]) tells of changes in every revision",
    "resources/unsubscribe": "listen(uris=[...]) tells of changes in every revision",
}


def _build_options(
    timeout: float | None,
    total_timeout: float | None,
    progress_handler: ProgressHandler | None,
    meta: Mapping[str, Any] | None,
    retry: bool | None,
) -> RequestOptions:
    if timeout is None and total_timeout is None and progress_handler is None and meta is None and retry is None:
        return DEFAULT_OPTIONS
    check_durations(timeout=timeout, total_timeout=total_timeout)
    check_callable("progress_handler", progress_handler)
    check_type("meta", meta, Mapping, "a dict")
    return RequestOptions(
        timeout=timeout, total_timeout=total_timeout, progress_handler=progress_handler, meta=meta, retry=retry
    )


def _build_timeouts(timeout: float | Timeouts | None) -> Timeouts:
    check_type("timeout", timeout, (int, float, Timeouts), "a number of seconds or a Timeouts(...)")
    if timeout is None or isinstance(timeout, Timeouts):
        return timeout or Timeouts()
    check_durations(timeout=timeout)
    return Timeouts(call=timeout, request=timeout, total=max(timeout, Timeouts().total))


def get_session(client: Client) -> Session:
    """Return the session of a client, for our own packages."""
    return client._session  # pyright: ignore[reportPrivateUsage]


def mount_client(
    client: Client, *, is_shared: bool = False, declare_all: bool = True, input_filter: "InputFilter | None" = None
) -> "MountedClient":
    """Return the server behind a client as another server mounts it.

    Its input requests and log messages go to the callers of that server, unless this client has handlers for them.
    is_shared: the handlers are only for requests of this client itself.
    declare_all: tell a handshake server that every input request can be answered, because others may call.
    input_filter: sees each input request before a caller is asked.
    """
    from dovetail.client.mounted_client import MountedClient

    return MountedClient(
        client, get_session(client), is_shared=is_shared, declare_all=declare_all, input_filter=input_filter
    )
