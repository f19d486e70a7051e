"""`dovetail auth` against a server that wants a login, with a browser that agrees."""

import hashlib
import json
import sys
from pathlib import Path

from cli.program import Run, serving

HERE = Path(__file__).parent


def test_log_in_use_it_and_log_out(run: Run, environment: dict[str, str], tmp_path: Path) -> None:
    own = {"HOME": str(tmp_path), "BROWSER": f"{sys.executable} {HERE / 'visitor.py'} %s"}
    with serving([sys.executable, str(HERE / "guarded.py")], environment) as url:
        assert run("call", url, "whoami", **own).code == 4
        assert run("auth", "status", url, **own).code == 4
        assert run("call", url, "whoami", "--auth", "oauth", **own).code == 4  # nobody is at a terminal
        assert run("call", url, "whoami", "--auth", "two words", **own).code == 2
        said = run("auth", "login", url, **own, DOVETAIL_CLIENT_SECRET="of another").good()
        assert f"{url}: logged in by" in said.out
        assert run("call", url, "whoami", **own).good().out.endswith("#developer\n")
        assert run("call", url, "whoami", "--header", "Authorization: Bearer x", **own).code == 4  # as it was said
        everyone = run("auth", "status", **own).good().out
        assert url in everyone
        facts = run("auth", "status", url, "--json", **own).good()
        assert facts.json["state"] == "renewed when needed"
        kept = next((tmp_path / ".local/share/dovetail/logins").glob("*.json")).read_text(encoding="utf-8")
        token = json.loads(kept)["token"]["access_token"]
        assert token not in facts.out + said.out + said.err + everyone
        assert run("call", url, "whoami", "--auth", f"Bearer {token}", **own).good()
        locked = run("call", url, "write", "text=this", **own)
        assert locked.code == 4  # not listed without its scope, yet the server says which one it takes
        assert "write" in locked.err
        assert "no tool" not in locked.err
        assert "no tool 'writ'" in run("call", url, "writ", **own).err
        assert run("auth", "logout", url, "--json", **own).good().json == {"revoked": True}
        assert run("call", url, "whoami", "--auth", token, **own).code == 4
        assert run("auth", "logout", url, **own).code == 4


def test_a_login_that_cannot_be_read(run: Run, url: str, tmp_path: Path) -> None:
    own = {"HOME": str(tmp_path)}
    folder = tmp_path / ".local/share/dovetail/logins"
    kept = folder / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json"
    folder.mkdir(parents=True)
    kept.write_text("{broken")
    kept.chmod(0o600)
    assert "no login that can be understood" in run("auth", "status", url, **own).err
    kept.unlink()
    kept.mkdir()
    said = run("auth", "status", url, **own)
    assert said.code == 2
    assert said.err.startswith("error: logins kept in")


def test_a_server_without_logins(run: Run, url: str) -> None:
    assert "asks for no login" in run("auth", "login", url).good().out
    assert run("auth", "status").good().out == "no login is kept\n"
    assert run("auth", "login", "--", "true").code == 2
