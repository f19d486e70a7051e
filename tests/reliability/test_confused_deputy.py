"""A user's consent is valid for one client, in one browser, once.

The upstream provider is reached only after consent, and a page of another site cannot consent for the user.
"""

import re
from collections.abc import AsyncIterator
from html import unescape
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from harness import record_measurement

from dovetail.auth import AuthorizationServer, ProviderMetadata, RegisteredClient, UpstreamProvider
from dovetail.oauth.pkce import create_pkce_pair
from dovetail.transports.http_client.http_client import HTTPClient
from support.live_server import serve_app

HOME = "http://127.0.0.1:7777/callback"
FORM = "application/x-www-form-urlencoded"


class Browser:
    """One browser with its cookies, which follows nothing by itself."""

    def __init__(self, url: str, fetcher: HTTPClient) -> None:
        self.url, self._fetcher = url, fetcher
        self.cookies: dict[str, str] = {}
        self.headers: dict[str, str] = {}
        self.status, self.text, self.form = 0, "", dict[str, str]()

    async def send(self, method: str, url: str, body: bytes = b"", **headers: str) -> "Browser":
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            named["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        pairs = [(name.encode(), value.encode()) for name, value in named.items()]
        reply = await self._fetcher.fetch(method, url, pairs, body)
        self.text = (await reply.read()).decode()
        self.status = reply.status
        self.headers = {name.decode(): value.decode() for name, value in reply.headers.items()}
        if "set-cookie" in self.headers:
            name, _, value = self.headers["set-cookie"].partition(";")[0].partition("=")
            self.cookies[name] = value
        self.form = dict(re.findall(r'name="(request|csrf)" value="([^"]+)"', self.text)) or self.form
        return self

    async def ask(self, **changes: str | None) -> "Browser":
        verifier, challenge = create_pkce_pair()
        self.verifier = verifier
        good: dict[str, str | None] = {
            "response_type": "code", "client_id": "editor", "redirect_uri": HOME, "state": "s", "resource": self.url,
            "code_challenge": challenge, "code_challenge_method": "S256",
        }  # fmt: skip
        query = urlencode({name: value for name, value in (good | changes).items() if value is not None})
        return await self.send("GET", f"{self.url}/authorize?{query}")

    async def decide(self, form: dict[str, str] | None = None, **headers: str) -> "Browser":
        body = urlencode({"decision": "allow"} | (self.form if form is None else form)).encode()
        return await self.send("POST", self.url + "/consent", body, **{"content_type": FORM} | headers)

    @property
    def upstream(self) -> str | None:
        """Where it would go for the provider, if it would."""
        found = re.search(r'href="([^"]+)"', self.text)
        return unescape(found[1]) if self.status == 200 and found is not None else None

    @property
    def code(self) -> str | None:
        """The code, if it was sent back to the client with one."""
        return dict(parse_qsl(urlsplit(self.headers.get("location", "")).query)).get("code")


class Environment:
    """A proxy before a provider that logs in whoever comes, and browsers."""

    def __init__(self, url: str, provider: str, fetcher: HTTPClient) -> None:
        self.url, self.provider, self._fetcher = url, provider, fetcher

    def browser(self) -> Browser:
        return Browser(self.url, self._fetcher)

    async def consented(self) -> tuple[Browser, str]:
        """A browser that agreed and was logged in upstream, and the callback it was sent to."""
        browser = await self.browser().ask()
        await browser.decide()
        assert browser.upstream is not None
        state = dict(parse_qsl(urlsplit(browser.upstream).query))["state"]
        return browser, f"{self.url}/callback?code=upstream-code&state={state}"


@pytest.fixture
async def environment() -> AsyncIterator[Environment]:
    async def provider(scope: Any, receive: Any, send: Any) -> None:
        body = {"/token": b'{"access_token": "theirs"}', "/user": b'{"sub": "ada"}'}.get(scope["path"], b"")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    async with serve_app(lambda _: provider) as up:
        facts = ProviderMetadata(
            name="Up",
            authorization_endpoint=up + "/authorize",
            token_endpoint=up + "/token",
            userinfo_endpoint=up + "/user",
        )

        def make(url: str) -> Any:
            return AuthorizationServer(
                issuer=url,
                resources=[url],
                upstream=UpstreamProvider(facts, client_id="mine", client_secret="s"),
                clients=[
                    RegisteredClient("editor", redirect_uris=[HOME]),
                    RegisteredClient("evil", redirect_uris=["https://evil.example/cb"]),
                ],
            )

        async with serve_app(make) as url:
            fetcher = HTTPClient()
            yield Environment(url, up, fetcher)
            await fetcher.close()


async def test_the_way_that_is_meant(environment: Environment) -> None:
    browser, callback = await environment.consented()
    assert (await browser.send("GET", callback)).code
    assert browser.headers["location"].startswith(HOME)


async def attacks(environment: Environment) -> dict[str, bool]:
    """Each attack, and whether it got a code or reached the provider without the user's own agreement."""
    got: dict[str, bool] = {}

    # Two browsers: the attacker agrees, the victim is lured to the callback, or the other way round.
    attacker, callback = await environment.consented()
    victim = environment.browser()
    got["callback in a browser without a cookie"] = (await victim.send("GET", callback)).code is not None
    await victim.ask()
    got["callback in another browser"] = (await victim.send("GET", callback)).code is not None
    victim.cookies |= {f"x{name}": value for name, value in attacker.cookies.items()}
    got["callback with the cookie under another name"] = (await victim.send("GET", callback)).code is not None

    # A stolen page: the attacker's request decided by the victim's browser.
    attacker = await environment.browser().ask()
    victim = await environment.browser().ask()
    got["the form of another browser"] = (await victim.decide(attacker.form)).upstream is not None
    mixed = attacker.form | {"csrf": victim.form["csrf"]}
    got["the request of another browser"] = (await victim.decide(mixed)).upstream is not None
    mixed = victim.form | {"csrf": attacker.form["csrf"]}
    got["the token of another browser"] = (await victim.decide(mixed)).upstream is not None

    # Cross-site: a page of another site sends the form, with the victim's cookie.
    for name, headers in {
        "another origin": {"origin": "https://evil.example"},
        "a cross-site form": {"sec_fetch_site": "cross-site"},
        "a sister site": {"sec_fetch_site": "same-site", "origin": "null"},
    }.items():
        got[name] = (await victim.decide(**headers)).upstream is not None
    guess = {"request": victim.form["request"], "csrf": ""}
    got["without a token"] = (await victim.decide(guess)).upstream is not None
    got["a form of another type"] = (await victim.decide(content_type="text/plain")).upstream is not None
    query = urlencode(victim.form | {"decision": "allow"})
    got["by GET"] = (await victim.send("GET", f"{environment.url}/consent?{query}")).upstream is not None

    # Riding on an agreement given before, to this client or another.
    victim, callback = await environment.consented()
    await victim.send("GET", callback)
    for name, changes in {
        "the same client again": {},
        "another client after that": {"client_id": "evil", "redirect_uri": "https://evil.example/cb"},
        "silently": {"prompt": "none"},
    }.items():
        again = await victim.ask(**changes)
        got[name] = again.code is not None or environment.provider in again.text + again.headers.get("location", "")
    got["the callback again"] = (await victim.send("GET", callback)).code is not None
    spent = victim.form
    await victim.decide()
    got["the form again"] = (await victim.decide(spent)).upstream is not None

    # Codes sent elsewhere, or without proof.
    for name, changes in {
        "a foreign redirect": {"redirect_uri": "https://evil.example/cb"},
        "a redirect to a path beside": {"redirect_uri": HOME + "/.."},
        "a redirect with two slashes": {"redirect_uri": "//evil.example"},
        "no proof key": {"code_challenge": None},
        "a plain proof key": {"code_challenge_method": "plain"},
        "another resource": {"resource": "https://other.example/mcp"},
    }.items():
        asked = await environment.browser().ask(**changes)
        got[name] = asked.status == 200 or "evil" in asked.headers.get("location", "")

    # Guessing.
    victim = environment.browser()
    got["a guessed state"] = (
        await victim.send("GET", f"{environment.url}/callback?code=x&state=guess")
    ).code is not None
    got["no state"] = (await victim.send("GET", f"{environment.url}/callback?code=x")).code is not None
    return got


async def test_no_attack_succeeds(environment: Environment) -> None:
    got = await attacks(environment)
    assert [name for name, succeeded in got.items() if succeeded] == []
    record_measurement("attacks", len(got), "")


async def test_what_every_page_says(environment: Environment) -> None:
    """Not to be framed, scripted, kept or told of; and that a program on this machine may not be who it says."""
    pages = [await environment.browser().ask(), await environment.browser().ask(client_id="nobody")]
    pages.append(await (await environment.browser().ask()).decide({"request": "x"}))
    pages.append(await (await environment.browser().ask()).decide())
    for page in pages:
        policy = page.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "default-src 'none'" in policy
        assert page.headers["x-frame-options"] == "DENY"
        assert page.headers["referrer-policy"] == "no-referrer"
        assert page.headers["cache-control"] == "no-store"
        assert "<script" not in page.text
    assert "computer" in pages[0].text


@pytest.mark.parametrize("text", ['"><script>alert(1)</script>', "'><img src=x onerror=alert(1)>"])
async def test_nothing_is_reflected(environment: Environment, text: str) -> None:
    for name in ("client_id", "redirect_uri", "state", "scope", "resource", "response_type"):
        page = await environment.browser().ask(**{name: text})
        assert text not in page.text
        assert text not in page.headers.get("location", "")
    for path in ("callback", "consent", "nothing"):
        page = await environment.browser().send(
            "GET", f"{environment.url}/{path}?{urlencode({'error': text, 'state': text})}"
        )
        assert text not in page.text
