"""Log in with the official 1.x client, and call `whoami`, `write` and `whoami` again: `older_login.py URL`.

The Python of the older peers runs this script. It prints a JSON document with the results of the calls and the scopes
of each login.
"""

import asyncio
import html
import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request

import httpx
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata


class NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


class User:
    def __init__(self):
        self.scopes = []
        self.answer = ("", None)

    async def open_authorize_url(self, address):
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(address).query))
        self.scopes.append(sorted(query.get("scope", "").split()))
        self.answer = await asyncio.to_thread(self.approve, address)

    def approve(self, address):
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(), NoRedirects)
        with browser.open(address, timeout=10) as reply:
            page = reply.read().decode()
        fields = dict(re.findall(r'name="(request|csrf)" value="([^"]+)"', page))
        fields |= {"decision": "allow", "username": "ada", "password": "pw"}
        action = html.unescape(re.findall(r'action="([^"]+)"', page)[0])
        try:
            browser.open(action, urllib.parse.urlencode(fields).encode(), timeout=10)
        except urllib.error.HTTPError as redirect:
            query = urllib.parse.urlsplit(redirect.headers["location"]).query
            redirect.close()
            parameters = dict(urllib.parse.parse_qsl(query))
            return parameters["code"], parameters.get("state")
        raise RuntimeError("the authorization server did not redirect")

    async def read(self):
        return self.answer


class MemoryTokenStorage:
    tokens = client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client_info):
        self.client = client_info


async def main(url):
    user, storage = User(), MemoryTokenStorage()
    metadata = OAuthClientMetadata.model_validate(
        {"client_name": "older", "redirect_uris": ["http://127.0.0.1:7777/callback"]}
    )
    auth = OAuthClientProvider(url, metadata, storage, user.open_authorize_url, user.read)
    results = []
    async with (
        httpx.AsyncClient(auth=auth, timeout=20) as web,
        streamable_http_client(url, http_client=web) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        for name, arguments in (("whoami", {}), ("write", {"text": "this"}), ("whoami", {})):
            result = await session.call_tool(name, arguments)
            results.append(result.content[0].text)
    sys.stdout.write(json.dumps({"results": results, "logins": user.scopes, "scope": storage.tokens.scope}))


asyncio.run(main(sys.argv[1]))
