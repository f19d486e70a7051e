"""Logins for clients, guards for servers, and an authorization server. Each name is imported when it is first used."""

from typing import TYPE_CHECKING

from dovetail.lazy import create_lazy_loader as _create_lazy_loader

if TYPE_CHECKING:
    from dovetail.auth.authorization_server_app import AuthorizationServer as AuthorizationServer
    from dovetail.oauth.authorization_server.clients import RegisteredClient as RegisteredClient
    from dovetail.oauth.authorization_server.identity_provider import ProviderMetadata as ProviderMetadata
    from dovetail.oauth.authorization_server.identity_provider import UpstreamProvider as UpstreamProvider
    from dovetail.oauth.authorization_server.store import AuthorizationStore as AuthorizationStore
    from dovetail.oauth.guard.guard import Guard as Guard
    from dovetail.oauth.guard.verifiers import IntrospectionVerifier as IntrospectionVerifier
    from dovetail.oauth.guard.verifiers import JWTVerifier as JWTVerifier
    from dovetail.oauth.guard.verifiers import StaticTokenVerifier as StaticTokenVerifier
    from dovetail.oauth.guard.verifiers import TokenVerifier as TokenVerifier
    from dovetail.oauth.login.login_settings import BearerAuth as BearerAuth
    from dovetail.oauth.login.login_settings import ClientAuth as ClientAuth
    from dovetail.oauth.login.login_settings import ClientCredentials as ClientCredentials
    from dovetail.oauth.login.login_settings import DeviceLogin as DeviceLogin
    from dovetail.oauth.login.login_settings import EnterpriseLogin as EnterpriseLogin
    from dovetail.oauth.login.login_settings import OAuth as OAuth
    from dovetail.oauth.login.login_settings import TokenStore as TokenStore
    from dovetail.oauth.login.login_settings import WorkloadIdentity as WorkloadIdentity
    from dovetail.protocol.principal import Authenticator as Authenticator
    from dovetail.protocol.principal import Principal as Principal

_MODULE_BY_NAME = {
    "Authenticator": "dovetail.protocol.principal",
    "AuthorizationServer": "dovetail.auth.authorization_server_app",
    "AuthorizationStore": "dovetail.oauth.authorization_server.store",
    "BearerAuth": "dovetail.oauth.login.login_settings",
    "ClientAuth": "dovetail.oauth.login.login_settings",
    "ClientCredentials": "dovetail.oauth.login.login_settings",
    "DeviceLogin": "dovetail.oauth.login.login_settings",
    "EnterpriseLogin": "dovetail.oauth.login.login_settings",
    "Guard": "dovetail.oauth.guard.guard",
    "IntrospectionVerifier": "dovetail.oauth.guard.verifiers",
    "JWTVerifier": "dovetail.oauth.guard.verifiers",
    "OAuth": "dovetail.oauth.login.login_settings",
    "Principal": "dovetail.protocol.principal",
    "ProviderMetadata": "dovetail.oauth.authorization_server.identity_provider",
    "RegisteredClient": "dovetail.oauth.authorization_server.clients",
    "StaticTokenVerifier": "dovetail.oauth.guard.verifiers",
    "TokenStore": "dovetail.oauth.login.login_settings",
    "TokenVerifier": "dovetail.oauth.guard.verifiers",
    "UpstreamProvider": "dovetail.oauth.authorization_server.identity_provider",
    "WorkloadIdentity": "dovetail.oauth.login.login_settings",
}

__all__ = [*_MODULE_BY_NAME]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = _create_lazy_loader(__name__, _MODULE_BY_NAME)
