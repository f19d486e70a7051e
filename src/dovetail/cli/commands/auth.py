"""`dovetail auth`: log in to servers, show saved logins, log out."""

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
from dovetail.protocol.redaction import strip_url
from dovetail.terminal import output


@click.group("auth")
def command() -> None:
    """Manage logins.

    Each login is saved in a file that only you can read. All commands use saved logins.
    """


@command.command("login")
@target_options(session=("json",))
@click.option("--client-id", help="Client ID of a registered client.")
@click.option(
    "--client-secret", envvar="DOVETAIL_CLIENT_SECRET", help="Client secret. Defaults to DOVETAIL_CLIENT_SECRET."
)
@click.option("--scope", "scopes", multiple=True, help="Additional scope to request. Repeatable.")
@click.option("--device", "login_method", flag_value="device", help="Log in on another device with a code.")
@click.option("--paste", "login_method", flag_value="paste", help="Paste the redirect URL from another browser.")
@click.option(
    "--timeout", type=PositiveNumber(), default=300.0, show_default=True, help="Seconds to wait for the login."
)
@click.pass_context
def login(
    ctx: click.Context,
    client_id: str | None,
    client_secret: str | None,
    scopes: tuple[str, ...],
    login_method: str | None,
    timeout: float,
    **params: Any,
) -> int:
    """Log in to a server.

    Opens a browser. Requests the scopes of the saved login again, and keeps the saved login until the new login
    succeeds. To log in without the saved scopes, log out first. Exits with 7 if a --scope was not granted.

    \b
    dovetail auth login https://example.com/mcp
    dovetail auth login https://example.com/mcp --scope files:write
    """
    options = read_target_options(ctx, **params)
    url = _get_url(options)
    if client_id is None and ctx.get_parameter_source("client_secret") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--client-secret requires --client-id")
    saved_login, store = logins.load_login(url), logins.NewLoginStore()
    requested_scopes = [*(logins.get_granted_scopes(saved_login) if saved_login is not None else ()), *scopes]
    credentials = {"client_id": client_id, "client_secret": client_secret}
    auth = logins.create_login_auth(
        login_method or "browser", **credentials, scopes=requested_scopes, timeout=timeout, token_store=store
    )

    async def run() -> None:
        async with create_client(url, build_client_options(options, None) | {"auth": auth}):
            pass

    code = run_to_exit_code(run, options.json)
    if code != error_report.EXIT_OK:
        return code
    _print_login(options, store.login, url, "the server does not require a login")
    missing = logins.find_missing_scopes(store.login, scopes) if store.login is not None else []
    if missing:
        output.print_error(f"not granted: {' '.join(missing)}")
    return error_report.EXIT_DENIED if missing else error_report.EXIT_OK


@command.command("status")
@target_options(session=("json",))
@click.pass_context
def status(ctx: click.Context, **params: Any) -> int:
    """Show saved logins.

    Exits with 4 if there is no valid login.

    \b
    dovetail auth status
    dovetail auth status https://example.com/mcp
    """
    options = read_target_options(ctx, **params)
    if options.args:
        url = _get_url(options)
        saved_login = logins.load_login(url)
        _print_login(options, saved_login, url, "not logged in")
        return error_report.EXIT_AUTH if saved_login is None or _is_expired(saved_login) else error_report.EXIT_OK
    saved_logins = logins.load_all_logins()
    if options.json:
        click.echo(output.format_json([_describe_login(saved_login) for saved_login in saved_logins]))
    else:
        cells = [
            (strip_url(saved_login.resource), _describe_state(saved_login), saved_login.server.issuer)
            for saved_login in saved_logins
        ]
        click.echo(output.format_table(cells, ("server", "state", "issuer")) or "no saved logins")
    return error_report.EXIT_AUTH if all(map(_is_expired, saved_logins)) else error_report.EXIT_OK


@command.command("logout")
@target_options(session=("json",))
@click.pass_context
def logout(ctx: click.Context, **params: Any) -> int:
    """Log out and revoke the saved token.

    \b
    dovetail auth logout https://example.com/mcp
    """
    from dovetail.auth.authorizer import create_authorizer
    from dovetail.protocol.limits import Timeouts
    from dovetail.transports.http_client.remote_server import create_http_client

    options = read_target_options(ctx, **params)
    url = _get_url(options)
    if logins.load_login(url) is None:
        # A saved login that cannot be read is deleted.
        FileTokenStore().delete(url)
        output.print_error(f"not logged in to {strip_url(url)}")
        return error_report.EXIT_AUTH

    async def run() -> None:
        create_client = functools.partial(create_http_client, None, True, None, Timeouts().connect)
        was_revoked = await create_authorizer(url, "oauth", create_client).log_out()
        note = "token revoked" if was_revoked else "the authorization server did not revoke the token"
        click.echo(
            output.format_json({"revoked": was_revoked}) if options.json else f"logged out of {strip_url(url)}, {note}"
        )

    return run_to_exit_code(run, options.json)


def _get_url(options: TargetOptions) -> str:
    target, _ = options.split_target()
    url = get_target_url(target)
    if url is None:
        raise click.UsageError("logins require a server with an HTTP URL")
    return url


def _print_login(options: TargetOptions, saved_login: SavedLogin | None, url: str, missing_message: str) -> None:
    if options.json:
        click.echo(output.format_json(None if saved_login is None else _describe_login(saved_login)))
    elif saved_login is None:
        click.echo(f"{strip_url(url)}: {missing_message}")
    else:
        scopes = output.escape_line(" ".join(logins.get_granted_scopes(saved_login)))
        issuer = output.escape_line(saved_login.server.issuer)
        state = _describe_state(saved_login)
        click.echo(f"{strip_url(url)}: logged in at {issuer}{f' with {scopes}' if scopes else ''}, {state}")


def _describe_login(saved_login: SavedLogin) -> dict[str, Any]:
    token = saved_login.token
    return {
        "server": strip_url(saved_login.resource),
        "issuer": saved_login.server.issuer,
        "client_id": saved_login.client.client_id,
        "scopes": logins.get_granted_scopes(saved_login) if token is not None else [],
        "expires_at": token.expires_at if token is not None else None,
        "is_expired": _is_expired(saved_login),
    }


def _is_expired(saved_login: SavedLogin) -> bool:
    token = saved_login.token
    if token is None:
        return True
    return token.refresh_token is None and token.expires_at is not None and token.expires_at <= time.time()


def _describe_state(saved_login: SavedLogin) -> str:
    token = saved_login.token
    if token is None or _is_expired(saved_login):
        return "expired"
    if token.refresh_token is not None:
        return "renews automatically"
    if token.expires_at is None:
        return "valid"
    return f"valid for {(token.expires_at - time.time()) / 60:.0f} minutes"
