"""The tasks of a client: calls that become tasks on the server, and task handles.

Only clients that use tasks import this module.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Final

from dovetail.client.client_extensions import ClientExtensions
from dovetail.client.deadlines import MAX_TIMEOUT_S, RequestDeadline
from dovetail.client.input_rounds import COMPLETE, RequestAwaitingInput
from dovetail.client.reconnect import create_outcome_unknown
from dovetail.client.request_sender import CALL_TOOL, RequestOptions
from dovetail.error_context import add_context, clip
from dovetail.errors import (
    InputRequestError,
    InvalidParams,
    InvalidResult,
    MCPError,
    NotSupported,
    RemoteError,
    RequestTimeout,
    TaskCancelled,
    TaskLost,
)
from dovetail.log import ThrottledLog, log_and_suppress
from dovetail.protocol.client_messages import ASSUMED_CAPABILITIES, create_error
from dovetail.protocol.interfaces.client_transport import EncodedRequest
from dovetail.protocol.interfaces.extension import Extension, ExtensionClient, get_parts
from dovetail.tasks.remote_task import AnswerRequests, RemoteTask
from dovetail.tasks.task_handle import (
    OnUpdate,
    TaskHandle,
    TaskReference,
    TaskUpdate,
    build_update,
)
from dovetail.tasks.task_messages import (
    TASK_RESULT_TYPE,
    TASKS_EXTENSION,
    CreateTaskResult,
    DetailedTask,
    Task,
    TaskNotificationParams,
)
from dovetail.tasks.task_methods import CANCEL_TASK, GET_TASK, UPDATE_TASK
from dovetail.wire.base import UNSET, Params, WireStruct, replace
from dovetail.wire.codec import convert
from dovetail.wire.input_required import InputRequest
from dovetail.wire.jsonrpc import RequestId
from dovetail.wire.lifecycle import RootsCapability
from dovetail.wire.meta import CLIENT_CAPABILITIES, SUBSCRIPTION_ID
from dovetail.wire.methods import Method
from dovetail.wire.raw_message import ErrorObject, decode_body
from dovetail.wire.tools import CallToolResult

if TYPE_CHECKING:
    from dovetail.client.connection import Connection
    from dovetail.client.session import Session

_LISTEN: Final = "subscriptions/listen"
# Servers limit the number of streams, so the client subscribes to at most this many tasks and polls the rest.
_MAX_STREAMS: Final = 8


class _AcceptedFilter(WireStruct):
    task_ids: list[str] | None = None


class _AcknowledgedParams(Params):
    notifications: _AcceptedFilter


class _Stream:
    def __init__(self, task: RemoteTask, timeout: asyncio.Timeout) -> None:
        self.task = task
        self.timeout = timeout  # the time limit for the server to accept the subscription


class ClientTasks:
    """The tasks of one client. `RemoteTask` uses this object as its `TaskServer`."""

    def __init__(self, client: object, session: "Session") -> None:
        self._session = session
        self._sender = session.sender
        session.task_listener = self
        extension = Extension(TASKS_EXTENSION)
        extension.add_result_type(CALL_TOOL.name, TASK_RESULT_TYPE, CreateTaskResult, self._complete_call)
        own = session.extensions or ClientExtensions({}, {}, [], {})
        # the extensions of the client, which always include tasks
        self.extensions = replace(
            own,
            result_types=own.result_types | get_parts(extension).result_types,
            client=client,
            call_handler=session.callbacks.call,
        )
        self._waiting: set[RemoteTask] = set()
        self._streams: dict[RequestId, _Stream] = {}
        self._cancel_tasks: set[asyncio.Task[None]] = set()
        self._invalid_notification_warning = ThrottledLog()

    # The following methods implement `TaskServer`.

    @property
    def is_closed(self) -> bool:
        return self._session.reconnector.is_closed

    async def get_task(self, id: str) -> DetailedTask:
        try:
            return await self._sender.send(GET_TASK, {"taskId": id}, self._build_options())
        except RemoteError as exc:
            raise self._to_task_lost(exc, GET_TASK) from None

    async def update_task(self, id: str, responses: Mapping[str, Any]) -> None:
        params = {"taskId": id, "inputResponses": dict(responses)}
        await self._sender.send(UPDATE_TASK, params, self._build_options())

    async def cancel_task(self, id: str) -> None:
        try:
            await self._sender.send(CANCEL_TASK, {"taskId": id}, self._build_options())
        except RemoteError as exc:
            raise self._to_task_lost(exc, CANCEL_TASK) from None

    async def listen(self, task: RemoteTask) -> None:
        if len(self._streams) >= _MAX_STREAMS:
            raise NotSupported("too many subscriptions are open")
        connection = await self._session.reconnector.get_connection()
        encoder = connection.encoder
        if encoder is None or not encoder.is_stateless:
            raise NotSupported("this protocol version has no tasks")
        id, params = connection.next_id(), {"notifications": {"taskIds": [task.id]}}
        request = EncodedRequest(
            id,
            _LISTEN,
            encoder.encode_request(id, _LISTEN, params, self._build_options().meta),
            encoder.build_headers(_LISTEN, params),
            True,
        )
        stream: _Stream | None = None
        try:
            # The server must acknowledge the subscription immediately. spec: subscriptions#acknowledgment
            async with asyncio.timeout(min(self._session.timeouts.request, MAX_TIMEOUT_S)) as timeout:
                stream = self._streams[id] = _Stream(task, timeout)
                await connection.exchange(request, RequestDeadline())
        except TimeoutError as exc:
            if isinstance(exc, MCPError):
                raise
            raise NotSupported("the server does not accept subscriptions to tasks") from None
        finally:
            # Remove only this stream, because a new connection may already use the same ID for another stream.
            if self._streams.get(id) is stream:
                self._streams.pop(id, None)

    # The client session calls the following methods.

    def handle_acknowledged(self, params: Any) -> None:
        """Handle the acknowledgement of a subscription. Ignore it if the subscription is not for a task."""
        try:
            acknowledged = decode_body(params, _AcknowledgedParams, "the acknowledgement")
        except InvalidResult:
            return
        stream = self._find_stream(acknowledged)
        if stream is None or stream.timeout.expired():
            return
        if stream.task.id in (acknowledged.notifications.task_ids or ()):
            stream.timeout.reschedule(None)
            stream.task.handle_subscribed()
        else:
            stream.timeout.reschedule(asyncio.get_running_loop().time())

    def handle_notification(self, method: str, params: Any) -> None:
        """Handle the new state of a task."""
        try:
            notice = decode_body(params, TaskNotificationParams, method)
        except InvalidResult as exc:
            self._invalid_notification_warning.log(
                "ignored an invalid notification %s from %s: %s", method, self._session.name, exc
            )
            return
        stream = self._find_stream(notice)
        if stream is not None and stream.task.id == notice.task_id:
            stream.task.handle_state(_to_detailed_task(notice))

    def wake(self) -> None:
        """Wake all waiting tasks, because the client was closed."""
        for task in self._waiting:
            task.wake()

    def abandon(self) -> None:
        """Remove all streams and waiting tasks of an event loop that is closed."""
        self._waiting.clear()
        self._streams.clear()
        self._cancel_tasks.clear()

    def _find_stream(self, params: Params) -> _Stream | None:
        id: Any = (params.meta or {}).get(SUBSCRIPTION_ID)
        return self._streams.get(id) if isinstance(id, int | str) else None

    # The client calls the following methods.

    async def start(self, tool: str, arguments: Mapping[str, Any], options: RequestOptions) -> TaskHandle:
        """Call a tool, and return a handle when the server has created a task.

        If the server does not support tasks, the client runs the call in the background.
        """
        connection = await self._session.reconnector.get_connection()
        params = {"name": tool, "arguments": dict(arguments)}
        if not _has_tasks(connection):
            return self._create_handle(_LocalCall(self, params, options))
        meta = {**(options.meta or {}), **(self._build_options().meta or {})}
        options = replace(options, meta=meta or None, extensions=replace(self.extensions, kept_type=CreateTaskResult))
        result = await self.call(params, options)
        if isinstance(result, CreateTaskResult):
            return self._create_handle(_RemoteCall(self, result, tool))
        return self._create_handle(_LocalCall(self, params, options, result))

    async def get(self, reference: str) -> TaskHandle:
        """Return a handle for a task that was started earlier, maybe by another process."""
        parsed = TaskReference.decode(reference)
        connection = await self._session.reconnector.get_connection()
        server = _get_server_name(connection)
        if None not in (parsed.server, server) and parsed.server != server:
            raise ValueError(
                f"the task reference belongs to the server {clip(parsed.server or '')!r}, but the client is connected "
                f"to {clip(server or '')!r}"
            )
        if not _has_tasks(connection):
            raise self.add_context(NotSupported(f"the server does not declare the extension {TASKS_EXTENSION!r}"))
        state = await self.get_task(parsed.id)
        try:
            return self._create_handle(_RemoteCall(self, state, parsed.tool, id=parsed.id))
        except (InvalidResult, InputRequestError) as exc:
            raise self.add_context(exc) from None

    def _create_handle(self, source: "_RemoteCall | _LocalCall") -> TaskHandle:
        return TaskHandle(source, self._session.run_on_loop)

    # Calls and task handles use the following methods.

    async def call(self, params: dict[str, Any], options: RequestOptions) -> Any:
        """Call a tool, and answer input requests until the server sends a result or creates a task."""
        started_at = time.monotonic()
        result = await self._sender.send(CALL_TOOL, params, options)
        if isinstance(result, RequestAwaitingInput):
            result = await self._sender.complete(result, options, started_at)
        return result

    def create_task(self, task: Task, answer: AnswerRequests | None = None) -> RemoteTask:
        session = self._session
        answer = answer or session.handlers.answer_all
        return RemoteTask(task, self, answer, limits=session.limits, contact_timeout=session.timeouts.call)

    async def wait(self, task: RemoteTask, on_change: Callable[[Task], None]) -> CallToolResult:
        """Wait until a task has ended. Return the result of its call, or raise the error of the call."""
        return self._read_result(await self._watch(task, on_change))

    async def _watch(self, task: RemoteTask, on_change: Callable[[Task], None]) -> DetailedTask:
        self._waiting.add(task)
        try:
            return await task.wait(on_change)
        finally:
            self._waiting.discard(task)

    def validate(self, tool: str, result: CallToolResult) -> None:
        """Check a result against the output schema of its tool, if the client knows the tool."""
        self._sender.validate_result(tool, result)

    def add_context(self, exc: MCPError, tool: str | None = None) -> MCPError:
        if tool is None:
            return self._sender.add_request_context(exc, GET_TASK.name)
        return self._sender.add_request_context(exc, CALL_TOOL.name, {"name": tool})

    def create_reference(self, tool: str, id: str) -> str:
        connection = self._session.current
        server = None if connection is None else _get_server_name(connection)
        return TaskReference(server=server, tool=tool, id=id).encode()

    async def _complete_call(self, created: CreateTaskResult, client: ExtensionClient) -> CallToolResult:
        """Wait for the task of a call. If the call times out or is cancelled, cancel the task."""
        encoder = self._session.reconnector.encoder
        if encoder is not None and not encoder.is_stateless:
            raise InvalidResult("this protocol version has no tasks")
        limit, report = CallTimeout(client.timeout, client.total_timeout), _ProgressReport(client)

        async def answer(requests: Mapping[str, InputRequest]) -> dict[str, Any]:
            with limit.pause():
                return await self._session.handlers.answer_all(requests)

        def handle_change(state: Task) -> None:
            limit.record_progress()
            report.send(state)

        task = self.create_task(created, answer)
        report.send(created)
        try:
            async with limit:
                state = await self._watch(task, handle_change)
        except TaskLost:
            raise
        except (asyncio.CancelledError, RequestTimeout, InputRequestError, InvalidResult):
            await self.cancel_abandoned(task)
            raise
        except MCPError as exc:
            if self.is_closed:
                raise
            # Only a request about the task failed, but the task may still run.
            # If the caller received an error such as RateLimited, it would repeat the call.
            await self.cancel_abandoned(task)
            raise create_outcome_unknown(
                exc,
                f"the client could not get the result of the task: {exc.args[0]}",
                "check whether the call took effect before you call again. With start_task(), you can wait again later",
            ) from exc
        result = self._read_result(state)
        if report.count:
            # Wait until the progress handler has received all messages.
            await self._session.callbacks.flush(client.total_timeout)
        return result

    async def cancel_abandoned(self, task: RemoteTask) -> None:
        """Cancel a task that no caller waits for. Wait for the response, because the event loop may close soon."""
        cancel = asyncio.get_running_loop().create_task(self._try_cancel(task))
        self._cancel_tasks.add(cancel)
        cancel.add_done_callback(self._cancel_tasks.discard)
        await asyncio.wait([cancel], timeout=self._session.timeouts.close)

    async def _try_cancel(self, task: RemoteTask) -> None:
        with log_and_suppress(MCPError):
            await task.cancel()

    def _read_result(self, task: DetailedTask) -> CallToolResult:
        if task.status == "cancelled":
            raise TaskCancelled("the task was cancelled")
        if task.error is not None and task.status == "failed":
            data = None if task.error.data is UNSET else task.error.data
            error = ErrorObject(code=task.error.code, message=task.error.message, data=data)
            raise create_error(self._session.protocol_version, CALL_TOOL.name, error)
        try:
            result = convert(task.result, CallToolResult, label="result of the task")
        except InvalidParams as exc:
            raise InvalidResult(exc.message) from None
        if result.result_type not in (None, COMPLETE):
            raise InvalidResult("the result of the task has an unknown resultType")
        return result

    def _to_task_lost(self, exc: RemoteError, row: Method) -> MCPError:
        if exc.code != InvalidParams.code:
            return exc
        error = TaskLost(f"the server does not know the task: {clip(exc.message, 300)}")
        return self._sender.add_request_context(error, row.name)

    def _build_options(self) -> RequestOptions:
        """Return options that declare the tasks extension, even if the client was created with `tasks=False`."""
        capabilities = self._session.connector.identity.capabilities
        extensions = capabilities.extensions or {}
        if TASKS_EXTENSION in extensions:
            return RequestOptions(retry=True)
        roots = None if capabilities.roots is None else RootsCapability()
        declared = replace(capabilities, roots=roots, extensions={**extensions, TASKS_EXTENSION: {}})
        return RequestOptions(retry=True, meta={CLIENT_CAPABILITIES: declared})


class _RemoteCall:
    is_local = False

    def __init__(self, tasks: ClientTasks, task: Task, tool: str, id: str | None = None) -> None:
        if id is not None and task.task_id != id:
            raise InvalidResult("the server sent the state of another task")
        self.update = build_update(task)
        self._tasks = tasks
        self._task = tasks.create_task(task)
        self._tool = tool
        self._reference = tasks.create_reference(tool, task.task_id)

    async def wait(self, on_update: OnUpdate) -> CallToolResult:
        try:
            result = await self._tasks.wait(self._task, lambda task: on_update(build_update(task)))
            self._tasks.validate(self._tool, result)
        except MCPError as exc:
            raise self._tasks.add_context(exc, self._tool) from exc.__cause__
        return result

    async def fetch(self) -> TaskUpdate:
        return build_update(await self._task.fetch())

    async def cancel(self) -> None:
        await self._task.cancel()

    def get_reference(self) -> str:
        return self._reference


class _LocalCall:
    """A call for which the server has no task. The call is running, or the client already has the result."""

    is_local = True

    def __init__(
        self, tasks: ClientTasks, params: dict[str, Any], options: RequestOptions, result: CallToolResult | None = None
    ) -> None:
        self.update = TaskUpdate(status="working" if result is None else "completed")
        self._tasks = tasks
        self._params = params
        self._options = options
        self._result = result
        self._running: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    async def wait(self, on_update: OnUpdate) -> CallToolResult:
        if self._result is not None:
            return self._result

        def handle_progress(_progress: float, _total: float | None, message: str | None) -> None:
            if not self.update.is_final:
                set_update(replace(self.update, message=message or self.update.message))

        def set_update(update: TaskUpdate) -> None:
            self.update = update
            on_update(update)

        self._running = asyncio.current_task()
        try:
            if self._is_cancelled:  # The call was cancelled before this coroutine started.
                raise asyncio.CancelledError
            self._result = await self._tasks.call(
                self._params, replace(self._options, progress_handler=handle_progress)
            )
        except asyncio.CancelledError:
            set_update(TaskUpdate(status="cancelled"))
            if not self._is_cancelled:
                raise
            raise self._tasks.add_context(TaskCancelled("the call was cancelled"), self._params["name"]) from None
        except Exception:
            set_update(TaskUpdate(status="failed"))
            raise
        set_update(TaskUpdate(status="completed"))
        return self._result

    async def fetch(self) -> TaskUpdate:
        return self.update

    async def cancel(self) -> None:
        if not self.update.is_final:
            self._is_cancelled = True
            if self._running is not None:
                self._running.cancel()

    def get_reference(self) -> str:
        error = NotSupported(
            "the call runs without a task, so it has no reference. Await the handle to get its outcome"
        )
        raise self._tasks.add_context(error, self._params["name"])


class CallTimeout:
    """The timeouts of a call that has become a task.

    Without an idle timeout, only the total timeout applies.
    """

    def __init__(self, idle_timeout: float | None, total_timeout: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle_timeout = MAX_TIMEOUT_S if idle_timeout is None else min(idle_timeout, MAX_TIMEOUT_S)
        self._total_timeout = min(total_timeout, MAX_TIMEOUT_S)
        self._ends_at = self._loop.time() + self._total_timeout
        self._timeout = asyncio.timeout_at(self._compute_due())

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        try:
            await self._timeout.__aexit__(*error)
        except TimeoutError:
            if not self._timeout.expired():
                raise
            is_total = self._loop.time() >= self._ends_at
            limit = (
                f"the total limit of {round(self._total_timeout, 1):g} s" if is_total else f"{self._idle_timeout:g} s"
            )
            raise add_context(
                RequestTimeout(f"the task has not ended{'' if is_total else ' or changed'} within {limit}"),
                hint="pass total_timeout= to wait longer, or use start_task() to get a handle of the task"
                if is_total
                else "pass timeout= to wait longer, or use start_task() to get a handle of the task",
            ) from None

    def record_progress(self) -> None:
        if not self._timeout.expired():
            self._timeout.reschedule(self._compute_due())

    @contextlib.contextmanager
    def pause(self) -> Generator[None]:
        started_at = self._loop.time()
        self._timeout.reschedule(None)
        try:
            yield
        finally:
            self._ends_at += self._loop.time() - started_at
            self.record_progress()

    def _compute_due(self) -> float:
        return min(self._loop.time() + self._idle_timeout, self._ends_at)


class _ProgressReport:
    """Sends the messages of a task to the progress handler of a call."""

    def __init__(self, client: ExtensionClient) -> None:
        self._client = client
        self._message: str | None = None
        self.count = 0

    def send(self, task: Task) -> None:
        if task.status_message is not None and task.status_message != self._message:
            self._message = task.status_message
            self.count += 1
            # A progress report needs an increasing number, so the messages of the task are counted.
            self._client.report_progress(float(self.count), None, self._message)


def _has_tasks(connection: "Connection") -> bool:
    if connection.encoder is None or not connection.encoder.is_stateless:
        return False
    capabilities = connection.server_capabilities
    return capabilities is ASSUMED_CAPABILITIES or TASKS_EXTENSION in (capabilities.extensions or {})


def _get_server_name(connection: "Connection") -> str | None:
    return None if connection.server_info is None else connection.server_info.name


def _to_detailed_task(notice: TaskNotificationParams) -> DetailedTask:
    fields = {name: getattr(notice, name) for name in notice.__struct_fields__ if name != "meta"}
    return DetailedTask(**fields)
