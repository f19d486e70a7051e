"""For the tests of whoever writes a server or uses one: connected clients, faults on the way, recorded traffic.

Needs no test framework; `dovetail.testing.pytest_plugin` is what pytest loads. Each name is loaded when first used.
"""

from typing import TYPE_CHECKING

from dovetail.lazy import create_lazy_loader

if TYPE_CHECKING:
    from dovetail.server.dependencies import override as override
    from dovetail.testing.faults import Fault as Fault
    from dovetail.testing.faults import Faults as Faults
    from dovetail.testing.harness import connect as connect
    from dovetail.testing.harness import connect_sync as connect_sync
    from dovetail.testing.harness import serve as serve
    from dovetail.testing.scripted_model import Scripted as Scripted
    from dovetail.testing.scripted_model import use as use
    from dovetail.testing.traffic import Traffic as Traffic
    from dovetail.testing.traffic import record as record

_HOMES = {
    "Fault": "dovetail.testing.faults",
    "Faults": "dovetail.testing.faults",
    "Scripted": "dovetail.testing.scripted_model",
    "Traffic": "dovetail.testing.traffic",
    "connect": "dovetail.testing.harness",
    "connect_sync": "dovetail.testing.harness",
    "override": "dovetail.server.dependencies",
    "record": "dovetail.testing.traffic",
    "serve": "dovetail.testing.harness",
    "use": "dovetail.testing.scripted_model",
}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = create_lazy_loader(__name__, _HOMES)
