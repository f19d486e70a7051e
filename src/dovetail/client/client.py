"""The public `Client` class, with one typed coroutine for each method of the protocol."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never, Self, TypeAlias, TypedDict, TypeVar, overload

from dovetail.client import attachments
from dovetail.client.deadlines import ProgressHandler
from dovetail.client.handlers import (
    ALL_CAPABILITIES,
    ElicitationHandler,
    LogHandler,
    NotificationHandler,
    RootsProvider,
    SamplingHandler,
)
from dovetail.client.input_rounds import RequestAwaitingInput, build_resume_params
from dovetail.client.option_checks import check_callable, check_durations, check_log_level
from dovetail.client.pagination import PROMPTS, RESOURCES, TEMPLATES, TOOLS
from dovetail.client.request_sender import CALL_TOOL, DEFAULT_OPTIONS, RequestOptions
from dovetail.client.result_values import convert_value, extract_contents, extract_value, find_unknown_tool_error
from dovetail.client.session import Session
from dovetail.client.subscription import ReconnectingSubscription, Subscription
from dovetail.client.targets import Target, explain_unknown_option, resolve_target
from dovetail.error_context import add_context, check_type
from dovetail.errors import MCPError, NotSupported
from dovetail.protocol.limits import ClientLimits, Timeouts
from dovetail.protocol.middleware import Middleware
from dovetail.protocol.negotiation import Era
from dovetail.protocol.stats import ClientStats
from dovetail.protocol.uri_key import uri_key
from dovetail.version import VERSION
from dovetail.wire.base import JSONValue, Params, Result, replace
from dovetail.wire.completion import Completion
from dovetail.wire.input_required import InputRequest
from dovetail.wire.lifecycle import (
    TASKS_EXTENSION,
    ClientCapabilities,
    DiscoverResult,
    Implementation,
    RootsCapability,
    ServerCapabilities,
)
from dovetail.wire.logs import LoggingLevel
from dovetail.wire.meta import CLIENT_CAPABILITIES, CLIENT_INFO, PROTOCOL_VERSION
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

if TYPE_CHECKING:  # Few clients need these modules, so only type checkers import them.
    from dovetail.client.client_extensions import ClientExtensions
    from dovetail.mounts.mounted_client import InputFilter, MountedClient
    from dovetail.oauth.login.login_settings import ClientAuth
    from dovetail.protocol.interfaces.extension import Extension, ExtensionMethod
    from dovetail.skills.remote_skill import Skill
    from dovetail.tasks.client_tasks import ClientTasks
    from dovetail.tasks.task_handle import TaskHandle

T = TypeVar("T")
P = TypeVar("P", bound=Params)
R = TypeVar("R", bound=Result)
ResumedResult: TypeAlias = CallToolResult | GetPromptResult | ReadResourceResult | RequestAwaitingInput


class ManagedClientOptions(TypedDict, total=False):
    """Options of `Client` that `Host.add` accepts. The host sets `name` and `log_handler`."""

    headers: Mapping[str, str] | None
    auth: "ClientAuth | None"
    env: Mapping[str, str] | None
    cwd: str | Path | None
    elicitation_handler: ElicitationHandler | None
    url_elicitation_handler: ElicitationHandler | None
    sampling_handler: SamplingHandler | None
    roots: RootsProvider | None
    log_level: LoggingLevel | None
    notification_handler: NotificationHandler | None
    protocol_version: str | Era | None
    discover_result: DiscoverResult | Literal[False] | None
    client_info: Implementation | None
    capabilities: ClientCapabilities | None
    timeout: float | Timeouts | None
    limits: ClientLimits | None
    cache: bool
    validate_results: bool
    middleware: Sequence[Middleware]
    extensions: "Sequence[Extension]"
    tasks: bool
    recording: str | Path | None


class ClientOptions(ManagedClientOptions, total=False):
    """Options of `Client` and `SyncClient`."""

    name: str | None
    log_handler: LogHandler | None


class Client:
    """A client that is connected to one server.

    Args:
        target: A URL, a command as a list, a script, a `Server`, "unix:/path", "tcp://host:port", an entry of
            `mcp.json`, an `HTTPTarget`, a `CommandTarget`, or a `CustomTarget` for your own transport.
        name: The name of the server in error messages and logs.
        headers: HTTP headers for every request, if the target is a URL. `HTTPTarget` has more options.
        auth: A login, or a bearer token as a string, if the target is a URL.
        env: Environment variables, if the target is a command. `CommandTarget` has more options.
        cwd: The working directory, if the target is a command.
        elicitation_handler: Answers forms of the server. If None, the client does not declare support for forms.
        url_elicitation_handler: Answers requests to open a URL.
        sampling_handler: Answers sampling requests, which ask for a message from a language model.
        roots: The directories that the server may work in, or a function that returns them.
        log_handler: Receives log messages of the server.
        log_level: The lowest level of log messages to request.
        notification_handler: Receives the method and the params of notifications that no other option handles, such as
            those of extensions.
        protocol_version: The protocol version to require. "handshake" requires a version that opens a connection with
            `initialize`, and "stateless" requires a newer one.
        discover_result: An earlier result of `discover()`. The first connection then sends no `server/discover`. With
            False, no connection sends it, and the client assumes that the server supports everything. False requires a
            stateless `protocol_version`.
        client_info: The name and version of the client for the server. Defaults to those of dovetail.
        capabilities: Additional capabilities to declare. The client declares the capabilities of its handlers
            automatically.
        timeout: Seconds for one request, or a `Timeouts` object.
        limits: Limits on message sizes, list lengths and open requests. Defaults to `ClientLimits()`.
        cache: Whether to reuse results that the server marks as cacheable.
        validate_results: Whether to check results of tools against their output schemas.
        middleware: Functions that wrap every request. The first function is the outermost.
        extensions: Extensions of the protocol that the client declares and handles.
        tasks: Whether the server may run a call as a task. `call` and `call_tool` then wait for the task. `start_task`
            works in any case.
        recording: A file to which every message is written.
    """

    def __init__(
        self,
        target: Target,
        *,
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
        auth: "ClientAuth | None" = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        elicitation_handler: ElicitationHandler | None = None,
        url_elicitation_handler: ElicitationHandler | None = None,
        sampling_handler: SamplingHandler | None = None,
        roots: RootsProvider | None = None,
        log_handler: LogHandler | None = None,
        log_level: LoggingLevel | None = None,
        notification_handler: NotificationHandler | None = None,
        protocol_version: str | Era | None = None,
        discover_result: DiscoverResult | Literal[False] | None = None,
        client_info: Implementation | None = None,
        capabilities: ClientCapabilities | None = None,
        timeout: float | Timeouts | None = None,
        limits: ClientLimits | None = None,
        cache: bool = True,
        validate_results: bool = True,
        middleware: Sequence[Middleware] = (),
        extensions: "Sequence[Extension]" = (),
        tasks: bool = True,
        recording: str | Path | None = None,
        **unknown_options: Never,
    ) -> None:
        if unknown_options:
            raise TypeError(explain_unknown_option(next(iter(unknown_options)), ClientOptions.__annotations__))
        check_type("name=", name, str, "a text")
        check_type("limits=", limits, ClientLimits, "a ClientLimits(...)")
        check_type("tasks=", tasks, bool, "True or False")
        check_type("recording=", recording, (str, Path), "the path of a file")
        limits, timeouts = limits or ClientLimits(), _build_timeouts(timeout)
        resolved = resolve_target(
            target, limits=limits, timeouts=timeouts, headers=headers, auth=auth, env=env, cwd=cwd
        )
        self._tasks: ClientTasks | None = None
        self._session = session = Session(
            resolved.create_transport,
            name=name or resolved.name,
            key=resolved.key,
            client_info=client_info or Implementation(name="dovetail", version=VERSION),
            protocol_version=protocol_version,
            discover_result=discover_result,
            elicitation_handler=elicitation_handler,
            url_elicitation_handler=url_elicitation_handler,
            sampling_handler=sampling_handler,
            roots=roots,
            log_handler=log_handler,
            log_level=log_level,
            notification_handler=notification_handler,
            capabilities=capabilities,
            timeouts=timeouts,
            limits=limits,
            cache=cache,
            validate_results=validate_results,
            middleware=middleware,
            extensions=extensions,
            tasks=tasks,
        )
        recording_path = recording or os.environ.get("DOVETAIL_RECORDING")
        if recording_path:
            session.recorders.append(attachments.open_recording(recording_path, session.name))
        if extensions:
            session.set_extension_client(self)
        if session.handles_tasks:
            # If tasks are the only extension, their code is loaded when the server creates the first task.
            load = self._load_task_extensions
            session.sender.extensions = load if session.extensions is None else load()
        self._sender = session.sender
        # Every request must run in the event loop of the session.
        self._run = session.run_on_loop

    def middleware(self, function: Middleware) -> Middleware:
        """Add middleware: an async function `(exchange, call_next)` that wraps every request.

        The function awaits `call_next(exchange)`, which returns the typed result or a `RequestAwaitingInput`.
        Middleware sees neither the requests that open a connection nor results from the cache.
        """
        self._session.add_middleware(function)
        return function

    def __mountable__(self) -> "MountedClient":
        return mount_client(self)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Open the connection now. Without this call, the first request opens it."""
        await self._session.connect()

    async def close(self) -> None:
        """Close the connection. `connect` opens it again.

        Any task or thread may call this method, even several times.
        """
        await self._session.close()

    if not TYPE_CHECKING:  # Type checkers must report unknown attributes.

        def __getattr__(self, name: str) -> Any:
            from dovetail.peer_names import CLIENT_HINTS, create_attribute_error

            raise create_attribute_error(self, name, CLIENT_HINTS)

    @property
    def name(self) -> str:
        """Return the name that error messages and logs use for the server."""
        return self._session.name

    def stats(self) -> ClientStats:
        """Return the number of open connections, requests and other resources. Any thread may call this method."""
        return self._session.stats()

    @property
    def is_connected(self) -> bool:
        """Return whether a connection is open."""
        return self._session.current is not None

    @property
    def protocol_version(self) -> str | None:
        """Return the protocol version of the connection, or None if no connection is open."""
        return self._session.protocol_version

    @property
    def server_info(self) -> Implementation | None:
        """Return the name and version of the server, or None if the server did not send them."""
        current = self._session.current
        return None if current is None else current.server_info

    @property
    def server_capabilities(self) -> ServerCapabilities:
        """Return the capabilities that the server declares."""
        current = self._session.current
        return ServerCapabilities() if current is None else current.server_capabilities

    @property
    def instructions(self) -> str | None:
        """Return the server's instructions for models."""
        current = self._session.current
        return None if current is None else current.instructions

    @property
    def invalid_message_count(self) -> int:
        """Return the number of invalid messages that the server has sent on this connection."""
        current = self._session.current
        return 0 if current is None else current.invalid_message_count

    @property
    def skipped_items(self) -> list[str]:
        """Return a message for each malformed item that was left out of a list."""
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
        """Check that the server responds."""
        await self._run(self._session.reconnector.get_connection)
        method = "server/discover" if self._sender.is_stateless else "ping"
        await self._run(self._sender.send, METHODS[method], {})

    async def list_tools(self) -> list[Tool]:
        """Return all tools."""
        return await self._run(self._sender.list_all, TOOLS)

    async def list_tools_page(self, cursor: str | None = None) -> ListToolsResult:
        """Return one page of tools.

        Args:
            cursor: The `next_cursor` of the previous page. None returns the first page.
        """
        page = await self._run(self._sender.list_page, TOOLS, cursor)
        sender = self._sender
        return replace(
            page, tools=sender.tool_index.add_listed(page.tools, self.name, sends_headers=sender.sends_headers)
        )

    @overload
    async def call(self, tool: str, /, *, into: type[T], **arguments: object) -> T: ...
    @overload
    async def call(self, tool: str, /, *, into: None = None, **arguments: object) -> Any: ...
    async def call(self, tool: str, /, *_args: object, into: Any = None, **arguments: object) -> Any:
        """Call a tool and return its value. Raise ToolError if the tool fails.

        To pass options, or an argument named `into`, use `call_tool`.

        Args:
            into: The type to convert the value to. If None, the value is plain JSON or content blocks.
        """
        if _args:
            raise TypeError(
                f"pass arguments by name: call({tool!r}, name=value), call({tool!r}, **arguments), or "
                f"call_tool({tool!r}, arguments)"
            )
        result = await self.call_tool(tool, arguments)
        if result.is_error and (not_found := find_unknown_tool_error(result, tool)) is not None:
            raise self._sender.add_name_hint(not_found, CALL_TOOL.name, {"name": tool}) from None
        entry = self._sender.tool_index.entries.get(tool)
        is_wrapped = None if entry is None else entry.is_wrapped
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
    ) -> CallToolResult | RequestAwaitingInput: ...
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
    ) -> CallToolResult | RequestAwaitingInput:
        """Call a tool and return its full result, even if the tool failed.

        Args:
            arguments: The arguments of the tool.
            timeout: Seconds without progress after which the call fails. Defaults to `Timeouts.call`. A call that runs
                as a task has no default, because the server confirms that the task still exists.
            total_timeout: Seconds after which the call fails, even with progress. Defaults to `Timeouts.total`.
            progress_handler: Receives `(progress, total, message)`.
            meta: The `_meta` of the request. The client adds its version, name and capabilities.
            retry: If True, the call may be sent again after a lost connection, so it may run twice. If False, it is
                never sent again. If None, only calls of tools that are declared read-only or idempotent are sent again.
            allow_input_required: If True, a `RequestAwaitingInput` is returned when the server asks for input, and the
                handlers are not called. Answer it with `resume`, in this process or in another. A client without
                handlers declares all capabilities. The server does not run the call as a task. Servers up to protocol
                version 2025-11 do not support this, so the handlers answer their requests.
        """
        options = _build_options(timeout, total_timeout, progress_handler, meta, retry)
        if allow_input_required:
            options = await self._declare_capabilities(options)
        if type(arguments) is not dict:
            check_type("arguments=", arguments, Mapping, "a dict")
        params = {"name": name, "arguments": dict(arguments or {})}
        started_at = time.monotonic()
        result = await self._run(self._sender.send, CALL_TOOL, params, options)
        if allow_input_required or not isinstance(result, RequestAwaitingInput):
            return result
        return await self._run(self._sender.complete, result, options, started_at)

    async def resume(
        self,
        pending: RequestAwaitingInput,
        responses: Mapping[str, object],
        *,
        timeout: float | None = None,
        total_timeout: float | None = None,
        progress_handler: ProgressHandler | None = None,
        meta: Mapping[str, JSONValue] | None = None,
    ) -> ResumedResult:
        """Continue a request that waits for input. Return its result, or another `RequestAwaitingInput`.

        Args:
            timeout: Seconds without progress after which the call fails. Defaults to `Timeouts.call`.
            total_timeout: Seconds after which the call fails, even with progress. Defaults to `Timeouts.total`.
            progress_handler: Receives `(progress, total, message)`.
            meta: The `_meta` of the request. The client adds its version, name and capabilities.
        """
        check_type("pending=", pending, RequestAwaitingInput, "a RequestAwaitingInput")
        check_type("responses=", responses, Mapping, "a dict with a response for each key of pending.input_requests")
        row, params = METHODS.get(pending.method), build_resume_params(pending, responses)
        if row is None or not row.may_require_input:
            raise ValueError(f"cannot resume {pending.method!r}: this method never requires input")
        options = _build_options(timeout, total_timeout, progress_handler, meta, None)
        options = await self._declare_capabilities(options)
        return await self._run(self._sender.send, row, params, options, pending.round)

    async def start_task(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        *,
        timeout: float | None = None,
        meta: Mapping[str, JSONValue] | None = None,
    ) -> "TaskHandle":
        """Call a tool that may take a long time. Return a handle as soon as the server has created a task.

        If the server answers without a task, the handle has already ended. If the server does not support tasks, the
        call runs in the background of this client, and ends with the client.

        Args:
            arguments: The arguments of the tool.
            timeout: Seconds to wait until the server creates the task or answers. Progress restarts this time.
                Defaults to `Timeouts.call`.
            meta: The `_meta` of the request. The client adds its version, name and capabilities.
        """
        check_type("arguments=", arguments, Mapping, "a dict")
        options = _build_options(timeout, None, None, meta, None)
        return await self._run(self._get_tasks().start, name, arguments or {}, options)

    async def get_task(self, reference: str) -> "TaskHandle":
        """Return a handle for a task that this or another process started. Raise TaskLost if there is no such task.

        Args:
            reference: The `reference` of the first handle.
        """
        return await self._run(self._get_tasks().get, reference)

    def _get_tasks(self) -> "ClientTasks":
        if self._tasks is None:
            self._tasks = attachments.create_tasks(self, self._session)
        return self._tasks

    def _load_task_extensions(self) -> "ClientExtensions":
        return self._get_tasks().extensions

    async def answer_input_requests(self, requests: Mapping[str, InputRequest]) -> dict[str, object]:
        """Answer the input requests of a `RequestAwaitingInput` with the client's handlers.

        Return the responses, which you can pass to `resume`.
        """
        return await self._run(self._session.handlers.answer_all, requests)

    async def _declare_capabilities(self, options: RequestOptions) -> RequestOptions:
        """Add the client capabilities to the options of a request.

        If the client has no handlers, the request declares all capabilities, because the caller answers the input
        requests. The request does not declare tasks, because the handlers would answer the questions of a task.
        """
        await self._run(self._session.reconnector.get_connection)
        if not self._sender.is_stateless:
            return options
        own_capabilities = self._session.connector.identity.capabilities
        own_extensions = own_capabilities.extensions or {}
        has_handlers = self._session.handlers.capabilities() != ClientCapabilities()
        if has_handlers and TASKS_EXTENSION not in own_extensions:
            return options
        capabilities = own_capabilities if has_handlers else ALL_CAPABILITIES
        extensions = {name: value for name, value in own_extensions.items() if name != TASKS_EXTENSION}
        capabilities = replace(
            capabilities,
            roots=None if capabilities.roots is None else RootsCapability(),
            experimental=own_capabilities.experimental,
            extensions=extensions or None,
        )
        return replace(options, meta={**(options.meta or {}), CLIENT_CAPABILITIES: capabilities})

    async def list_resources(self) -> list[Resource]:
        """Return all resources."""
        return await self._run(self._sender.list_all, RESOURCES)

    async def list_resources_page(self, cursor: str | None = None) -> ListResourcesResult:
        """Return one page of resources.

        Args:
            cursor: The `next_cursor` of the previous page. None returns the first page.
        """
        return await self._run(self._sender.list_page, RESOURCES, cursor)

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        """Return all resource templates."""
        return await self._run(self._sender.list_all, TEMPLATES)

    async def list_resource_templates_page(self, cursor: str | None = None) -> ListResourceTemplatesResult:
        """Return one page of resource templates.

        Args:
            cursor: The `next_cursor` of the previous page. None returns the first page.
        """
        return await self._run(self._sender.list_page, TEMPLATES, cursor)

    async def read(self, uri: str) -> str | bytes | list[str | bytes]:
        """Return the content of a resource as a string or bytes. If the resource has several parts, return a list."""
        return extract_contents(await self.read_resource(uri))

    async def read_resource(
        self, uri: str, *, timeout: float | None = None, meta: Mapping[str, JSONValue] | None = None
    ) -> ReadResourceResult:
        """Read a resource and return the full result.

        Args:
            timeout: Seconds to wait for the result. Defaults to `Timeouts.request`.
            meta: The `_meta` of the request. The client adds its version, name and capabilities.
        """
        options = _build_options(timeout, None, None, meta, None)
        return await self._run(self._sender.send_cached, METHODS["resources/read"], {"uri": uri}, options)

    async def list_skills(self) -> "list[Skill]":
        """Return all skills of the server, or an empty list if it has none.

        This does not fetch the files of the skills.
        """
        return await attachments.list_skills(self._sender, self._run)

    async def get_skill(self, uri: str) -> "Skill":
        """Return the skill with this URI as it is now, even if the server does not list it.

        Args:
            uri: The URI of the SKILL.md, such as "skill://my-skill/SKILL.md".
        """
        return await attachments.get_skill(self._sender, self._run, uri)

    async def list_prompts(self) -> list[Prompt]:
        """Return all prompts."""
        return await self._run(self._sender.list_all, PROMPTS)

    async def list_prompts_page(self, cursor: str | None = None) -> ListPromptsResult:
        """Return one page of prompts.

        Args:
            cursor: The `next_cursor` of the previous page. None returns the first page.
        """
        return await self._run(self._sender.list_page, PROMPTS, cursor)

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
        meta: Mapping[str, JSONValue] | None = None,
    ) -> GetPromptResult:
        """Render a prompt with these arguments, and return its messages.

        Args:
            arguments: The arguments of the prompt.
            timeout: Seconds to wait for the result. Defaults to `Timeouts.request`.
            meta: The `_meta` of the request. The client adds its version, name and capabilities.
        """
        check_type("arguments=", arguments, Mapping, "a dict")
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
        """Return suggestions for an argument of a prompt or a resource template.

        Args:
            value: The text that the user has typed so far.
            prompt: The name of the prompt. Pass this or `template`.
            template: The URI template. Pass this or `prompt`.
            context: Values of other arguments that the user has already chosen.
        """
        if (prompt is None) == (template is None):
            raise ValueError("complete() requires either prompt= or template=, but not both")
        ref = {"type": "ref/prompt", "name": prompt} if template is None else {"type": "ref/resource", "uri": template}
        params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
        if context:
            params["context"] = {"arguments": dict(context)}
        result = await self._run(self._sender.send, METHODS["completion/complete"], params)
        return result.completion

    def listen(
        self,
        *,
        tools: bool | None = None,
        prompts: bool | None = None,
        resources: bool | None = None,
        uris: Iterable[str] = (),
    ) -> Subscription:
        """Watch lists and resources for changes: `async for change in client.listen(...)`.

        Without arguments, the subscription includes all lists. Pass False to leave out a list. Use `async with` to wait
        until the subscription is active.

        Args:
            tools: Whether to report changes of the list of tools.
            prompts: Whether to report changes of the list of prompts.
            resources: Whether to report changes of the list of resources.
            uris: The URIs of the resources to watch.
        """
        uri_list = [uris] if isinstance(uris, str) else [*uris]
        # Without any selection, the client watches all lists.
        default = not (tools or prompts or resources or uri_list)
        subscription_filter = SubscriptionFilter(
            tools_list_changed=default if tools is None else tools,
            prompts_list_changed=default if prompts is None else prompts,
            resources_list_changed=default if resources is None else resources,
            resource_subscriptions=uri_list or None,
        )
        return ReconnectingSubscription(
            self._session.reconnector,
            subscription_filter,
            self._session.limits,
            self._session.timeouts.request,
            self._session.subscriptions,
            self._run,
            self._sender.invalidate,
        )

    async def subscribe_resource(self, uri: str) -> None:
        """Subscribe to a resource. Only servers up to protocol version 2025-11 support this method.

        The client subscribes again after it reconnects. `listen` works with every protocol version.
        """
        connection = await self._run(self._session.reconnector.get_connection)
        if not self._sender.is_stateless and "resources/subscribe" not in connection.unsupported_methods:
            await self._run(connection.transport.wait_until_listening)
        await self._send_handshake_request("resources/subscribe", {"uri": connection.get_subscribed_uri(uri)})
        current, subscriptions = self._session.reconnector.current, self._session.connector.resource_subscriptions
        if uri_key(uri) not in subscriptions:
            subscriptions[uri_key(uri)] = uri
            if current is not None:
                current.add_subscriber(uri)

    async def unsubscribe_resource(self, uri: str) -> None:
        """End a subscription that `subscribe_resource` started. A `listen` for the same resource continues."""
        current, subscriptions = self._session.reconnector.current, self._session.connector.resource_subscriptions
        was_subscribed = subscriptions.pop(uri_key(uri), None) is not None
        known_uri: str | None = uri
        if current is not None and was_subscribed:
            known_uri = current.remove_subscriber(uri)
        elif current is not None and current.has_subscribers(uri):
            known_uri = None
        if known_uri is not None:
            await self._send_handshake_request("resources/unsubscribe", {"uri": known_uri})

    async def set_logging_level(self, level: LoggingLevel) -> None:
        """Set the minimum level of the log messages that the server sends."""
        check_log_level("level", level)
        connection = await self._run(self._session.reconnector.get_connection)
        identity = self._session.connector.identity = replace(self._session.connector.identity, log_level=level)
        if connection.encoder is not None and connection.encoder.is_stateless:
            connection.encoder = identity.create_encoder(connection.encoder.revision)
        else:
            await self._send_handshake_request("logging/setLevel", {"level": level})

    async def send_roots_list_changed(self) -> None:
        """Notify the server that the roots have changed.

        In protocol version 2026-07 and later, servers request the roots when they need them, so nothing is sent.
        """
        identity = self._session.connector.identity
        if (identity.handshake_capabilities or identity.capabilities).roots is None:
            raise add_context(
                NotSupported("the client does not declare the roots capability"),
                server=self.name,
                hint="pass roots= to the client",
            )
        connection = await self._run(self._session.reconnector.get_connection)
        if not self._sender.is_stateless:
            await self._run(connection.notify, "notifications/roots/list_changed")

    async def send_progress(
        self, progress_token: str | int, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Report the progress of a request that the server sent, such as a sampling request.

        Args:
            progress_token: The `progressToken` in the `meta` of the request that your handler received.
            progress: How much is done. The value must increase with every call.
            total: The value of `progress` when the work is done, if you know it.
            message: A message for the user.
        """
        connection = await self._run(self._session.reconnector.get_connection)
        if self._sender.is_stateless:
            error = NotSupported("the server sends no requests in this protocol version, so it cannot receive progress")
            raise self._sender.add_request_context(error, "notifications/progress")
        await self._run(connection.send_progress, progress_token, progress, total, message)

    async def shutdown(self) -> None:
        """Ask the server to end the session, and close the connection.

        Protocol version 2026-07 has no sessions, so this method raises NotSupported.
        """
        await self._run(self._session.reconnector.get_connection)
        if self._sender.is_stateless:
            raise self._sender.add_request_context(
                NotSupported("shutdown does not exist in this protocol version"), "shutdown"
            )
        # The result of this request is always null.
        await self.request("shutdown")
        await self.close()

    async def _send_handshake_request(self, method: str, params: dict[str, Any]) -> None:
        await self._run(self._session.reconnector.get_connection)
        if self._sender.is_stateless:
            error = add_context(
                NotSupported(f"{method} does not exist in this protocol version"), hint=_STATELESS_HINTS.get(method)
            )
            raise self._sender.add_request_context(error, method, params)
        await self._run(self._sender.send, METHODS[method], params)

    @overload
    async def request(
        self, method: "ExtensionMethod[P, R]", params: P | None = None, *, timeout: float | None = None
    ) -> R: ...
    @overload
    async def request(
        self, method: str, params: Mapping[str, object] | None = None, *, timeout: float | None = None
    ) -> Any: ...
    async def request(
        self,
        method: "ExtensionMethod[Any, Any] | str",
        params: Params | Mapping[str, object] | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Send a request of a protocol extension.

        If `method` is a method of an `Extension`, the parameters and the result are typed. The client raises
        NotSupported if the server does not declare the extension. If `method` is a string, the parameters and the
        result are plain JSON, and the client does not check the capabilities of the server.

        The client retries the request only if the method has `is_cacheable=True`.

        Args:
            params: The parameters of the request.
            timeout: Seconds to wait for the result. Defaults to `Timeouts.call`.
        """
        if isinstance(method, str):
            plain_params: Any = params or {}
            return await self._run(self._sender.send_raw, method, dict(plain_params), timeout)
        check_durations(timeout=timeout)
        extension_params: Any = params
        return await self._run(self._sender.send_extension, method, extension_params, timeout)

    async def notify(self, method: str, params: Mapping[str, object] | None = None) -> None:
        """Send a notification with any method, for protocol extensions.

        Args:
            params: The parameters of the notification.
        """
        connection = await self._run(self._session.reconnector.get_connection)
        await self._run(connection.notify, method, dict(params or {}))


_STATELESS_HINTS = {
    "resources/subscribe": "use listen(uris=[...]), which works with every protocol version",
    "resources/unsubscribe": "use listen(uris=[...]), which works with every protocol version",
}


# Only the client itself may set these keys of `_meta`.
_CLIENT_META = frozenset({PROTOCOL_VERSION, CLIENT_INFO, CLIENT_CAPABILITIES})


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
    check_type("meta=", meta, Mapping, "a dict")
    if meta is not None and not meta.keys().isdisjoint(_CLIENT_META):
        meta = {name: value for name, value in meta.items() if name not in _CLIENT_META}
    return RequestOptions(
        timeout=timeout, total_timeout=total_timeout, progress_handler=progress_handler, meta=meta, retry=retry
    )


def _build_timeouts(timeout: float | Timeouts | None) -> Timeouts:
    check_type("timeout=", timeout, (int, float, Timeouts), "a number of seconds or a Timeouts(...)")
    if timeout is None or isinstance(timeout, Timeouts):
        return timeout or Timeouts()
    check_durations(timeout=timeout)
    return Timeouts(call=timeout, request=timeout, total=max(timeout, Timeouts().total))


def get_session(client: Client) -> Session:
    """Return the session of a client. This function is internal."""
    return client._session  # pyright: ignore[reportPrivateUsage]


def get_tasks(client: Client) -> "ClientTasks":
    """Return the tasks of a client. This function is internal."""
    return client._get_tasks()  # pyright: ignore[reportPrivateUsage]


def mount_client(
    client: Client, *, is_shared: bool = False, declare_all: bool = True, input_filter: "InputFilter | None" = None
) -> "MountedClient":
    """Return an object with which another server can mount this client.

    Input requests and log messages go to the callers of the server on which it is mounted, unless this client has a
    handler.

    Args:
        is_shared: Whether the handlers answer only input requests that requests of this client itself caused.
        declare_all: Whether to declare all capabilities in the handshake, because callers may have them.
        input_filter: Checks each input request before it is sent to a caller.
    """
    return attachments.create_mount(
        client,
        get_session(client),
        lambda: get_tasks(client),
        is_shared=is_shared,
        declare_all=declare_all,
        input_filter=input_filter,
    )
