"""The pages a user sees: who asks for what, and what went wrong. Everything in them is escaped; they run nothing."""

from collections.abc import Sequence
from html import escape
from urllib.parse import urlsplit

from dovetail.auth.server.clients import is_local
from dovetail.auth.server.store import Asked, Client

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:4rem auto;padding:0 1rem;color:#222}"
    "h1{font-size:1.3rem}dt{color:#666;font-size:.85rem;margin-top:.8rem}dd{margin:0;overflow-wrap:anywhere}"
    ".note{border-left:4px solid #c60;background:#fff6ec;padding:.5rem .8rem;margin:1rem 0}"
    "label{display:block;margin:.6rem 0}input{font:inherit;padding:.3rem;width:100%;box-sizing:border-box}"
    "button{font:inherit;padding:.5rem 1.2rem;margin:1rem .6rem 0 0;cursor:pointer}"
)


def _whole(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>{body}</body></html>'
    )


def consent(
    client: Client,
    asked: Asked,
    *,
    action: str,
    key: str,
    server: str,
    passwords: bool,
    user: str | None,
    upstream: str | None,
    problem: str | None = None,
) -> str:
    """Who asks for access to what, and where the answer will be sent. spec: client-registration"""
    host = redirect_host(asked.redirect_uri)
    rows = [("Application", client.client_name or "(without a name)")]
    if client.by_document:
        rows.append(("Described at", urlsplit(client.client_id).hostname or ""))
    rows += [("The answer is sent to", host), ("Access to", asked.resource)]
    rows += [("Permissions", ", ".join(asked.scopes) or "none by name")]
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    notes = _notes(asked, user, problem)
    fields = ""
    if passwords:
        fields = (
            '<label>Name<input name="username" autocomplete="username" required></label>'
            '<label>Password<input name="password" type="password" autocomplete="current-password" required></label>'
        )
    further = f"<p>You will then log in at {escape(upstream)}.</p>" if upstream is not None else ""
    return _whole(
        f"{server}: allow access?",
        f"<h1>Allow this application to act for you?</h1>{notes}<dl>{listed}</dl>{further}"
        f'<form method="post" action="{escape(action)}">'
        f'<input type="hidden" name="request" value="{escape(key)}">'
        f'<input type="hidden" name="csrf" value="{escape(asked.csrf)}">{fields}'
        '<button name="decision" value="allow">Allow</button>'
        '<button name="decision" value="deny" formnovalidate>Deny</button></form>',
    )


def _notes(asked: Asked, user: str | None, problem: str | None) -> str:
    said: list[str] = []
    if problem is not None:
        said.append(problem)
    if user is not None:
        said.append(f"Development mode: nobody is asked for a password. Whoever allows this acts as “{user}”.")
    if is_local(asked.redirect_uri):
        said.append(
            "The answer goes to a program on this computer. Any program here could claim to be this application: allow "
            "it only if you have just started it yourself."
        )
    return "".join(f'<p class="note">{escape(one)}</p>' for one in said)


def onward(name: str, url: str) -> str:
    """The way to the provider upstream."""
    link = escape(url)
    return _whole(
        "Log in",
        f'<meta http-equiv="refresh" content="0;url={link}"><p><a rel="noreferrer" href="{link}">Log in at '
        f"{escape(name)}</a></p>",
    )


def trouble(title: str, words: Sequence[str]) -> str:
    """Something that leads nowhere."""
    return _whole(title, f"<h1>{escape(title)}</h1>" + "".join(f"<p>{escape(one)}</p>" for one in words))


def redirect_host(uri: str) -> str:
    """The host a redirect leads to, as a user can judge it."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        return f"the application that owns {parts.scheme}:"
    name = parts.hostname or ""
    return f"{name} (this computer)" if is_local(uri) else name
