"""The task IDs of a gateway.

A task ID contains everything that the gateway needs to find the task of a server again, so the gateway stores nothing.
The content is encrypted. Only the gateway can read it, and only for the principal that created the task.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dovetail.errors import InvalidParams
from dovetail.protocol.principal import Principal
from dovetail.protocol.sealer import Sealer, UnsealError
from dovetail.protocol.versioned_codec import VersionedCodec
from dovetail.tasks.task_subscription import MAX_ID_CHARS
from dovetail.wire.base import Struct
from dovetail.wire.codec import encode

# A task ID contains the arguments of the call if a rule about results needs them. This is their maximum size.
_MAX_ARGUMENT_BYTES: Final = 1024


class UpstreamTask(Struct, frozen=True, array_like=True):
    """A task of a server behind a gateway."""

    server: str  # the name of the server
    server_identity: str  # a digest of the server's command or URL
    task_id: str  # the task ID of the server
    tool: str
    created_at: float  # seconds since 1970
    arguments: dict[str, Any] | None = None  # the arguments of the call, if a rule about results needs them


_upstream_tasks: Final = VersionedCodec(UpstreamTask)


class TaskIds:
    """Creates and reads the task IDs of a gateway.

    Without secret keys, the key is random, and the task IDs are not valid after a restart.
    """

    def __init__(self, secret_keys: Sequence[str | bytes] = ()) -> None:
        self.use_keys(secret_keys)

    def use_keys(self, secret_keys: Sequence[str | bytes]) -> None:
        """Use these secret keys from now on."""
        self._sealer = Sealer(secret_keys, purpose="gateway tasks")

    def seal(
        self,
        principal: Principal | None,
        *,
        server: str,
        server_identity: str,
        task_id: str,
        tool: str,
        arguments: Mapping[str, Any] | None,
    ) -> str:
        """Return the gateway's ID for a task that a server has just created."""
        saved_arguments = None if arguments is None else dict(arguments)
        task = UpstreamTask(server, server_identity, task_id, tool, time.time(), saved_arguments)
        return self._sealer.seal_text(_upstream_tasks.encode(task), _get_context(principal))

    def open(self, id: str, principal: Principal | None) -> UpstreamTask:
        """Return the task with this ID. Raise InvalidParams if the ID is invalid or belongs to another principal."""
        try:
            if len(id) > MAX_ID_CHARS:
                raise UnsealError("the text is too long")
            task = _upstream_tasks.decode(self._sealer.open_text(id, _get_context(principal), time.time()))
        except UnsealError:
            raise create_unknown_error() from None
        if task is None:
            raise create_unknown_error()
        return task


def fits_into_id(arguments: Mapping[str, Any]) -> bool:
    """Return whether a task ID can contain these arguments."""
    return len(encode(arguments)) <= _MAX_ARGUMENT_BYTES


def create_unknown_error() -> InvalidParams:
    """Return the error for a task that does not exist or that belongs to another caller."""
    return InvalidParams("Invalid params: the task is unknown or has expired", {"field": "taskId"})


def _get_context(principal: Principal | None) -> bytes:
    return encode([None if principal is None else str(principal)])
