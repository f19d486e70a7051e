"""Upstream identity providers, at which users of the authorization server log in.

This is useful for providers that do not support client registration. Clients receive only the tokens of the
authorization server, never those of the provider.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from dovetail.errors import LoginFailed
from dovetail.oauth.flow import Flow, Now, build_basic_auth, fetch, login_error, post_form
from dovetail.oauth.login.saved_login import Token
from dovetail.oauth.metadata import fetch_server_metadata, is_secure_url
from dovetail.oauth.token_request import parse_token
from dovetail.wire.base import Struct, field, replace

_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")
_PLAIN_VALUE: Final = re.compile(r"[A-Za-z0-9._~\-]+(:[0-9]+)?")
_USER_CLAIMS: Final = ("name", "email", "login", "preferred_username", "picture")


class ProviderMetadata(Struct, frozen=True, kw_only=True):
    """The endpoints and options of an identity provider."""

    name: str  # The name of the provider that users see.
    authorization_endpoint: str  # The URL of the login page.
    token_endpoint: str  # The URL that exchanges authorization codes for tokens.
    userinfo_endpoint: str  # The URL that returns the claims of the user.
    issuer: str | None = None  # The issuer in the provider's responses, or None if the provider sends no issuer.
    subject_claim: str = "sub"  # The claim that contains the permanent ID of a user.
    scopes: tuple[str, ...] = ("openid",)  # The scopes to request from the provider.
    # How to send the client secret: "client_secret_post" or "client_secret_basic".
    token_endpoint_auth_method: str = "client_secret_post"
    extra_params: dict[str, str] = field(default_factory=dict)  # Additional parameters for the authorization endpoint.


# These values come from the documentation of the providers, and were not tried with the real services. Placeholders
# such as `{domain}` are replaced by the options of `UpstreamProvider`.
PROVIDER_PRESETS: Final[dict[str, dict[str, Any]]] = {
    "github": {
        "issuer": "https://github.com/login/oauth",
        "authorization_endpoint": "https://github.com/login/oauth/authorize",
        "token_endpoint": "https://github.com/login/oauth/access_token",
        "userinfo_endpoint": "https://api.github.com/user",
        "subject_claim": "id",
        "scopes": ("read:user",),
    },
    "google": {
        "issuer": "https://accounts.google.com",
        "authorization_endpoint": "https://accounts.google.com/o/oauth2/v2/auth",
        "token_endpoint": "https://oauth2.googleapis.com/token",
        "userinfo_endpoint": "https://openidconnect.googleapis.com/v1/userinfo",
        "scopes": ("openid", "email", "profile"),
        "extra_params": {"access_type": "offline", "prompt": "consent"},
    },
    "entra": {
        "authorization_endpoint": "https://login.microsoftonline.com/{tenant}/oauth2/v2.0/authorize",
        "token_endpoint": "https://login.microsoftonline.com/{tenant}/oauth2/v2.0/token",
        "userinfo_endpoint": "https://graph.microsoft.com/oidc/userinfo",
        "scopes": ("openid", "profile", "email", "offline_access"),
    },
    "gitlab": {
        "issuer": "https://gitlab.com",
        "authorization_endpoint": "https://gitlab.com/oauth/authorize",
        "token_endpoint": "https://gitlab.com/oauth/token",
        "userinfo_endpoint": "https://gitlab.com/oauth/userinfo",
        "scopes": ("openid", "profile", "email"),
    },
    "auth0": {
        "issuer": "https://{domain}/",
        "authorization_endpoint": "https://{domain}/authorize",
        "token_endpoint": "https://{domain}/oauth/token",
        "userinfo_endpoint": "https://{domain}/userinfo",
        "scopes": ("openid", "profile", "email", "offline_access"),
    },
    "okta": {
        "issuer": "https://{domain}",
        "authorization_endpoint": "https://{domain}/oauth2/v1/authorize",
        "token_endpoint": "https://{domain}/oauth2/v1/token",
        "userinfo_endpoint": "https://{domain}/oauth2/v1/userinfo",
        "scopes": ("openid", "profile", "email", "offline_access"),
    },
    "keycloak": {
        "issuer": "https://{domain}/realms/{realm}",
        "authorization_endpoint": "https://{domain}/realms/{realm}/protocol/openid-connect/auth",
        "token_endpoint": "https://{domain}/realms/{realm}/protocol/openid-connect/token",
        "userinfo_endpoint": "https://{domain}/realms/{realm}/protocol/openid-connect/userinfo",
        "scopes": ("openid", "profile", "email"),
    },
    "cognito": {
        "authorization_endpoint": "https://{domain}/oauth2/authorize",
        "token_endpoint": "https://{domain}/oauth2/token",
        "userinfo_endpoint": "https://{domain}/oauth2/userInfo",
        "scopes": ("openid", "profile", "email"),
        "token_endpoint_auth_method": "client_secret_basic",
    },
    "workos": {
        "issuer": "https://{domain}",
        "authorization_endpoint": "https://{domain}/oauth2/authorize",
        "token_endpoint": "https://{domain}/oauth2/token",
        "userinfo_endpoint": "https://{domain}/oauth2/userinfo",
        "scopes": ("openid", "profile", "email", "offline_access"),
    },
    "clerk": {
        "issuer": "https://{domain}",
        "authorization_endpoint": "https://{domain}/oauth/authorize",
        "token_endpoint": "https://{domain}/oauth/token",
        "userinfo_endpoint": "https://{domain}/oauth/userinfo",
        "scopes": ("openid", "profile", "email"),
    },
    "supabase": {
        "issuer": "https://{domain}/auth/v1",
        "authorization_endpoint": "https://{domain}/auth/v1/oauth/authorize",
        "token_endpoint": "https://{domain}/auth/v1/oauth/token",
        "userinfo_endpoint": "https://{domain}/auth/v1/oauth/userinfo",
        "scopes": ("openid", "profile", "email"),
    },
    "descope": {
        "authorization_endpoint": "https://api.descope.com/oauth2/v1/authorize",
        "token_endpoint": "https://api.descope.com/oauth2/v1/token",
        "userinfo_endpoint": "https://api.descope.com/oauth2/v1/userinfo",
        "scopes": ("openid", "profile", "email"),
    },
}


class UpstreamProvider:
    """An identity provider whose users can log in to this authorization server.

    Pass it to `AuthorizationServer(upstream=...)`.

    provider: a known provider, such as "github", or a `ProviderMetadata(...)`.
    client_id, client_secret: the ID and secret of the client that you registered at the provider.
    issuer: the issuer URL of another provider that publishes its metadata. Pass either this or `provider`.
    scopes: scopes to request from the provider.
    allow_user: a function that takes the user's claims and returns True if the user may log in. By default, every user
        with an account
    at the provider can log in.
    tenant: the tenant of "entra".
    domain: the domain of "auth0", "okta", "cognito", "keycloak", "workos", "clerk" or "supabase".
    realm: the realm of "keycloak".
    """

    def __init__(
        self,
        provider: str | ProviderMetadata | None = None,
        *,
        client_id: str,
        client_secret: str,
        issuer: str | None = None,
        scopes: Sequence[str] | None = None,
        allow_user: Callable[[Mapping[str, Any]], bool] | None = None,
        tenant: str | None = None,
        domain: str | None = None,
        realm: str | None = None,
    ) -> None:
        if (provider is None) == (issuer is None):
            raise ValueError("UpstreamProvider requires either a provider or issuer=, not both")
        if issuer is not None and not is_secure_url(issuer):
            raise ValueError(f"issuer must be an https URL, exactly as in the provider's metadata, not {issuer!r}")
        _check_allow_user(allow_user)
        parts = {"tenant": tenant, "domain": domain, "realm": realm}
        parts_given = {name: value for name, value in parts.items() if value is not None}
        if isinstance(provider, str):
            provider = _load_preset(provider, parts_given)
        elif parts_given:
            raise ValueError(f"{next(iter(parts_given))}= is only for known providers")
        self._identity_provider = IdentityProvider(
            provider,
            issuer=issuer,
            client_id=client_id,
            client_secret=client_secret,
            scopes=None if scopes is None else tuple(scopes),
            allow_user=allow_user,
        )


def get_identity_provider(upstream: UpstreamProvider) -> "IdentityProvider":
    return upstream._identity_provider  # pyright: ignore[reportPrivateUsage]


class IdentityProvider:
    """Logs users in at an identity provider."""

    def __init__(
        self,
        metadata: ProviderMetadata | None,
        *,
        issuer: str | None,
        client_id: str,
        client_secret: str,
        scopes: tuple[str, ...] | None,
        allow_user: Callable[[Mapping[str, Any]], bool] | None,
    ) -> None:
        self._metadata = metadata
        self._issuer = issuer
        self._client_id = client_id
        self._client_secret = client_secret
        self._scopes = scopes
        self._allow_user = allow_user

    @property
    def name(self) -> str:
        return self._metadata.name if self._metadata is not None else (self._issuer or "")

    def get_metadata(self) -> Flow[ProviderMetadata]:
        """Return the metadata of the provider. If only the issuer is known, fetch the metadata once."""
        if self._metadata is None:
            assert self._issuer is not None
            metadata, failure_cause = (
                None,
                LoginFailed(f"{self._issuer} cannot be reached, or has no valid metadata"),
            )
            try:
                metadata = yield from fetch_server_metadata(self._issuer)
            except LoginFailed as exc:
                failure_cause = exc
            if metadata is None or not (
                metadata.authorization_endpoint and metadata.token_endpoint and metadata.userinfo_endpoint
            ):
                raise LoginFailed("the identity provider publishes no valid metadata") from failure_cause
            supported = metadata.token_endpoint_auth_methods_supported or ["client_secret_basic"]
            supports_post = "client_secret_post" in supported
            self._metadata = ProviderMetadata(
                name=self._issuer,
                issuer=self._issuer,
                authorization_endpoint=metadata.authorization_endpoint,
                token_endpoint=metadata.token_endpoint,
                userinfo_endpoint=metadata.userinfo_endpoint,
                token_endpoint_auth_method="client_secret_post" if supports_post else "client_secret_basic",
            )
        if not all(map(is_secure_url, (self._metadata.token_endpoint, self._metadata.userinfo_endpoint))):
            raise LoginFailed("the endpoints of the identity provider must be https URLs")
        return self._metadata

    def build_authorization_url(self, callback: str, state: str, challenge: str) -> Flow[str]:
        """Return the login URL for the user's browser."""
        provider = yield from self.get_metadata()
        fields = provider.extra_params | {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": callback,
            "scope": " ".join(self._scopes if self._scopes is not None else provider.scopes),
            "state": state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        endpoint = provider.authorization_endpoint
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(fields)}"

    def finish_login(
        self, fields: Mapping[str, str], callback: str, verifier: str
    ) -> Flow[tuple[str, dict[str, Any], Token]]:
        """Finish a login. Return the user's subject, the user's claims and the provider's tokens.

        Raise LoginFailed if the login failed. If the provider sent an error, this error is the cause of the exception.
        """
        provider = yield from self.get_metadata()
        if provider.issuer is not None and fields.get("iss", provider.issuer) != provider.issuer:
            raise LoginFailed("the login response comes from another identity provider")
        form = {
            "grant_type": "authorization_code",
            "code": fields.get("code", ""),
            "redirect_uri": callback,
            "code_verifier": verifier,
        }
        token = yield from self._request_token(provider, form)
        headers = {"authorization": f"Bearer {token.access_token}"}
        response = yield from fetch(provider.userinfo_endpoint, headers)
        user_info = response.json() if response.status_code == 200 else None
        subject = user_info.get(provider.subject_claim) if user_info is not None else None
        if user_info is None or isinstance(subject, bool) or not isinstance(subject, str | int) or subject == "":
            raise LoginFailed("the identity provider did not send the ID of the user") from login_error(
                provider.userinfo_endpoint, response
            )
        if self._allow_user is not None and self._allow_user(user_info) is not True:
            raise LoginFailed("this account may not use this server")
        claims = {name: user_info[name] for name in _USER_CLAIMS if isinstance(user_info.get(name), str)}
        return f"{provider.name}:{subject}", claims, token

    def renew_token(self, token: Token) -> Flow[Token | None]:
        """Renew the provider's token. Return None if there is no refresh token.

        Raise LoginFailed if the provider refuses.
        """
        if token.refresh_token is None:
            return None
        provider = yield from self.get_metadata()
        form = {"grant_type": "refresh_token", "refresh_token": token.refresh_token}
        new_token = yield from self._request_token(provider, form)
        return (
            new_token if new_token.refresh_token is not None else replace(new_token, refresh_token=token.refresh_token)
        )

    def _request_token(self, provider: ProviderMetadata, form: dict[str, str]) -> Flow[Token]:
        headers: dict[str, str] = {}
        if provider.token_endpoint_auth_method == "client_secret_basic":
            headers["authorization"] = build_basic_auth(self._client_id, self._client_secret)
        else:
            form = form | {"client_id": self._client_id, "client_secret": self._client_secret}
        response = yield from post_form(provider.token_endpoint, form, headers)
        now: float = yield Now()
        try:
            if response.status_code != 200:
                raise LoginFailed("the token response contains no token")
            return parse_token(response, now)
        except LoginFailed:
            # Some providers send errors with status 200.
            raise LoginFailed("the identity provider did not issue a token") from login_error(
                provider.token_endpoint, response
            )


def _check_allow_user(allow_user: Any) -> None:
    if not (allow_user is None or callable(allow_user)):
        raise TypeError(
            'allow_user must be a function that takes the user\'s claims, such as lambda user: user["login"] == "ada"'
        )


def _load_preset(name: str, parts: Mapping[str, str]) -> ProviderMetadata:
    preset = PROVIDER_PRESETS.get(name)
    if preset is None:
        raise ValueError(
            f"provider must be one of {', '.join(PROVIDER_PRESETS)}, or a ProviderMetadata(...), not {name!r}"
        )
    try:
        fields: dict[str, Any] = {
            key: value.format(**parts) if isinstance(value, str) else value for key, value in preset.items()
        }
    except KeyError as exc:
        raise ValueError(f"provider {name!r} needs {exc.args[0]}=") from None
    placeholders = {part for value in preset.values() if isinstance(value, str) for part in _PLACEHOLDER.findall(value)}
    for part, value in parts.items():
        if part not in placeholders:
            raise ValueError(f"{part}= is not an option of the provider {name!r}")
        if not _PLAIN_VALUE.fullmatch(value):
            raise ValueError(f"{part}= must be a name without slashes, such as login.example.com, not {value!r}")
    return ProviderMetadata(name=name, **fields)
