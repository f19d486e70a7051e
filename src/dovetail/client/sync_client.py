"""A client for code without `await`. Each method waits for the method of `Client` with the same name."""

import asyncio
import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from dovetail.client import attachments
from dovetail.client.client import Client, ClientOptions, ResumedResult
from dovetail.client.deadlines import ProgressHandler
from dovetail.client.input_rounds import RequestAwaitingInput
from dovetail.client.subscription import ChangeEvent, Subscription
from dovetail.client.targets import Target
from dovetail.protocol.middleware import Middleware
from dovetail.protocol.stats import ClientStats
from dovetail.wire.base import JSONValue, Params, Result
from dovetail.wire.completion import Completion
from dovetail.wire.input_required import InputRequest
from dovetail.wire.lifecycle import DiscoverResult, Implementation, ServerCapabilities
from dovetail.wire.logs import LoggingLevel
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

if TYPE_CHECKING:
    from dovetail.protocol.interfaces.extension import ExtensionMethod
    from dovetail.skills.remote_skill import SyncSkill
    from dovetail.tasks.task_handle import SyncTaskHandle

T = TypeVar("T")
P = TypeVar("P", bound=Params)
R = TypeVar("R", bound=Result)

_THREAD_NAME = "dovetail-clients"
_SHUTDOWN_TIMEOUT_S = 0.5  # the seconds for closing clients at the end of the program

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_is_shutting_down = False


class InterpreterShutdown(RuntimeError):
    """Raised if a SyncClient is used while the program is ending."""


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the shared event loop and wait for its result. A KeyboardInterrupt cancels the coroutine."""
    if _is_shutting_down:
        coroutine.close()
        raise InterpreterShutdown("a SyncClient cannot be used while the program is ending")
    loop = get_shared_loop()
    if threading.current_thread().name == _THREAD_NAME:
        coroutine.close()
        raise RuntimeError(
            "a SyncClient cannot be called from progress_handler=, log_handler= or an async handler, "
            "because these handlers run in the event loop of the client. Call it from a function that is not async"
        )
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def get_shared_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that all sync clients share.

    It runs in a daemon thread, which does not keep the program alive.
    """
    global _loop
    with _lock:
        if _loop is None or _loop.is_closed():
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name=_THREAD_NAME, daemon=True).start()
        return _loop


def _reset_after_fork() -> None:
    """Forget the event loop in a forked process, because its thread does not exist in that process."""
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_reset_after_fork)


@atexit.register
def _stop() -> None:
    global _is_shutting_down
    _is_shutting_down = True
    if _loop is not None and _loop.is_running():
        cleanup = asyncio.run_coroutine_threadsafe(_cancel_remaining_tasks(_loop), _loop)
        with contextlib.suppress(TimeoutError, CancelledError):
            cleanup.result(2 * _SHUTDOWN_TIMEOUT_S)


async def _cancel_remaining_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks of open clients, because asyncio warns about pending tasks."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_SHUTDOWN_TIMEOUT_S)
    loop.call_soon(loop.stop)


