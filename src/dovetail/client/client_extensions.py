"""What the extensions of a client declare, and how the client handles their notifications and results."""

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from dovetail.client.deadlines import ProgressHandler
from dovetail.errors import InvalidResult
from dovetail.protocol.interfaces.extension import (
    AddedResultType,
    NotificationFunction,
    check_extensions,
    check_new_extension,
    freeze_extension,
    get_parts,
)
from dovetail.protocol.middleware import Middleware
from dovetail.wire.base import Result, Struct
from dovetail.wire.methods import Method


class ResultClient:
    """The `ExtensionClient` of one request. It has the timeouts and the progress handler of the request."""

    def __init__(
        self, client: Any, timeout: float | None, ends_at: float, report_progress: Callable[..., None]
    ) -> None:
        self.request: Any = client.request
        self.notify: Any = client.notify
        self.answer_input_requests: Any = client.answer_input_requests
        self.timeout = timeout
        self._ends_at = ends_at
        self._report_progress = report_progress

    @property
    def total_timeout(self) -> float:
        return max(0.0, self._ends_at - time.monotonic())

    def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        self._report_progress(progress, total, message)


class ClientExtensions(Struct):
    """The extensions of one client."""

    declared: dict[str, Any]  # Maps extension identifiers to settings.
    notifications: dict[str, NotificationFunction]
    middleware: list[Middleware]
    result_types: dict[tuple[str, str], AddedResultType]  # The keys are pairs: a method and a result type.
    client: Any = None  # The client that functions of extensions can use.
    call_handler: Callable[..., None] | None = None  # Calls the user's handler with the given arguments.
    kept_type: type[Result] | None = None  # Results of this type are returned unchanged.

    async def complete(
        self, result: Any, row: Method, timeout: float | None, ends_at: float, progress_handler: ProgressHandler | None
    ) -> Any:
        """Return the final result of a request.

        Results of a type that an extension added are replaced by the extension, until the time `ends_at`.
        """
        added = self.result_types.get((row.name, result.result_type or "")) if isinstance(result, Result) else None
        if added is None or added.struct is self.kept_type:
            return result
        if added.on_client is None:
            raise InvalidResult(
                f"{added.extension.identifier} has no on_client function for results of type {added.name!r}"
            )
        final_result = await added.on_client(
            result, ResultClient(self.client, timeout, ends_at, partial(self._report_progress, progress_handler))
        )
        if not isinstance(final_result, row.result or Result):
            raise TypeError(
                f"the function on_client of {added.extension.identifier} for {added.name!r} must return the final "
                f"result of {row.name}, not {type(final_result).__qualname__}"
            )
        return final_result

    def _report_progress(self, handler: ProgressHandler | None, *progress: object) -> None:
        if handler is not None and self.call_handler is not None:
            self.call_handler(handler, *progress)


def combine_extensions(extensions: Iterable[Any], declared: Mapping[str, Any] | None) -> ClientExtensions:
    """Combine all extensions of a client. `declared` contains extensions for which the client has no code.

    Raises:
        ValueError: two extensions have the same identifier, notification or result type.
    """
    combined = ClientExtensions(dict(declared or {}), {}, [], {})
    for extension in check_extensions(extensions):
        parts = get_parts(extension)
        check_new_extension(
            extension,
            "client",
            combined.declared,
            parts.client_notifications,
            combined.notifications,
            combined.result_types,
        )
        freeze_extension(extension)
        combined.declared[extension.identifier] = dict(extension.client_settings)
        combined.notifications |= parts.client_notifications
        combined.middleware += parts.client_middleware
        combined.result_types |= parts.result_types
    return combined
