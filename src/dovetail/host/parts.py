"""The objects that a host consists of, for gateways and other packages of dovetail."""

from dovetail.host.authorization import RequestAuthorizer
from dovetail.host.config.secret_lookup import SecretResolver
from dovetail.host.events import EventEmitter
from dovetail.host.execution import CallExecutor
from dovetail.host.host_catalog import HostCatalog
from dovetail.host.servers import ManagedServers
from dovetail.wire.base import Struct


class HostParts(Struct, frozen=True, kw_only=True):
    """The internal objects of a host, such as its policy and its grants."""

    events: EventEmitter
    secrets: SecretResolver
    authorizer: RequestAuthorizer
    servers: ManagedServers
    catalog: HostCatalog
    executor: CallExecutor
