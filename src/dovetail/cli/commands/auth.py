"""`dovetail auth`: log in at a server, see which logins are kept, log out."""

import functools
import time
from typing import Any

import click
from click.core import ParameterSource

from dovetail.auth.token_stores import FileTokenStore
from dovetail.cli import error_report, logins
from dovetail.cli.command_runner import create_client, run_to_exit_code
from dovetail.cli.target_argument import (
    PositiveNumber,
    TargetOptions,
    build_client_options,
    get_target_url,
    read_target_options,
    target_options,
)
from dovetail.oauth.login.saved_login import SavedLogin
from dovetail.terminal import output


@click.group("auth")
def command() -> None:
    """Log in at a server, see which logins are kept, log out.

    A login is kept in a file only you can read, one per server, and used by every command from then on.
    """


@command.command("login")
@target_options(session=("json",))
@click.option("--client-id", help="The client you registered.")
@click.option("--client-secret", envvar="DOVETAIL_CLIENT_SECRET", help="Its secret; or set DOVETAIL_CLIENT_SECRET.")
@click.option("--scope", "scopes", multiple=True, help="Asked for besides those the server names.")
@click.option("--device", "login_method", flag_value="device", help="Enter a code on another device.")
@click.option("--paste", "login_method", flag_value="paste", help="Use a browser elsewhere, and paste where it ends.")
@click.option("--wait", type=PositiveNumber(), default=300.0, show_default=True, help="Seconds you have for it.")
@click.pass_context
def login(
    ctx: click.Context,
    client_id: str | None,
    client_secret: str | None,
    scopes: tuple[str, ...],
    login_method: str | None,
    wait: float,
    **params: Any,
) -> int:
    """Log in at a server, with a browser.

    What an earlier login may do is asked for again, and that login is kept until there is a new one; log out first to
    begin anew. Exits with 7 if a --scope was not granted.

    \b
    dovetail auth login https://example.com/mcp
    dovetail auth login https://example.com/mcp --scope files:write
    """
    options = read_target_options(ctx, **params)
    url = _get_url(options)
    if client_id is None and ctx.get_parameter_source("client_secret") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--client-secret is of a client: give --client-id too")
    saved_login, store = logins.load_login(url), logins.NewLoginStore()
    requested_scopes = [*(logins.get_granted_scopes(saved_login) if saved_login is not None else ()), *scopes]
    credentials = {"client_id": client_id, "client_secret": client_secret}
    auth = logins.create_login_auth(
        login_method or "browser", **credentials, scopes=requested_scopes, timeout=wait, token_store=store
    )

    async def run() -> None:
        async with create_client(url, build_client_options(options, None) | {"auth": auth}):
            pass

    code = run_to_exit_code(run, options.json)
    if code != error_report.EXIT_OK:
        return code
    _print_login(options, store.login, url, "the server asks for no login")
    missing = logins.find_missing_scopes(store.login, scopes) if store.login is not None else []
    if missing:
        output.print_error(f"not granted: {' '.join(missing)}")
    return error_report.EXIT_DENIED if missing else error_report.EXIT_OK


@command.command("status")
@target_options(session=("json",))
@click.pass_context
def status(ctx: click.Context, **params: Any) -> int:
    """Show the login kept for a server, or all of them; exits with 4 if there is none that can be used.

    \b
    dovetail auth status
    dovetail auth status https://example.com/mcp
    """
    options = read_target_options(ctx, **params)
    if options.args:
        url = _get_url(options)
        saved_login = logins.load_login(url)
        _print_login(options, saved_login, url, "not logged in")
        return (
            error_report.EXIT_OK
            if saved_login is not None and _describe_state(saved_login) != "over"
            else error_report.EXIT_AUTH
        )
    saved_logins = logins.load_all_logins()
    rows = [_describe_login(saved_login) for saved_login in saved_logins]
    if options.json:
        click.echo(output.format_json(rows))
    else:
        cells = [(row["server"], row["state"], row["issuer"]) for row in rows]
        click.echo(output.format_table(cells, ("server", "login", "by")) or "no login is kept")
    return (
        error_report.EXIT_OK
        if any(_describe_state(saved_login) != "over" for saved_login in saved_logins)
        else error_report.EXIT_AUTH
    )


@command.command("logout")
@target_options(session=("json",))
@click.pass_context
def logout(ctx: click.Context, **params: Any) -> int:
    """Forget the login kept for a server, and tell its authorization server, if that wants to know.

    \b
    dovetail auth logout https://example.com/mcp
    """
    from dovetail.auth.authorizer import create_authorizer
    from dovetail.protocol.limits import Timeouts
    from dovetail.transports.http_client.remote_server import create_http_client

    options = read_target_options(ctx, **params)
    url = _get_url(options)
    if logins.load_login(url) is None:
        FileTokenStore().delete(url)  # one that cannot be read is of no use either
        output.print_error(f"not logged in at {url}")
        return error_report.EXIT_AUTH

    async def run() -> None:
        create_client = functools.partial(create_http_client, None, True, None, Timeouts().connect)
        was_revoked = await create_authorizer(url, "oauth", create_client).log_out()
        note = "and the authorization server was told" if was_revoked else "the authorization server was not told"
        click.echo(output.format_json({"revoked": was_revoked}) if options.json else f"logged out at {url}; {note}")

    return run_to_exit_code(run, options.json)


def _get_url(options: TargetOptions) -> str:
    target, _ = options.split_target()
    url = get_target_url(target)
    if url is None:
        raise click.UsageError("only a server at a URL has logins")
    return url


def _print_login(options: TargetOptions, saved_login: SavedLogin | None, url: str, missing_message: str) -> None:
    if options.json:
        click.echo(output.format_json(None if saved_login is None else _describe_login(saved_login)))
    elif saved_login is None:
        click.echo(f"{url}: {missing_message}")
    else:
        facts = _describe_login(saved_login)
        scopes = f", for {output.escape_line(' '.join(facts['scopes']))}" if facts["scopes"] else ""
        click.echo(f"{url}: logged in by {output.escape_line(facts['issuer'])}{scopes}; {facts['state']}")


def _describe_login(saved_login: SavedLogin) -> dict[str, Any]:
    """What may be shown of a login: nothing that would let a reader use it."""
    token = saved_login.token
    return {
        "server": saved_login.resource,
        "issuer": saved_login.server.issuer,
        "client": saved_login.client.client_id,
        "scopes": logins.get_granted_scopes(saved_login) if token is not None else [],
        "expires": token.expires_at if token is not None else None,
        "state": _describe_state(saved_login),
    }


def _describe_state(saved_login: SavedLogin) -> str:
    token, now = saved_login.token, time.time()
    if token is None:
        return "over"
    if token.refresh_token is not None:
        return "renewed when needed"
    if token.expires_at is None:
        return "good"
    remaining = token.expires_at - now
    return f"good for {remaining / 60:.0f} more minutes" if remaining > 0 else "over"
