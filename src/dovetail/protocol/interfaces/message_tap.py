"""The interface of a function that sees every message of a connection, such as a recording."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from dovetail.protocol.interfaces.client_transport import Headers

Receiver: TypeAlias = Literal["server", "client"]

# A function that is called with the receiver, the bytes and the headers of each message.
Recorder: TypeAlias = Callable[[Receiver, bytes, Headers], None]