class SyncSubscription:
    """An iterator of changes: `for change in client.listen(...)`.

    Use `with` to wait until the subscription is active.
    """

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __enter__(self) -> Self:
        run_blocking(self._subscription.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[ChangeEvent]:
        changes = aiter(self._subscription)
        while True:
            try:
                # A KeyboardInterrupt ends the subscription.
                change = run_blocking(_next_change(changes))
            except StopAsyncIteration:
                return
            try:
                yield change
            except GeneratorExit:
                with contextlib.suppress(InterpreterShutdown):
                    run_blocking(changes.aclose())  # pyright: ignore[reportAttributeAccessIssue]
                raise

    @property
    def acknowledged_filter(self) -> SubscriptionFilter | None:
        """Return the kinds of changes that the server will report, or None if the subscription is not active yet."""
        return self._subscription.acknowledged_filter

    def close(self) -> None:
        """Stop listening."""
        run_blocking(self._subscription.aclose())


async def _next_change(changes: Any) -> ChangeEvent:
    return await anext(changes)


class SyncClient:
    """A client of one server, for code without async and await. The options are the same as for `Client`."""

    def __init__(self, target: Target, **options: Unpack[ClientOptions]) -> None:
        # Pyright reports an error here, because it assumes that an unpacked TypedDict may have additional keys.
        self._client = Client(target, **options)  # pyright: ignore[reportArgumentType]

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def middleware(self, function: Middleware) -> Middleware:
        """Add an async middleware function, like `Client.middleware`. It runs in another thread."""
        return self._client.middleware(function)

    def connect(self) -> None:
        """Open the connection now. Without this call, the first request opens it."""
        run_blocking(self._client.connect())

    def close(self) -> None:
        """Close the connection. `connect` opens it again."""
        run_blocking(self._client.close())

    @property
    def name(self) -> str:
        """Return the name that error messages and logs use for the server."""
        return self._client.name

    def stats(self) -> ClientStats:
        """Return the number of open connections, requests and other resources."""
        return self._client.stats()

    @property
    def is_connected(self) -> bool:
        """Return whether a connection is open."""
        return self._client.is_connected

    @property
    def protocol_version(self) -> str | None:
        """Return the protocol version of the connection, or None if no connection is open."""
        return self._client.protocol_version

    @property
    def server_info(self) -> Implementation | None:
        """Return the name and version of the server, or None if the server did not send them."""
        return self._client.server_info

    @property
    def server_capabilities(self) -> ServerCapabilities:
        """Return the capabilities that the server declares."""
        return self._client.server_capabilities

    @property
    def instructions(self) -> str | None:
        """Return the server's instructions for models."""
        return self._client.instructions

    @property
    def invalid_message_count(self) -> int:
        """Return the number of invalid messages that the server has sent on this connection."""
        return self._client.invalid_message_count

    @property
    def skipped_items(self) -> list[str]:
        """Return a message for each malformed item that was left out of a list."""
        return self._client.skipped_items

    def discover(self) -> DiscoverResult:
        """Return the protocol versions and capabilities of the server."""
        return run_blocking(self._client.discover())

    def ping(self) -> None:
        """Check that the server responds."""
        run_blocking(self._client.ping())

    def list_tools(self) -> list[Tool]:
        """Return all tools."""
        return run_blocking(self._client.list_tools())

    def list_tools_page(self, cursor: str | None = None) -> ListToolsResult:
        """Return one page of tools."""
        return run_blocking(self._client.list_tools_page(cursor))

    @overload
    def call(self, tool: str, /, *, into: type[T], **arguments: object) -> T: ...
    @overload
    def call(self, tool: str, /, *, into: None = None, **arguments: object) -> Any: ...
    def call(self, tool: str, /, *_args: object, into: Any = None, **arguments: object) -> Any:
        """Call a tool and return its value. Raise ToolError if the tool fails.

        `into` is the type to convert the value to. To pass options, or an argument named `into`, use `call_tool`.
        """
        return run_blocking(self._client.call(tool, *_args, into=into, **arguments))

    @overload
    def call_tool(
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
    def call_tool(
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
    def call_tool(
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
        """Call a tool and return its full result. For the options, see `Client.call_tool`."""
        return run_blocking(
            self._client.call_tool(
                name,
                arguments,
                timeout=timeout,
                total_timeout=total_timeout,
                progress_handler=progress_handler,
                meta=meta,
                retry=retry,
                allow_input_required=allow_input_required,
            )
        )

    def resume(
        self,
        pending: RequestAwaitingInput,
        responses: Mapping[str, object],
        *,
        timeout: float | None = None,
        total_timeout: float | None = None,
        progress_handler: ProgressHandler | None = None,
        meta: Mapping[str, JSONValue] | None = None,
    ) -> ResumedResult:
        """Continue a request that waits for input. Return its result, or another `RequestAwaitingInput`."""
        return run_blocking(
            self._client.resume(
                pending,
                responses,
                timeout=timeout,
                total_timeout=total_timeout,
                progress_handler=progress_handler,
                meta=meta,
            )
        )

    def start_task(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        *,
        timeout: float | None = None,
        meta: Mapping[str, JSONValue] | None = None,
    ) -> "SyncTaskHandle":
        """Call a tool that may take a long time. Return a handle as soon as the server has created a task.

        For the options, see `Client.start_task`.
        """
        handle = run_blocking(self._client.start_task(name, arguments, timeout=timeout, meta=meta))
        return attachments.wrap_task(handle, run_blocking)

    def get_task(self, reference: str) -> "SyncTaskHandle":
        """Return a handle for a task that this or another process started. Raise TaskLost if there is no such task."""
        return attachments.wrap_task(run_blocking(self._client.get_task(reference)), run_blocking)

    def answer_input_requests(self, requests: Mapping[str, InputRequest]) -> dict[str, object]:
        """Answer the input requests of a `RequestAwaitingInput` with the client's handlers.

        Return the responses, which you can pass to `resume`.
        """
        return run_blocking(self._client.answer_input_requests(requests))

    def list_resources(self) -> list[Resource]:
        """Return all resources."""
        return run_blocking(self._client.list_resources())

    def list_resources_page(self, cursor: str | None = None) -> ListResourcesResult:
        """Return one page of resources."""
        return run_blocking(self._client.list_resources_page(cursor))

    def list_resource_templates(self) -> list[ResourceTemplate]:
        """Return all resource templates."""
        return run_blocking(self._client.list_resource_templates())

    def list_resource_templates_page(self, cursor: str | None = None) -> ListResourceTemplatesResult:
        """Return one page of resource templates."""
        return run_blocking(self._client.list_resource_templates_page(cursor))

    def read(self, uri: str) -> str | bytes | list[str | bytes]:
        """Return the content of a resource as a string or bytes. If the resource has several parts, return a list."""
        return run_blocking(self._client.read(uri))

    def read_resource(
        self, uri: str, *, timeout: float | None = None, meta: Mapping[str, JSONValue] | None = None
    ) -> ReadResourceResult:
        """Read a resource and return the full result."""
        return run_blocking(self._client.read_resource(uri, timeout=timeout, meta=meta))

    def list_skills(self) -> "list[SyncSkill]":
        """Return all skills of the server, or an empty list if it has none.

        This does not fetch the files of the skills.
        """
        return [attachments.wrap_skill(skill, run_blocking) for skill in run_blocking(self._client.list_skills())]

    def get_skill(self, uri: str) -> "SyncSkill":
        """Return the skill with this URI as it is now, even if the server does not list it."""
        return attachments.wrap_skill(run_blocking(self._client.get_skill(uri)), run_blocking)

    def list_prompts(self) -> list[Prompt]:
        """Return all prompts."""
        return run_blocking(self._client.list_prompts())

    def list_prompts_page(self, cursor: str | None = None) -> ListPromptsResult:
        """Return one page of prompts."""
        return run_blocking(self._client.list_prompts_page(cursor))

    def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
        meta: Mapping[str, JSONValue] | None = None,
    ) -> GetPromptResult:
        """Render a prompt with these arguments, and return its messages."""
        return run_blocking(self._client.get_prompt(name, arguments, timeout=timeout, meta=meta))

    def complete(
        self,
        argument: str,
        value: str,
        *,
        prompt: str | None = None,
        template: str | None = None,
        context: Mapping[str, str] | None = None,
    ) -> Completion:
        """Return suggestions for an argument of a prompt or a resource template.

        `value` is the text that the user has typed so far.
        """
        return run_blocking(self._client.complete(argument, value, prompt=prompt, template=template, context=context))

    def listen(
        self,
        *,
        tools: bool | None = None,
        prompts: bool | None = None,
        resources: bool | None = None,
        uris: Iterable[str] = (),
    ) -> SyncSubscription:
        """Watch lists and resources for changes: `for change in client.listen(...)`.

        For the options, see `Client.listen`.
        """
        return SyncSubscription(self._client.listen(tools=tools, prompts=prompts, resources=resources, uris=uris))

    def subscribe_resource(self, uri: str) -> None:
        """Subscribe to a resource. Only servers up to protocol version 2025-11 support this
        method. `listen` works with every version.
        """
        run_blocking(self._client.subscribe_resource(uri))

    def unsubscribe_resource(self, uri: str) -> None:
        """End a subscription that `subscribe_resource` started."""
        run_blocking(self._client.unsubscribe_resource(uri))

    def set_logging_level(self, level: LoggingLevel) -> None:
        """Set the minimum level of the log messages that the server sends."""
        run_blocking(self._client.set_logging_level(level))

    def send_roots_list_changed(self) -> None:
        """Notify the server that the roots have changed."""
        run_blocking(self._client.send_roots_list_changed())

    def send_progress(
        self, progress_token: str | int, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Report the progress of a request that the server sent."""
        run_blocking(self._client.send_progress(progress_token, progress, total, message))

    def shutdown(self) -> None:
        """Ask the server to end the session, and close the connection."""
        run_blocking(self._client.shutdown())

    @overload
    def request(
        self, method: "ExtensionMethod[P, R]", params: P | None = None, *, timeout: float | None = None
    ) -> R: ...
    @overload
    def request(
        self, method: str, params: Mapping[str, object] | None = None, *, timeout: float | None = None
    ) -> Any: ...
    def request(
        self,
        method: "ExtensionMethod[Any, Any] | str",
        params: Params | Mapping[str, object] | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Send a request of a protocol extension.

        If `method` is a method of an `Extension`, the parameters and the result are typed. If it is a string, they are
        plain JSON.
        """
        arguments: Any = (method, params)  # The overloads have checked the types.
        return run_blocking(self._client.request(*arguments, timeout=timeout))

    def notify(self, method: str, params: Mapping[str, object] | None = None) -> None:
        """Send a notification with any method, for protocol extensions."""
        run_blocking(self._client.notify(method, params))


def get_client(sync_client: SyncClient) -> Client:
    """Return the client of a `SyncClient`. This function is internal."""
    return sync_client._client  # pyright: ignore[reportPrivateUsage]
