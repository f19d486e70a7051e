"""No URI reaches outside the folder of a template: not by dots, escapes, drives, links or lookalikes.

`docs://{+path}` of the target joins the path to a folder and resolves it as an author should, because a template cannot
detect a link inside the folder.
"""

import os
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from harness import HANDSHAKE, NEWEST, Client, StdioClient, Target, record_measurement, run_target
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.server.items.uri_template import URITemplate

SECRET = "the secret outside"
INSIDE = "a text inside"

DOTS = [
    "..", "%2e%2e", ".%2e", "%2E.", "%252e%252e", "..%00", "..%20", "..;", "\uff0e\uff0e", "%c0%ae%c0%ae",
    "%u002e%u002e", "...", "\u2025", "..\u200b", "%e0%80%ae.", ". .", "..\t", "..%0a", "%2e%2e%2f%2e%2e",
]  # fmt: skip
SLASHES = [
    "/", "%2f", "%2F", "\\", "%5c", "%255c", "%252f", "//", "/./", "%c0%af", "\u2215", "\u2044", "\uff0f", "/%2f",
    ";/", "%00/", "/\u200b/",
]  # fmt: skip
ROOTS = [
    "", "/", "//", "\\\\", "C:", "C:/", "c:\\", "file:///", "~", "~root", "/proc/self/root", "%2fproc/self/cwd",
    "\\\\?\\", "sub/", "sub", "./", "text.txt/", "%00", "$HOME", "http://127.0.0.1/", "@", "?", "#", "*",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a secret next to it, and links that lead to the secret in every way."""
    outside = tmp_path_factory.mktemp("outside")
    root = outside / "root"
    (root / "sub").mkdir(parents=True)
    (root / "text.txt").write_text(INSIDE)
    (root / "sub" / "text.txt").write_text(INSIDE)
    (outside / "secret").write_text(SECRET)
    (outside / "root-too").mkdir()  # begins with the name of the folder
    (outside / "root-too" / "secret").write_text(SECRET)
    (root / "link").symlink_to(outside / "secret")
    (root / "relative").symlink_to("../secret")
    (root / "up").symlink_to("..")
    (root / "sub" / "far").symlink_to("../../root-too")
    (root / "chain").symlink_to("link")
    (root / "loop").symlink_to("loop")
    (root / "within").symlink_to("sub/text.txt")
    os.mkfifo(root / "pipe")
    return root


@pytest.fixture(scope="module")
def serving(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with run_target(tmp_path_factory.mktemp("serving"), "http", root=str(folder)) as one:
        yield one
        assert one.alive, one.log


def corpus() -> list[str]:
    climbs = [(dots + slash) * times + "secret" for dots in DOTS for slash in SLASHES for times in (1, 3)]
    places = [root + rest for root in ROOTS for rest in ("secret", "../secret", "etc/passwd", "../root-too/secret")]
    inner = [f"sub{slash}{dots}{slash}{dots}{slash}secret" for dots in DOTS for slash in SLASHES]
    links = ["link", "relative", "chain", "up/secret", "up/root-too/secret", "sub/far/secret", "loop", "pipe",
    "sub", ".", "",
             "link/", "./link", "LINK", "%6cink", "within/../link", "text.txt/../link"]  # fmt: skip
    return climbs + places + inner + links


@pytest.mark.parametrize("revision", [NEWEST, HANDSHAKE])
def test_nothing_outside_is_read(serving: Target, revision: str) -> None:
    client = Client(serving, revision)
    tried = corpus()
    escapes: list[str] = []
    for path in tried:
        # The header repeats the body; in base64 it can.
        answer = read(client, f"docs://{path}")
        if SECRET in answer or "root:" in answer:
            escapes.append(path)
    record_measurement(f"URIs tried, {revision}", len(tried), "")
    record_measurement(f"escapes, {revision}", len(escapes), "")
    assert not escapes
    assert read(client, "docs://sub/text.txt").count(INSIDE) == 1


def read(client: Client, uri: str) -> str:
    """What a read answers, whatever it is, as text."""
    data = client.prepare("resources/read", {"uri": uri})
    if client.revision == NEWEST:
        plain = f"mcp-name: {uri}\r\n".encode("utf-8", "surrogateescape")
        coded = b"mcp-name: =?base64?" + b64encode(uri.encode()) + b"?=\r\n"
        assert plain in data
        data = data.replace(plain, coded)
    answer = client.exchange(data)
    assert answer.status in (200, 400), answer
    return answer.body.decode()


def test_links_that_stay_inside_are_served(serving: Target) -> None:
    assert INSIDE in read(Client(serving), "docs://within")


def test_the_answer_does_not_say_where_the_folder_is(serving: Target, folder: Path) -> None:
    client = Client(serving)
    for path in ("missing", "link", "sub", "text.txt/x", "x" * 300, "a\x00b", "loop", "%ff"):
        assert str(folder.parent) not in read(client, f"docs://{path}")


def test_on_stdio_too(folder: Path, tmp_path: Path) -> None:
    with run_target(tmp_path, "stdio", root=str(folder)) as one:
        pipe = StdioClient(one, HANDSHAKE)
        for path in corpus()[::7]:
            answer = str(pipe.request("resources/read", {"uri": f"docs://{path}"}))
            assert SECRET not in answer
            assert "root:" not in answer
        assert INSIDE in str(pipe.request("resources/read", {"uri": "docs://text.txt"}))


# Without a server: what any template hands to a function that joins it to a folder, unwisely

TEMPLATES = [URITemplate(text) for text in ("docs://{+path}", "docs://{path}", "docs://x{/path*}", "docs://x{?path}",
                                         "docs://x{#path}", "docs://{+path}/end", "docs://a{.path}")]  # fmt: skip
pieces = st.sampled_from([*DOTS, *SLASHES, *ROOTS, "secret", "a", "%", "%2", "é", "\ud800"])


def landed(value: str) -> str:
    return os.path.normpath(os.path.join("/served/root", value))  # as a careless author would


@settings(max_examples=400, deadline=None)
@given(parts=st.lists(pieces, max_size=8), sep=st.sampled_from(["", "/", "%2f"]))
def test_no_value_climbs(parts: list[str], sep: str) -> None:
    text = sep.join(parts)
    for template in TEMPLATES:
        head = template.text.partition("{")[0]
        for uri in (
            head + text,
            f"{head}/{text}",
            f"{head}?path={text}",
            f"{head}#{text}",
            f"{head}{text}/end",
            f"{head}.{text}",
        ):
            found = template.match(uri)
            values = [] if found is None else list(found.values())
            for value in (each for one in values for each in (one if isinstance(one, list) else [one])):
                assert landed(value) == "/served/root" or landed(value).startswith("/served/root/")
                assert "\\" not in value
                assert "\0" not in value


@settings(max_examples=200, deadline=None)
@given(value=st.text(max_size=20))
def test_an_expanded_value_adds_nothing_to_the_uri(value: str) -> None:
    """A value written into a template cannot become another path, query or host."""
    try:
        uri = URITemplate("https://api.example/users/{name}/files").expand({"name": value})
    except UnicodeEncodeError:
        return
    assert uri == f"https://api.example/users/{quote(value, safe='')}/files"
    assert uri.count("/") == 5
    assert not set(uri) & set("?#@\\\r\n ")
