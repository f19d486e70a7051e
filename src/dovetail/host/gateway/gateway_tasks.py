"""The tasks of the servers behind a gateway.

Policy and consent apply to the call that creates a task. The policy for results applies when the result of the task is
read. The questions of a task pass the same checks as other questions to callers. The client never sees the task ID of
a server.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from dovetail.backoff import compute_backoff
from dovetail.client.client import get_tasks
from dovetail.errors import (
    InternalError,
    InvalidParams,
    InvalidResult,
    MCPError,
    NotFound,
    NotSupported,
    PolicyError,
    ProtocolError,
    RemoteError,
    ServerBusy,
    TaskLost,
    ToolNotFound,
)
from dovetail.host.authorization import Authorization
from dovetail.host.caller_pins import get_caller_id
from dovetail.host.execution import build_task_outcome_event
from dovetail.host.gateway.task_ids import TaskIds, UpstreamTask, create_unknown_error
from dovetail.host.gateway.upstream import Upstream
from dovetail.host.parts import HostParts
from dovetail.host.policy.quotas import truncate_result
from dovetail.host.supervisor import ServerSupervisor
from dovetail.log import log
from dovetail.mounts.name_map import NameMap, rewrite_links
from dovetail.protocol.exchange import Exchange, IncomingExchange
from dovetail.protocol.interfaces.extension import Extension
from dovetail.server.dispatch.dispatcher import Dispatcher
from dovetail.server.items.tool import build_error_result
from dovetail.tasks.client_tasks import ClientTasks
from dovetail.tasks.task_messages import (
    TASKS_EXTENSION,
    CancelTaskParams,
    CancelTaskResult,
    DetailedTask,
    GetTaskParams,
    TaskNotificationParams,
    UpdateTaskParams,
    UpdateTaskResult,
)
from dovetail.tasks.task_methods import add_task_methods
from dovetail.tasks.task_record import is_final
from dovetail.tasks.task_subscription import add_task_subscription
from dovetail.wire.base import Struct, replace
from dovetail.wire.codec import convert, encode, to_plain
from dovetail.wire.input_required import InputRequest
from dovetail.wire.tools import CallToolResult, Tool

ListMounts = Callable[[], Sequence[tuple[Upstream, NameMap]]]

_REVIEW_WAIT_S: Final = 1.0  # A request waits this long for the user's decision about a result.
_MAX_REVIEWS: Final = 1024
_WATCH_TIMEOUT_S: Final = 10.0  # Until this timeout, a slow server delays the notifications of other servers.
_WATCH_RETRY_S: Final = 5.0
_FIRST_POLL_S: Final = 0.05
_DEFAULT_POLL_S: Final = 1.0
_MEMBER_BY_STATUS: Final = {"input_required": "input_requests", "completed": "result", "failed": "error"}
# A server answers with one of these codes if it does not have the task.
_UNKNOWN_TASK_CODES: Final = frozenset({-32601, -32602})
_WAITS_FOR_USER: Final = "The task has ended. A user must allow its result"
_REJECTED: Final = "The policy rejected a question of the task, and the task is being cancelled"


class Review(Struct, frozen=True):
    """The decision about the result of a task, from the policy or a user."""

    edited_result: CallToolResult | None = None  # The result that a user has edited, or None.
    denial: str = ""  # the reason why the result is not allowed
    is_hidden: bool = False


class TaskReviews:
    """Stores the decisions about task results, so that no user is asked twice about the same result.

    If there are too many decisions, the oldest one is deleted, and its result must be checked again.
    """

    def __init__(self) -> None:
        self._reviews: dict[bytes, asyncio.Task[Review]] = {}

    async def get(self, key: bytes, start: Callable[[], "asyncio.Task[Review]"]) -> Review | None:
        """Return the decision about a result, or None if there is none yet. If no review has started, call `start`."""
        review = self._reviews.get(key)
        if review is None:
            self._make_room()
            review = self._reviews[key] = start()
        await asyncio.wait([review], timeout=_REVIEW_WAIT_S)
        if not review.done():
            return None
        if review.cancelled() or review.exception() is not None:
            self._reviews.pop(key, None)  # The next request starts a new review.
            return None if review.cancelled() else review.result()
        return review.result()

    def _make_room(self) -> None:
        if len(self._reviews) >= _MAX_REVIEWS:
            ended = next((key for key, review in self._reviews.items() if review.done()), None)
            if ended is None:
                raise ServerBusy("Too many task results wait for a user's decision")
            del self._reviews[ended]


class FoundTask(Struct, frozen=True):
    """A task of a server, and the objects that send requests about it."""

    task: UpstreamTask
    upstream: Upstream
    names: NameMap
    supervisor: ServerSupervisor


class GatewayTasks:
    """Serves the tasks of the servers behind a gateway. Add `extension` to the gateway's server."""

    def __init__(
        self,
        parts: HostParts,
        dispatcher: Dispatcher,
        list_mounts: ListMounts,
        ids: TaskIds,
        reviews: TaskReviews,
    ) -> None:
        self.extension = Extension(TASKS_EXTENSION, requires_client=True)
        self._parts = parts
        self._dispatcher = dispatcher
        self._list_mounts = list_mounts
        self._ids = ids
        self._reviews = reviews
        add_task_methods(self.extension, self._get, self._update, self._cancel)
        add_task_subscription(self.extension, self._find, self._watch)

    async def _get(self, params: GetTaskParams, exchange: Exchange) -> DetailedTask:
        return await self.read(params.task_id, exchange)

    async def _update(self, params: UpdateTaskParams, exchange: Exchange) -> UpdateTaskResult:
        found = await self._find(params.task_id, exchange)
        async with _open_requests(found) as requests:
            task = await _fetch(found, requests)
            open_requests = await self._filter_questions(found, requests, task) or {}
            # Answers to questions that the policy declined must not reach the server.
            responses = {key: value for key, value in params.input_responses.items() if key in open_requests}
            if responses:
                await _send_answers(found, requests, responses)
        return UpdateTaskResult()

    async def _cancel(self, params: CancelTaskParams, exchange: Exchange) -> CancelTaskResult:
        found = await self._find(params.task_id, exchange)
        async with _open_requests(found) as requests:
            await requests.cancel_task(found.task.task_id)
        return CancelTaskResult()

    async def read(self, id: str, exchange: Exchange) -> DetailedTask:
        """Return the state of a task, after the policy's checks. Raise InvalidParams if the caller has no such task."""
        found = await self._find(id, exchange)
        async with _open_requests(found) as requests:
            task = await _fetch(found, requests)
            if task.status == "input_required":
                open_requests = await self._filter_questions(found, requests, task)
                task = _show_questions(task, open_requests)
        task = replace(task, task_id=id, result_type=None)
        if not is_final(task.status):
            return task
        return await self._finish(found, task, exchange)

    async def _watch(self, ids: Sequence[str], exchange: Exchange) -> AsyncGenerator[TaskNotificationParams]:
        """Poll the tasks, and yield each new state until all tasks have ended.

        Not every server sends notifications, so the gateway polls. Each state passes the policy's checks.
        """
        loop, poll_counts = asyncio.get_running_loop(), Counter[str]()
        poll_times, digests = dict.fromkeys(ids, loop.time()), dict[str, bytes]()
        while poll_times:
            id = min(poll_times, key=poll_times.__getitem__)
            await asyncio.sleep(poll_times[id] - loop.time())
            try:
                async with asyncio.timeout(_WATCH_TIMEOUT_S):
                    task = await self.read(id, exchange)
            except InvalidParams:
                del poll_times[id]  # The server does not know the task any more.
                continue
            except (ProtocolError, TimeoutError):
                poll_times[id] = loop.time() + _WATCH_RETRY_S
                continue
            digest = hashlib.sha256(encode(task)).digest()
            if digests.get(id) != digest:
                digests[id] = digest
                poll_counts[id] = 0
                yield _build_notification(task)
            if is_final(task.status):
                del poll_times[id]
            else:
                # Poll quickly after a change, because more changes often follow.
                poll_times[id] = loop.time() + compute_backoff(_FIRST_POLL_S, poll_counts[id], _get_poll_interval(task))
                poll_counts[id] += 1

    async def _find(self, id: str, exchange: Exchange) -> FoundTask:
        """Return the task with this ID. Raise InvalidParams if it does not belong to the caller.

        Raises:
            InsufficientScope: the caller does not have the scopes that the tool requires now.
        """
        principal = exchange.caller.principal
        task = self._ids.open(id, principal)
        for upstream, names in self._list_mounts():
            if upstream.name != task.server or upstream.supervisor.identity != task.server_identity:
                continue
            try:
                supervisor = self._parts.servers.get_for_caller(upstream.supervisor, principal)
            except PolicyError:
                break
            await self._check_access(names.to_outer("tool", task.tool), exchange)
            return FoundTask(task, upstream, names, supervisor)
        raise create_unknown_error()

    async def _check_access(self, tool: str, exchange: Exchange) -> None:
        if self._dispatcher.registry.access_rules is not None:
            assert isinstance(exchange, IncomingExchange)
            try:
                await self._dispatcher.items.check_access("tool", tool, exchange)
            except ToolNotFound:
                raise create_unknown_error() from None

    async def _filter_questions(
        self, found: FoundTask, requests: ClientTasks, task: DetailedTask
    ) -> Mapping[str, InputRequest] | None:
        """Return the questions for the caller's user. Decline the questions that the policy denies.

        Return None if the task cannot continue, because the policy rejects a question that cannot be declined.
        """
        questions, check = task.input_requests or {}, found.supervisor.screen
        if check is None:
            return questions
        try:
            answers = {key: check(question.method, question.params or {}) for key, question in questions.items()}
        except ProtocolError:
            await requests.cancel_task(found.task.task_id)
            return None
        declined = {key: answer for key, answer in answers.items() if answer is not None}
        if declined:
            await requests.update_task(found.task.task_id, declined)
        return {key: question for key, question in questions.items() if key not in declined}

    async def _finish(self, found: FoundTask, task: DetailedTask, exchange: Exchange) -> DetailedTask:
        """Check the result of an ended task, and return the task. Each result is checked and reported once."""
        key = hashlib.sha256(encode([found.task, task.status, task.result, to_plain(task.error)])).digest()
        result = None if task.result is None else _decode_result(found, task.result)
        review = await self._reviews.get(
            key, lambda: found.supervisor.spawn(self._review(found, task, result, exchange))
        )
        if review is None:
            return replace(task, status="working", status_message=_WAITS_FOR_USER, result=None, error=None)
        if review.is_hidden:
            raise create_unknown_error()
        if result is None:
            return task
        if review.denial:
            result = build_error_result(review.denial)
        elif review.edited_result is not None:
            result = review.edited_result
        else:
            max_bytes = self._parts.authorizer.get_limits(found.supervisor, found.task.tool).max_result_bytes
            result = truncate_result(result, max_bytes)
        shown_result = rewrite_links(result, "tools/call", found.names)
        return replace(task, result={"resultType": "complete", **to_plain(shown_result)})

    async def _review(
        self, found: FoundTask, task: DetailedTask, result: CallToolResult | None, exchange: Exchange
    ) -> Review:
        authorization = await self._create_authorization(found, exchange)
        self._emit_outcome(authorization, found, task, result)
        if result is None:
            return Review()
        assert isinstance(exchange, IncomingExchange)
        try:
            reviewed = await found.upstream.review(authorization, result, exchange)
        except PolicyError as exc:
            return Review(denial=f"Not allowed: {exc.args[0]}", is_hidden=exc.action == "hide")
        is_edited = reviewed != truncate_result(result, authorization.limits.max_result_bytes)
        return Review(edited_result=reviewed if is_edited else None)

    async def _create_authorization(self, found: FoundTask, exchange: Exchange) -> Authorization:
        supervisor, tool = found.supervisor, found.task.tool
        try:
            record = await self._parts.catalog.get_record(supervisor, tool)
        except NotFound:
            # The tool was removed or hidden, so its annotations are unknown. The policy then applies stricter rules.
            record = self._parts.authorizer.create_record(supervisor, Tool(name=tool, input_schema={"type": "object"}))
        except MCPError as exc:
            raise _to_unavailable(found, exc) from None
        caller_id = get_caller_id(exchange.caller)
        request = replace(record.request, arguments=found.task.arguments, caller=caller_id)
        return Authorization(reason="", request=request, limits=record.limits, record=record)

    def _emit_outcome(
        self, authorization: Authorization, found: FoundTask, task: DetailedTask, result: CallToolResult | None
    ) -> None:
        events = self._parts.events
        if events.has_listeners("tool.result"):
            error = "" if task.error is None else task.error.message
            events.emit(
                build_task_outcome_event(
                    authorization.request, found.task.task_id, found.task.created_at, task.status, result, error
                )
            )


