"""A warning for the operator of a server that cannot accept more clients.

Without this warning, the operator could not find out why clients are refused.
"""

from typing import Any

from dovetail.log import ThrottledWarning

_descriptor_warning = ThrottledWarning()


def warn_if_descriptors_run_out(transport: Any) -> None:
    """Warn if only a few file descriptors are free when a connection opens.

    The system assigns the lowest free number, so the number of a new descriptor shows how many are in use. Event loops
    log nothing when no descriptor is free.
    """
    try:
        import resource
    except ImportError:  # Windows does not have this limit.
        return
    connection = transport.get_extra_info("socket")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if connection is not None and limit > 0 and connection.fileno() >= limit - max(4, limit // 20):
        _descriptor_warning.log(
            "nearly all %d file descriptors are in use, and clients are refused when none is left. Raise the limit of "
            "open files with `ulimit -n` or LimitNOFILE=",
            limit,
        )
