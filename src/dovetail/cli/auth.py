"""`dovetail auth`: log in at a server, see which logins are kept, log out."""

import functools
import time
from typing import Any

import click
from click.core import ParameterSource

from dovetail.auth.login import Login
from dovetail.cli import exits, logins, text
from dovetail.cli.speaking import client_for, finished
from dovetail.cli.targets import Asked, Seconds, asked, client_options, options, url_of
from dovetail.login.stores import FileStore


@click.group("auth")
def command() -> None:
    """Log in at a server, see which logins are kept, log out.

    A login is kept in a file only you can read, one per server, and used by every command from then on.
    """


@command.command("login")
@options(talk=("json",))
@click.option("--client-id", help="The client you registered.")
@click.option("--client-secret", envvar="DOVETAIL_CLIENT_SECRET", help="Its secret; or set DOVETAIL_CLIENT_SECRET.")
@click.option("--scope", "scopes", multiple=True, help="Asked for besides those the server names.")
@click.option("--device", "how", flag_value="device", help="Enter a code on another device.")
@click.option("--paste", "how", flag_value="paste", help="Use a browser elsewhere, and paste where it ends.")
@click.option("--wait", type=Seconds(), default=300.0, show_default=True, help="Seconds you have for it.")
@click.pass_context
def login(
    ctx: click.Context,
    client_id: str | None,
    client_secret: str | None,
    scopes: tuple[str, ...],
    how: str | None,
    wait: float,
    **given: Any,
) -> int:
    """Log in at a server, with a browser.

    What an earlier login may do is asked for again, and that login is kept until there is a new one; log out first to
    begin anew. Exits with 7 if a --scope was not granted.

    \b
    dovetail auth login https://example.com/mcp
    dovetail auth login https://example.com/mcp --scope files:write
    """
    line = asked(ctx, **given)
    url = _address(line)
    if client_id is None and ctx.get_parameter_source("client_secret") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--client-secret is of a client: give --client-id too")
    before, store = logins.found(url), logins.Renewed()
    wanted = [*(logins.granted(before) if before is not None else ()), *scopes]
    named = {"client_id": client_id, "client_secret": client_secret}
    wish = logins.wished(how or "browser", **named, scopes=wanted, timeout=wait, store=store)

    async def run() -> None:
        async with client_for(url, client_options(line, None) | {"auth": wish}):
            pass

    code = finished(run, line.json)
    if code != exits.OK:
        return code
    _tell(line, store.login, url, "the server asks for no login")
    missing = logins.lacking(store.login, scopes) if store.login is not None else []
    if missing:
        text.fail(f"not granted: {' '.join(missing)}")
    return exits.DENIED if missing else exits.OK


@command.command("status")
@options(talk=("json",))
@click.pass_context
def status(ctx: click.Context, **given: Any) -> int:
    """Show the login kept for a server, or all of them; exits with 4 if there is none that can be used.

    \b
    dovetail auth status
    dovetail auth status https://example.com/mcp
    """
    line = asked(ctx, **given)
    if line.words:
        url = _address(line)
        kept = logins.found(url)
        _tell(line, kept, url, "not logged in")
        return exits.OK if kept is not None and _state(kept) != "over" else exits.AUTH
    everyone = logins.everyone()
    rows = [_facts(one) for one in everyone]
    if line.json:
        click.echo(text.document(rows))
    else:
        cells = [(one["server"], one["state"], one["issuer"]) for one in rows]
        click.echo(text.table(cells, ("server", "login", "by")) or "no login is kept")
    return exits.OK if any(_state(one) != "over" for one in everyone) else exits.AUTH


@command.command("logout")
@options(talk=("json",))
@click.pass_context
def logout(ctx: click.Context, **given: Any) -> int:
    """Forget the login kept for a server, and tell its authorization server, if that wants to know.

    \b
    dovetail auth logout https://example.com/mcp
    """
    from dovetail.login.driver import driver_for
    from dovetail.protocol.limits import Timeouts
    from dovetail.transports.door import fetcher

    line = asked(ctx, **given)
    url = _address(line)
    if logins.found(url) is None:
        FileStore().delete(url)  # one that cannot be read is of no use either
        text.fail(f"not logged in at {url}")
        return exits.AUTH

    async def run() -> None:
        make = functools.partial(fetcher, None, None, True, None, Timeouts().connect)
        told = await driver_for(url, "oauth", make).log_out()
        said = "and the authorization server was told" if told else "the authorization server was not told"
        click.echo(text.document({"revoked": told}) if line.json else f"logged out at {url}; {said}")

    return finished(run, line.json)


def _address(line: Asked) -> str:
    target, _ = line.split()
    url = url_of(target)
    if url is None:
        raise click.UsageError("only a server at a URL has logins")
    return url


def _tell(line: Asked, kept: Login | None, url: str, otherwise: str) -> None:
    if line.json:
        click.echo(text.document(None if kept is None else _facts(kept)))
    elif kept is None:
        click.echo(f"{url}: {otherwise}")
    else:
        facts = _facts(kept)
        scopes = f", for {text.line(' '.join(facts['scopes']))}" if facts["scopes"] else ""
        click.echo(f"{url}: logged in by {text.line(facts['issuer'])}{scopes}; {facts['state']}")


def _facts(kept: Login) -> dict[str, Any]:
    """What may be shown of a login: nothing that would let a reader use it."""
    token = kept.token
    return {
        "server": kept.resource,
        "issuer": kept.server.issuer,
        "client": kept.client.client_id,
        "scopes": logins.granted(kept) if token is not None else [],
        "expires": token.expires_at if token is not None else None,
        "state": _state(kept),
    }


def _state(kept: Login) -> str:
    token, now = kept.token, time.time()
    if token is None:
        return "over"
    if token.refresh_token is not None:
        return "renewed when needed"
    if token.expires_at is None:
        return "good"
    left = token.expires_at - now
    return f"good for {left / 60:.0f} more minutes" if left > 0 else "over"