@asynccontextmanager
async def _open_requests(found: FoundTask) -> AsyncGenerator[ClientTasks]:
    """Yield an object that sends task requests to the server. Convert errors of the server to errors for the caller."""
    try:
        async with found.supervisor.using() as client:
            yield get_tasks(client)
    except ProtocolError:
        raise
    except (NotSupported, TaskLost):
        raise create_unknown_error() from None
    except MCPError as exc:
        if isinstance(exc, RemoteError) and exc.code in _UNKNOWN_TASK_CODES:
            raise create_unknown_error() from None
        raise _to_unavailable(found, exc) from None


def _to_unavailable(found: FoundTask, exc: MCPError) -> InternalError:
    log.warning("a request for a task of %s failed: %s", found.upstream.name, exc)
    return InternalError(f"the server {found.upstream.name} is not available")


async def _fetch(found: FoundTask, requests: ClientTasks) -> DetailedTask:
    """Return the state of a task. Remove members that do not match its status, such as the error of a completed task.

    Raises:
        InvalidResult: the member that belongs to the status is missing.
    """
    task = await requests.get_task(found.task.task_id)
    member = _MEMBER_BY_STATUS.get(task.status)
    if member is not None and getattr(task, member) is None:
        raise InvalidResult(f"the result of tasks/get has the status {task.status!r}, but no {member}")
    return replace(task, meta=None, **{other: None for other in _MEMBER_BY_STATUS.values() if other != member})


