"""What the extensions of a client declare, and how the client handles their notifications and results."""

from collections.abc import Iterable, Mapping
from typing import Any

from dovetail.errors import InvalidResult
from dovetail.protocol.extension import (
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


class ClientExtensions(Struct):
    """The extensions of one client."""

    declared: dict[str, Any]  # The settings of each extension, by identifier.
    notifications: dict[str, NotificationFunction]
    middleware: list[Middleware]
    result_types: dict[tuple[str, str], AddedResultType]  # The result types that extensions add, by method and name.
    client: Any = None  # The client that functions of extensions can use.

    async def complete(self, result: Any, row: Method) -> Any:
        """Return the final result of a request.

        Results of a type that an extension added are replaced by the extension.
        """
        added = self.result_types.get((row.name, result.result_type or "")) if isinstance(result, Result) else None
        if added is None:
            return result
        if added.on_client is None:
            raise InvalidResult(
                f"{added.extension.identifier} has no on_client function for results of type {added.name!r}"
            )
        final_result = await added.on_client(result, self.client)
        if not isinstance(final_result, row.result or Result):
            raise TypeError(
                f"the function on_client of {added.extension.identifier} for {added.name!r} must return the final "
                f"result of {row.name}, not {type(final_result).__qualname__}"
            )
        return final_result


def combine_extensions(extensions: Iterable[Any], declared: Mapping[str, Any] | None) -> ClientExtensions:
    """Combine all extensions of a client. `declared` has further extensions that the client only declares.

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
