"""The metadata of known identity providers, shortened to the relevant fields.

The documents of WorkOS, Clerk, Supabase and Descope are built from their documentation. The others are recorded. GitHub
publishes no userinfo endpoint. Its documentation names it.
"""

from typing import Any, NamedTuple


class RecordedMetadata(NamedTuple):
    """The metadata of one provider."""

    parts: dict[str, str]  # arguments of `UpstreamProvider` besides the name
    metadata_url: str
    document: dict[str, Any]
    userinfo: str | None = None  # if the metadata does not contain it
    has_issuer: bool = True  # whether the preset knows the issuer, because it is the same for everyone


RECORDED_METADATA = {
    "github": RecordedMetadata(
        {},
        "https://github.com/.well-known/oauth-authorization-server/login/oauth",
        {
            "issuer": "https://github.com/login/oauth",
            "authorization_endpoint": "https://github.com/login/oauth/authorize",
            "token_endpoint": "https://github.com/login/oauth/access_token",
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
        },
        userinfo="https://api.github.com/user",
    ),
    "google": RecordedMetadata(
        {},
        "https://accounts.google.com/.well-known/openid-configuration",
        {
            "issuer": "https://accounts.google.com",
            "authorization_endpoint": "https://accounts.google.com/o/oauth2/v2/auth",
            "token_endpoint": "https://oauth2.googleapis.com/token",
            "userinfo_endpoint": "https://openidconnect.googleapis.com/v1/userinfo",
            "jwks_uri": "https://www.googleapis.com/oauth2/v3/certs",
            "scopes_supported": ["openid", "email", "profile"],
            "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
        },
    ),
    "entra": RecordedMetadata(
        {"tenant": "88888888-8888-8888-8888-888888888888"},
        "https://login.microsoftonline.com/88888888-8888-8888-8888-888888888888/v2.0/.well-known/openid-configuration",
        {
            "issuer": "https://login.microsoftonline.com/88888888-8888-8888-8888-888888888888/v2.0",
            "authorization_endpoint": (
                "https://login.microsoftonline.com/88888888-8888-8888-8888-888888888888/oauth2/v2.0/authorize"
            ),
            "token_endpoint": (
                "https://login.microsoftonline.com/88888888-8888-8888-8888-888888888888/oauth2/v2.0/token"
            ),
            "userinfo_endpoint": "https://graph.microsoft.com/oidc/userinfo",
            "jwks_uri": "https://login.microsoftonline.com/88888888-8888-8888-8888-888888888888/discovery/v2.0/keys",
            "scopes_supported": ["openid", "profile", "email", "offline_access"],
            "token_endpoint_auth_methods_supported": ["client_secret_post", "private_key_jwt", "client_secret_basic"],
        },
        has_issuer=False,  # the issuer contains the tenant's id, not its domain
    ),
    "gitlab": RecordedMetadata(
        {},
        "https://gitlab.com/.well-known/openid-configuration",
        {
            "issuer": "https://gitlab.com",
            "authorization_endpoint": "https://gitlab.com/oauth/authorize",
            "token_endpoint": "https://gitlab.com/oauth/token",
            "userinfo_endpoint": "https://gitlab.com/oauth/userinfo",
            "jwks_uri": "https://gitlab.com/oauth/discovery/keys",
        },
    ),
    "auth0": RecordedMetadata(
        {"domain": "example.us.auth0.com"},
        "https://example.us.auth0.com/.well-known/openid-configuration",
        {
            "issuer": "https://example.us.auth0.com/",
            "authorization_endpoint": "https://example.us.auth0.com/authorize",
            "token_endpoint": "https://example.us.auth0.com/oauth/token",
            "userinfo_endpoint": "https://example.us.auth0.com/userinfo",
            "jwks_uri": "https://example.us.auth0.com/.well-known/jwks.json",
        },
    ),
    "okta": RecordedMetadata(
        {"domain": "example.okta.com"},
        "https://example.okta.com/.well-known/openid-configuration",
        {
            "issuer": "https://example.okta.com",
            "authorization_endpoint": "https://example.okta.com/oauth2/v1/authorize",
            "token_endpoint": "https://example.okta.com/oauth2/v1/token",
            "userinfo_endpoint": "https://example.okta.com/oauth2/v1/userinfo",
            "jwks_uri": "https://example.okta.com/oauth2/v1/keys",
        },
    ),
    "keycloak": RecordedMetadata(
        {"domain": "id.example.com", "realm": "staff"},
        "https://id.example.com/realms/staff/.well-known/openid-configuration",
        {
            "issuer": "https://id.example.com/realms/staff",
            "authorization_endpoint": "https://id.example.com/realms/staff/protocol/openid-connect/auth",
            "token_endpoint": "https://id.example.com/realms/staff/protocol/openid-connect/token",
            "userinfo_endpoint": "https://id.example.com/realms/staff/protocol/openid-connect/userinfo",
            "jwks_uri": "https://id.example.com/realms/staff/protocol/openid-connect/certs",
        },
    ),
    "cognito": RecordedMetadata(
        {"domain": "example.auth.us-east-1.amazoncognito.com"},
        "https://cognito-idp.us-east-1.amazonaws.com/us-east-1_abc/.well-known/openid-configuration",
        {
            "issuer": "https://cognito-idp.us-east-1.amazonaws.com/us-east-1_abc",
            "authorization_endpoint": "https://example.auth.us-east-1.amazoncognito.com/oauth2/authorize",
            "token_endpoint": "https://example.auth.us-east-1.amazoncognito.com/oauth2/token",
            "userinfo_endpoint": "https://example.auth.us-east-1.amazoncognito.com/oauth2/userInfo",
            "jwks_uri": "https://cognito-idp.us-east-1.amazonaws.com/us-east-1_abc/.well-known/jwks.json",
            "scopes_supported": ["openid", "email", "phone", "profile"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
        },
        has_issuer=False,  # the issuer contains the id of the pool, not its domain
    ),
    "workos": RecordedMetadata(
        {"domain": "example.authkit.app"},
        "https://example.authkit.app/.well-known/openid-configuration",
        {
            "issuer": "https://example.authkit.app",
            "authorization_endpoint": "https://example.authkit.app/oauth2/authorize",
            "token_endpoint": "https://example.authkit.app/oauth2/token",
            "userinfo_endpoint": "https://example.authkit.app/oauth2/userinfo",
        },
    ),
    "clerk": RecordedMetadata(
        {"domain": "example.clerk.accounts.dev"},
        "https://example.clerk.accounts.dev/.well-known/openid-configuration",
        {
            "issuer": "https://example.clerk.accounts.dev",
            "authorization_endpoint": "https://example.clerk.accounts.dev/oauth/authorize",
            "token_endpoint": "https://example.clerk.accounts.dev/oauth/token",
            "userinfo_endpoint": "https://example.clerk.accounts.dev/oauth/userinfo",
        },
    ),
    "supabase": RecordedMetadata(
        {"domain": "example.supabase.co"},
        "https://example.supabase.co/auth/v1/.well-known/openid-configuration",
        {
            "issuer": "https://example.supabase.co/auth/v1",
            "authorization_endpoint": "https://example.supabase.co/auth/v1/oauth/authorize",
            "token_endpoint": "https://example.supabase.co/auth/v1/oauth/token",
            "userinfo_endpoint": "https://example.supabase.co/auth/v1/oauth/userinfo",
        },
    ),
    "descope": RecordedMetadata(
        {},
        "https://api.descope.com/P123/.well-known/openid-configuration",
        {
            "issuer": "https://api.descope.com/P123",
            "authorization_endpoint": "https://api.descope.com/oauth2/v1/authorize",
            "token_endpoint": "https://api.descope.com/oauth2/v1/token",
            "userinfo_endpoint": "https://api.descope.com/oauth2/v1/userinfo",
        },
        has_issuer=False,  # the issuer contains the ID of the project
    ),
}
