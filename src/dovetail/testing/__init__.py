"""For the tests of whoever writes a server or uses one: connected clients, faults on the way, recorded traffic.

Needs no test framework; `dovetail.testing.plugin` is what pytest loads. Each name is loaded when first used.
"""

from typing import TYPE_CHECKING

from dovetail.exports import create_lazy_loader

if TYPE_CHECKING:
    from dovetail.server.inject import override as override
    from dovetail.testing.faults import Fault as Fault
    from dovetail.testing.faults import Faults as Faults
    from dovetail.testing.joining import connect as connect
    from dovetail.testing.joining import connect_sync as connect_sync
    from dovetail.testing.joining import serve as serve
    from dovetail.testing.traffic import Traffic as Traffic
    from dovetail.testing.traffic import record as record

_HOMES = {
    "Fault": "dovetail.testing.faults",
    "Faults": "dovetail.testing.faults",
    "Traffic": "dovetail.testing.traffic",
    "connect": "dovetail.testing.joining",
    "connect_sync": "dovetail.testing.joining",
    "override": "dovetail.server.inject",
    "record": "dovetail.testing.traffic",
    "serve": "dovetail.testing.joining",
}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = create_lazy_loader(__name__, _HOMES)
