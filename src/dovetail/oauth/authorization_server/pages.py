"""HTML pages of the authorization server. All values are escaped, and the pages contain no scripts."""

from collections.abc import Sequence
from html import escape
from urllib.parse import urlsplit

from dovetail.oauth.authorization_server.clients import is_local_redirect
from dovetail.oauth.authorization_server.store import AuthorizationRequest, ClientRecord

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:4rem auto;padding:0 1rem;color:#222}"
    "h1{font-size:1.3rem}dt{color:#666;font-size:.85rem;margin-top:.8rem}dd{margin:0;overflow-wrap:anywhere}"
    ".note{border-left:4px solid #c60;background:#fff6ec;padding:.5rem .8rem;margin:1rem 0}"
    "label{display:block;margin:.6rem 0}input{font:inherit;padding:.3rem;width:100%;box-sizing:border-box}"
    "button{font:inherit;padding:.5rem 1.2rem;margin:1rem .6rem 0 0;cursor:pointer}"
)


def _render_page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>{body}</body></html>'
    )


def render_consent(
    client: ClientRecord,
    authorization_request: AuthorizationRequest,
    *,
    action: str,
    sealed_request: str,
    server_name: str,
    asks_password: bool,
    user: str | None,
    provider_name: str | None,
    problem: str | None = None,
) -> str:
    """Render the consent page with the application, the requested access, and the redirect target.

    spec: client-registration
    """
    host = describe_redirect_host(authorization_request.redirect_uri)
    rows = [("Application", client.client_name or "(no name)")]
    if client.by_document:
        rows.append(("Described at", urlsplit(client.client_id).hostname or ""))
    rows += [("The answer is sent to", host), ("Access to", authorization_request.resource)]
    rows += [("Permissions", ", ".join(authorization_request.scopes) or "none named")]
    rows_html = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    notes = _render_notes(authorization_request, user, problem)
    fields = ""
    if asks_password:
        fields = (
            '<label>Name<input name="username" autocomplete="username" required></label>'
            '<label>Password<input name="password" type="password" autocomplete="current-password" required></label>'
        )
    provider_note = f"<p>You will then log in at {escape(provider_name)}.</p>" if provider_name is not None else ""
    return _render_page(
        f"{server_name}: allow access?",
        f"<h1>Allow this application to act for you?</h1>{notes}<dl>{rows_html}</dl>{provider_note}"
        f'<form method="post" action="{escape(action)}">'
        f'<input type="hidden" name="request" value="{escape(sealed_request)}">'
        f'<input type="hidden" name="csrf" value="{escape(authorization_request.csrf)}">{fields}'
        '<button name="decision" value="allow">Allow</button>'
        '<button name="decision" value="deny" formnovalidate>Deny</button></form>',
    )


def _render_notes(authorization_request: AuthorizationRequest, user: str | None, problem: str | None) -> str:
    notes: list[str] = []
    if problem is not None:
        notes.append(problem)
    if user is not None:
        notes.append(f"Development mode: there is no password. Anyone who allows this acts as “{user}”.")
    if is_local_redirect(authorization_request.redirect_uri):
        notes.append(
            "The answer goes to a program on this computer. Any program on this computer could claim to be "
            "this application, so allow access only if you have just started the application yourself."
        )
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)


def render_provider_redirect(name: str, url: str) -> str:
    """Render a page with a link to the upstream provider."""
    link = escape(url)
    return _render_page(
        "Log in",
        f'<meta http-equiv="refresh" content="0;url={link}"><p><a rel="noreferrer" href="{link}">Log in at '
        f"{escape(name)}</a></p>",
    )


def render_error(title: str, paragraphs: Sequence[str]) -> str:
    return _render_page(
        title, f"<h1>{escape(title)}</h1>" + "".join(f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs)
    )


def describe_redirect_host(uri: str) -> str:
    """Describe the target of a redirect for the user."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        return f"the application that owns {parts.scheme}:"
    name = parts.hostname or ""
    return f"{name} (this computer)" if is_local_redirect(uri) else name
