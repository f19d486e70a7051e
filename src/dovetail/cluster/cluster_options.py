"""`Cluster`: where the workers of a server keep the state that they share."""

import math
from typing import TYPE_CHECKING

from dovetail.cluster.redis.redis_connection import REDIS_SCHEMES, build_deployment_prefix, parse_redis_url
from dovetail.error_context import check_type
from dovetail.wire.base import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dovetail.protocol.interfaces.shared_state import SharedState


class Cluster(Struct, frozen=True, repr_omit_defaults=True):
    """Where the workers of a server keep the state that they share: `Server(cluster=Cluster("redis://..."))`."""

    # "local" for the workers of one machine, or the URL of a Redis or Valkey server:
    # `redis://user:password@host:6379/0`, `rediss://` for TLS, or `redis+sentinel://host1,host2/service`.
    url: str
    # Servers with the same name and the same prefix share their state.
    prefix: str = "dovetail"
    timeout: float = 2.0  # The number of seconds to wait for an answer from Redis.
    # If True, a server does not start while Redis cannot be reached. If False, it starts and connects later.
    required: bool = True

    def __post_init__(self) -> None:
        check_type("url", self.url, str, "a string")
        check_type("prefix", self.prefix, str, "a string")
        check_type("timeout", self.timeout, (int, float), "a number of seconds")
        check_type("required", self.required, bool, "True or False")
        if not 0 < self.timeout < math.inf:
            raise ValueError(f"timeout must be a number of seconds above 0, not {self.timeout!r}")
        if not self.prefix or "{" in self.prefix or "}" in self.prefix:
            raise ValueError(f"prefix must be a text without braces, not {self.prefix!r}")
        if self.is_local:
            return
        scheme = self.url.partition(":")[0]
        if scheme not in REDIS_SCHEMES:
            raise ValueError(
                f"unknown cluster {scheme!r}. Use 'local' for the workers of one machine, or the URL of a Redis server "
                "such as 'redis://:password@host:6379'"
            )
        parse_redis_url(self.url)

    @property
    def is_local(self) -> bool:
        """Return whether all workers are on this machine."""
        return self.url == "local"

    def __shared_state__(self, name: str, secret_keys: "Sequence[str | bytes]") -> "SharedState":
        """Return a back end for one server. Servers with different names do not share their state."""
        if self.is_local:
            from dovetail.cluster.local.local_backend import LocalBackend
            from dovetail.cluster.local.local_folder import open_server_folder

            return LocalBackend(open_server_folder(self.prefix, name), secret_keys=secret_keys)
        from dovetail.cluster.redis.redis_backend import RedisBackend

        return RedisBackend(
            self.url,
            prefix=build_deployment_prefix(self.prefix, name),
            secret_keys=secret_keys,
            timeout=self.timeout,
            is_required=self.required,
        )

    def __repr__(self) -> str:
        """Return the options without the password."""
        address = self.url if self.is_local else str(parse_redis_url(self.url))
        return f"Cluster({address!r}, prefix={self.prefix!r}, timeout={self.timeout!r}, required={self.required!r})"
