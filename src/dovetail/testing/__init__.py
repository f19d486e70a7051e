"""Tools for tests of servers and clients: connected clients, faults on the connection, and recorded traffic.

This package requires no test framework. pytest loads `dovetail.testing.pytest_plugin`. Each name is imported when it is
first used.
"""

from typing import TYPE_CHECKING

from dovetail.lazy import create_lazy_loader as _create_lazy_loader

if TYPE_CHECKING:
    from dovetail.server.dependencies import override as override
    from dovetail.testing.faults import Fault as Fault
    from dovetail.testing.faults import Faults as Faults
    from dovetail.testing.harness import connect as connect
    from dovetail.testing.harness import connect_sync as connect_sync
    from dovetail.testing.harness import serve as serve
    from dovetail.testing.scripted_model import ScriptedModel as ScriptedModel
    from dovetail.testing.scripted_model import tool_call as tool_call
    from dovetail.testing.token_issuer import TokenIssuer as TokenIssuer
    from dovetail.testing.traffic import Traffic as Traffic
    from dovetail.testing.traffic import record_traffic as record_traffic

_MODULE_BY_NAME = {
    "Fault": "dovetail.testing.faults",
    "Faults": "dovetail.testing.faults",
    "ScriptedModel": "dovetail.testing.scripted_model",
    "TokenIssuer": "dovetail.testing.token_issuer",
    "Traffic": "dovetail.testing.traffic",
    "connect": "dovetail.testing.harness",
    "connect_sync": "dovetail.testing.harness",
    "override": "dovetail.server.dependencies",
    "record_traffic": "dovetail.testing.traffic",
    "serve": "dovetail.testing.harness",
    "tool_call": "dovetail.testing.scripted_model",
}

__all__ = [*_MODULE_BY_NAME]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = _create_lazy_loader(__name__, _MODULE_BY_NAME)