async def _send_answers(found: FoundTask, requests: ClientTasks, responses: Mapping[str, Any]) -> None:
    try:
        await requests.update_task(found.task.task_id, responses)
    except RemoteError as exc:
        if exc.code != InvalidParams.code:
            raise
        await requests.get_task(found.task.task_id)  # This raises TaskLost if the task has just expired.
        raise InvalidParams(exc.message, exc.data) from None


def _get_poll_interval(task: DetailedTask) -> float:
    seconds = _DEFAULT_POLL_S if task.poll_interval_ms is None else min(task.poll_interval_ms, 60_000) / 1000
    return max(_FIRST_POLL_S, seconds)


def _show_questions(task: DetailedTask, questions: Mapping[str, InputRequest] | None) -> DetailedTask:
    if questions:
        return replace(task, input_requests=dict(questions))
    message = _REJECTED if questions is None else task.status_message
    return replace(task, status="working", status_message=message, input_requests=None)


def _build_notification(task: DetailedTask) -> TaskNotificationParams:
    fields = {name: getattr(task, name) for name in TaskNotificationParams.__struct_fields__ if name != "meta"}
    return TaskNotificationParams(**fields)


def _decode_result(found: FoundTask, result: dict[str, Any]) -> CallToolResult:
    try:
        return convert(result, CallToolResult, label="the result of a task")
    except InvalidParams as exc:
        log.warning("%s sent an invalid result for a task: %s", found.upstream.name, exc)
        raise InternalError(f"the server {found.upstream.name} sent an invalid result") from None
