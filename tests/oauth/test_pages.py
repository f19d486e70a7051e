"""Test the pages of an authorization server: what a user reads before allowing access."""

import re
from typing import Any

import pytest

from dovetail.oauth.authorization_server.pages import describe_redirect_host, render_consent
from dovetail.oauth.authorization_server.store import AuthorizationRequest, ClientRecord

REQUEST = AuthorizationRequest(
    client_id="c", redirect_uri="https://app.example/back", challenge="x", resource="https://mcp.example/mcp",
    scopes=("read", "write"), browser="b", csrf="t", until=1.0,
)  # fmt: skip


def render(client: ClientRecord, request: AuthorizationRequest = REQUEST, **options: Any) -> str:
    defaults: dict[str, Any] = {
        "action": "/consent", "sealed_request": "s", "server_name": "login", "asks_password": False, "user": None,
        "provider_name": None,
    }  # fmt: skip
    return render_consent(client, request, **defaults | options)


def read_rows(page: str) -> dict[str, str]:
    return dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", page))


def test_the_page_names_the_application_and_its_access() -> None:
    assert read_rows(render(ClientRecord(client_id="c", client_name="<Editor>"))) == {
        "Application": "&lt;Editor&gt;",
        "The answer is sent to": "app.example",
        "Access to": "https://mcp.example/mcp",
        "Permissions": "read, write",
    }


def test_a_client_of_a_document_is_named_by_the_host_of_the_document() -> None:
    client = ClientRecord(client_id="https://docs.example/client.json", by_document=True)
    rows = read_rows(render(client))
    assert (rows["Application"], rows["Described at"]) == ("(no name)", "docs.example")
    assert read_rows(render(ClientRecord(client_id="not a URL", by_document=True)))["Described at"] == ""


def test_a_request_without_scopes_names_none() -> None:
    request = AuthorizationRequest(
        client_id="c", redirect_uri="app:/back", challenge="x", resource="r", browser="b", csrf="t", until=1.0
    )
    assert read_rows(render(ClientRecord(client_id="c"), request))["Permissions"] == "none named"


@pytest.mark.parametrize("asks", [True, False])
def test_only_a_server_with_passwords_asks_for_one(asks: bool) -> None:
    assert ('name="password"' in render(ClientRecord(client_id="c"), asks_password=asks)) is asks


def test_notes_and_the_provider_are_named_only_if_they_exist() -> None:
    page = render(ClientRecord(client_id="c"))
    assert "You will then log in at" not in page
    assert '<p class="note">' not in page
    page = render(ClientRecord(client_id="c"), user="dev", problem="wrong & bad", provider_name="<Big>")
    assert "You will then log in at &lt;Big&gt;." in page
    problem, note = re.findall('<p class="note">(.*?)</p>', page)
    assert problem == "wrong &amp; bad"
    assert note.startswith("Development mode: there is no password.")


@pytest.mark.parametrize(
    ("uri", "description"),
    [
        ("https://app.example:8443/back", "app.example"),
        ("http://app.example/back", "app.example"),
        ("http://127.0.0.1:7777/callback", "127.0.0.1 (this computer)"),
        ("cursor://callback", "the application that owns cursor:"),
    ],
)
def test_the_target_of_a_redirect(uri: str, description: str) -> None:
    assert describe_redirect_host(uri) == description
