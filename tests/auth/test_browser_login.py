"""Test a login in a real browser, from the consent page to the tool call."""

import asyncio
from collections.abc import AsyncIterator
from html import escape
from pathlib import Path
from typing import Any

import pytest

from auth.browser import Browser, open_browser
from dovetail import Client, Context, Server
from dovetail.auth import AuthorizationServer, Guard
from dovetail.errors import LoginFailed
from support.guarded_server import GuardedServer, HttpReply, HttpRequest, User, oauth_settings
from support.live_server import serve_app
from support.outside_programs import needs

pytestmark = [pytest.mark.interop, needs("chromium"), pytest.mark.timeout(180)]


@pytest.fixture
async def chromium(tmp_path: Path) -> AsyncIterator[Browser]:
    async with open_browser(tmp_path / "profile") as one:
        yield one


def consent(place: GuardedServer) -> None:
    """Let the place ask before it sends anybody back."""

    def ask(asked: HttpRequest) -> HttpReply:
        fields = "".join(f'<input type=hidden name="{escape(k)}" value="{escape(v)}">' for k, v in asked.query.items())
        page = f"<!doctype html><h1>May dovetail come in?</h1><form method=post action=/consent>{fields}"
        page += "<button id=yes name=answer value=yes>Yes</button><button id=no name=answer value=no>No</button></form>"
        return HttpReply(200, page.encode())

    def answered(asked: HttpRequest) -> HttpReply:
        form = asked.form
        if form["answer"] == "yes":
            return place.authorize(asked._replace(query=form))
        words = "error=access_denied&error_description=%3Cscript%3Ealert(1)%3C/script%3E"
        back = f"{form['redirect_uri']}?{words}&state={form['state']}&iss={place.origin}"
        return HttpReply(302, None, {"location": back})

    place.says |= {"/authorize": ask, "/consent": answered}


class Person(User):
    """Someone who reads the page and presses a button."""

    def __init__(self, window: Browser, button: str) -> None:
        super().__init__()
        self._window, self._button = window, button

    async def _browse(self, url: str) -> None:
        await self.ready.wait()
        await self._window.open(url)
        await self._window.wait_for_text("May dovetail come in?")
        await self._window.press(self._button)


async def test_client_consent_token_call(place: GuardedServer, chromium: Browser, tmp_path: Path) -> None:
    consent(place)
    person = Person(chromium, "#yes")
    auth = oauth_settings(person, token_store=str(tmp_path / "tokens"))
    async with Client(place.url, auth=auth) as client:
        await client.ping()
        shown = await chromium.wait_for_text("close this window")
    assert "the-code" not in shown
    assert "code-" not in shown
    assert not chromium.dialogs
    async with Client(place.url, auth=auth) as client:
        await client.ping()
    await person.close()
    assert (place.logins, place.count("/consent"), place.count("/token")) == (1, 1, 1)


class Ada(User):
    """Someone with a password, who looks before she agrees."""

    def __init__(self, window: Browser) -> None:
        super().__init__()
        self._window = window
        self.pages: list[str] = []

    async def _browse(self, url: str) -> None:
        await self._window.open(url)
        self.pages.append(await self._window.wait_for_text("Allow this application to act for you?"))
        await self._window.type("[name=username]", "ada")
        await self._window.type("[name=password]", "pw")
        await self._window.press("[value=allow]")


async def test_with_our_own_authorization_server(chromium: Browser) -> None:
    """Its pages have a strict content security policy, which only a browser applies."""

    def make(url: str) -> Any:
        authority = AuthorizationServer(issuer=url, resources=[url + "/mcp"], users={"ada": "pw"})
        app = Server("x", auth=Guard(authority.verifier(), scopes_supported=[]))

        @app.tool
        def who(ctx: Context) -> str:
            return "nobody" if ctx.principal is None else ctx.principal.subject

        @app.tool(scopes=["write"])
        def write() -> str:
            return "written"

        return authority.wrap(app.asgi())

    ada = Ada(chromium)
    async with (
        serve_app(make) as url,
        Client(f"{url}/mcp", auth=oauth_settings(ada, client_name="The Tester")) as client,
    ):
        assert await client.call("who") == "ada"
        await chromium.wait_for_text("close this window")
        assert await client.call("write") == "written"
        await chromium.wait_for_text("close this window")
    await ada.close()
    assert len(ada.pages) == 2
    assert "The Tester" in ada.pages[0]
    assert "write" in ada.pages[1]
    assert not chromium.dialogs


async def test_a_refused_login_is_reported_and_its_error_text_is_not_executed(
    place: GuardedServer, chromium: Browser
) -> None:
    consent(place)
    person = Person(chromium, "#no")
    with pytest.raises(LoginFailed, match="access_denied") as refused:
        async with Client(place.url, auth=oauth_settings(person)):
            pass
    await chromium.wait_for_text("Return to the program")
    await person.close()
    assert refused.value.oauth_error == "access_denied"
    assert not chromium.dialogs
    assert place.count("/token") == 0


async def test_a_page_that_calls_back_by_itself_ends_nothing(place: GuardedServer, chromium: Browser) -> None:
    """Any page the user has open can reach the port; without the state it is a stranger."""
    consent(place)
    person = Person(chromium, "#yes")
    person.ready.clear()
    client = Client(place.url, auth=oauth_settings(person))
    entering = asyncio.create_task(client.__aenter__())
    await person.called.wait()
    back = person.opened[0].split("redirect_uri=")[1].split("&")[0].replace("%3A", ":").replace("%2F", "/")
    await chromium.open(f"{back}?code=stolen&state=guessed")
    await chromium.wait_for_text("Unknown or expired login")
    person.ready.set()
    await entering
    await client.ping()
    await client.__aexit__(None, None, None)
    await person.close()
    assert place.count("/token", code="stolen") == 0
