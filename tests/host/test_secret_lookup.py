"""Test secret references: each kind, limits for projects, errors that name the setting, and redaction."""

import base64
import json
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import RemoteError
from dovetail.host.config.secret_lookup import (
    Reference,
    ReferenceContext,
    SecretLookup,
    SecretNotFound,
    SecretResolver,
    mask_error,
    split_references,
)
from dovetail.protocol.redaction import may_hold_secrets
from dovetail.wire.codec import encode

CANARY = "canary-7f3a91"
KEPT = {("dovetail", "github"): CANARY, ("other", "bank"): CANARY}
PRINT = f"{sys.executable} -c \"print('{CANARY}')\""


def secrets(**environ: str) -> SecretLookup:
    return SecretLookup(environ, {"token": CANARY}, keyring=lambda service, name: KEPT.get((service, name)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain $HOME {x} $", "plain $HOME {x} $"),
        ("${A}/${A}", "a/a"),
        ("${env:A}-{env:A}", "a-a"),
        ("${B:-b c}-${env:B:-}-${A:-z}", "b c--a"),
        ("${E:-full}-${E}", "full-"),
        ("${input:token}", CANARY),
        ("${keyring:github}", CANARY),
        ("${keyring:other/bank}", CANARY),
        (f"${{cmd:{PRINT}}}!", f"{CANARY}!"),
        ("${workspaceFolder}|${workspaceFolderBasename}|${userHome}", f"/srv/x|x|{Path.home()}"),
        ("a${pathSeparator}b${/}", f"a{os.sep}b{os.sep}"),
    ],
)
def test_each_kind_is_looked_up(text: str, expected: str) -> None:
    assert secrets(A="a", E="").resolve(text, "env.X", ReferenceContext(project_dir=Path("/srv/x"))) == expected


def test_only_gemini_writes_variables_without_braces() -> None:
    assert secrets(A="a").resolve("$A-${A}-$", "x", ReferenceContext(allows_bare=True)) == "a-a-$"
    assert secrets(A="a").resolve("$A-${A}-$", "x") == "$A-a-$"


def test_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "key.txt").write_text(f"{CANARY}\n", encoding="utf-8")
    place = ReferenceContext(project_dir=tmp_path, level="project")
    for text in ("${file:key.txt}", "{file:./key.txt}", f"${{file:{tmp_path}/key.txt}}"):
        assert secrets().resolve(text, "env.X", place) == CANARY


@pytest.mark.parametrize(
    ("text", "level", "why"),
    [
        ("${MISSING}", "user", "MISSING"),
        ("{env:MISSING}", "user", "MISSING"),
        ("${input:other}", "user", "other"),
        ("${keyring:gitlab}", "user", "gitlab"),
        ("${keyring:github}", "project", "keyring set 'dovetail:"),
        ("${keyring:other/bank}", "project", "keyring set 'dovetail:"),
        ("${file:missing.txt}", "user", "No such file"),
        ("${file:../../etc/passwd}", "project", "project"),
        ("${file:~/x}", "project", "project"),
        ("${file:link}", "project", "project"),
        ("${file:binary}", "user", "binary"),
        (f"${{cmd:{PRINT}}}", "project", "command"),
        ("${cmd:/nowhere/to/be/found}", "user", "FileNotFoundError"),
        (f"${{cmd:{sys.executable} -c 'exit(3)'}}", "user", "3"),
        (f"${{cmd:{sys.executable} -c ''}}", "user", "-c"),
        ("${cmd:'unfinished}", "user", "unfinished"),
        ("${op://vault/item}", "user", "${op://vault/item}"),
        ("${}", "user", "${}"),
        ("${1}", "user", "${1}"),
    ],
)
def test_what_cannot_be_looked_up_is_an_error_that_names_it(tmp_path: Path, text: str, level: Any, why: str) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "link").symlink_to("/etc/hosts")
    with pytest.raises(SecretNotFound, match=r"\(in env\.TOKEN\)$") as caught:
        secrets().resolve(f"x{text}", "env.TOKEN", ReferenceContext(project_dir=tmp_path, level=level))
    assert why in str(caught.value)
    assert caught.value.setting == "env.TOKEN"
    assert isinstance(caught.value, KeyError)


def test_a_project_reads_only_what_is_kept_for_it(tmp_path: Path) -> None:
    kept = {("dovetail", "token"): "the user's", (f"dovetail:{tmp_path}", "token"): "the project's"}
    known = SecretLookup({}, keyring=lambda service, name: kept.get((service, name)))
    assert (
        known.resolve("${keyring:token}", "x", ReferenceContext(project_dir=tmp_path, level="project"))
        == "the project's"
    )
    assert known.resolve("${keyring:token}", "x", ReferenceContext(project_dir=tmp_path, level="user")) == "the user's"
    with pytest.raises(SecretNotFound):
        known.resolve("${keyring:dovetail/token}", "x", ReferenceContext(project_dir=tmp_path, level="project"))


def test_a_command_is_not_run_by_a_shell(tmp_path: Path) -> None:
    mark = tmp_path / "made"
    with pytest.raises(SecretNotFound):
        secrets().resolve(f"${{cmd:/nowhere; touch {mark}}}", "x")
    assert secrets().resolve(f"${{cmd:echo $HOME; touch {mark}}}", "x") == f"$HOME; touch {mark}"
    assert not mark.exists()


def test_a_value_does_not_show(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    known = secrets(TOKEN=CANARY)
    for text in (
        "${TOKEN}",
        "${input:token}",
        "${keyring:github}",
        f"${{cmd:{sys.executable} -c 'print(\"{CANARY}\")'}}",
    ):
        known.resolve(text, "headers.Authorization")
    with pytest.raises(SecretNotFound) as caught:
        known.resolve("${TOKEN}${keyring:github}${MISSING}", "env.X")
    shown = [repr(known), str(known), str(caught.value), repr(caught.value), caplog.text]
    shown += traceback.format_exception(caught.value)
    assert CANARY not in "".join(shown)
    assert repr(SecretResolver({"TOKEN": CANARY})) == "<SecretResolver>"


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("${SOME_TOKEN}", "args[0]"),
        ("Bearer ${ANY}", "headers.Authorization"),
        ("${ANY}", "env.API_KEY"),
        (CANARY, "env.PASSWORD"),
        (f"Bearer {CANARY}", "headers.Authorization"),
        ("${input:token}", "args[1]"),
        ("${keyring:github}", "url"),
    ],
)
def test_what_was_looked_up_is_masked_wherever_it_comes_back(text: str, setting: str) -> None:
    known = secrets(SOME_TOKEN=CANARY, ANY=CANARY)
    known.resolve(text, setting)
    result = {"content": [{"text": f"env: {CANARY}!"}], CANARY: [CANARY, 1, None, True]}
    assert known.mask(result) == {"content": [{"text": "env: ***!"}], "***": ["***", 1, None, True]}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("${DATABASE_URL}", "DATABASE_URL"),
        ("${SENTRY_DSN}", "SENTRY_DSN"),
        ("${MONGO_URI}", "MONGO_URI"),
        ("${WEBHOOK}", "WEBHOOK"),
        ("${API_PWD}", "API_PWD"),
        ("${env:STRIPE_SK}", "STRIPE_SK"),
        ("${WHATEVER}", "WHATEVER"),
    ],
)
def test_a_variable_is_masked_whatever_its_name_is(text: str, name: str) -> None:
    known = secrets(**{name: CANARY})
    assert known.resolve(text, "args[0]") == CANARY
    assert known.mask(f"env: {CANARY}!") == "env: ***!"


def test_each_line_of_a_secret_is_masked() -> None:
    lines = ["-----BEGIN KEY-----", f"{CANARY}-1", f"{CANARY}-2", "ab"]
    known = secrets(PEM="\n".join(lines))
    known.resolve("${PEM}", "env.PEM")
    assert [known.mask(line) for line in lines] == ["***", "***", "***", "ab"]


def test_a_secret_within_another_leaves_no_rest() -> None:
    for values in ((CANARY, f"{CANARY}-and-more"), (f"{CANARY}-and-more", CANARY)):
        known = secrets()
        for value in values:
            known.remember([value])
        for number in range(20):
            known.remember([f"{CANARY}-and-more-{number}"])
        assert known.mask(f"{CANARY}-and-more-7 {CANARY}-and-more {CANARY}") == "*** *** ***"


def test_text_that_is_not_secret_stays_readable() -> None:
    known = secrets(HOME="/srv/somebody", LANG="C", API_KEY="abc")
    known.resolve("${HOME}/${LANG}", "args[0]")
    known.resolve("${API_KEY}", "env.API_KEY")  # too short to be told from a word
    assert known.mask("/srv/somebody abc C") == "/srv/somebody abc C"
    assert known.mask({"password": "x", "note": "Bearer abcdefgh123"}) == {"password": "***", "note": "Bearer ***"}


def test_the_keyring_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    import keyring
    from keyring.errors import NoKeyringError

    def found(service: str, name: str) -> str:
        return f"{service} {name}"

    monkeypatch.setattr(keyring, "get_password", found)
    assert SecretLookup({}).resolve("${keyring:a}|${keyring:s/a}", "x") == "dovetail a|s a"

    def closed(*_: str) -> None:
        raise NoKeyringError

    monkeypatch.setattr(keyring, "get_password", closed)
    with pytest.raises(SecretNotFound, match=r"keyring.* \(in x\)$"):
        SecretLookup({}).resolve("${keyring:a}", "x")
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(SecretNotFound, match=r"keyring.* \(in x\)$"):
        SecretLookup({}).resolve("${keyring:a}", "x")


def test_a_command_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run

    def run_hurried(*given: Any, timeout: float, **options: Any) -> Any:
        return run(*given, timeout=timeout / 100, **options)

    monkeypatch.setattr(subprocess, "run", run_hurried)
    with pytest.raises(SecretNotFound, match=r"time\.sleep"):
        SecretLookup({}).resolve(f"${{cmd:{sys.executable} -c 'import time; time.sleep(60)'}}", "x")


@given(st.text(alphabet="ab${}:-env", max_size=30))
def test_every_text_is_taken_apart_completely(text: str) -> None:
    found = [*split_references(text)]
    plain = [one for one in found if isinstance(one, str)]
    assert all("${" not in one or "}" not in one.partition("${")[2].partition("{")[0] for one in plain)
    if not any(isinstance(one, Reference) for one in found):
        assert "".join(plain) == text


_PIECES = [
    "abcdefgh1",
    '"quo\\ted"',
    "über-geheim",
    "token",
    "pass_word",
    "Bearer abcdefgh12",
    '{"pass\\u0077ord": "x"}',
    "plain",
]
_VALUES = st.recursive(
    st.sampled_from(_PIECES) | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_PIECES), inner, max_size=3),
    max_leaves=8,
)


@given(_VALUES)
def test_a_value_is_masked_wherever_that_is_not_ruled_out(value: Any) -> None:
    lookup = SecretLookup({})
    lookup.remember(["abcdefgh1", '"quo\\ted"', "über-geheim"])
    encoded_value = encode(value)
    if not may_hold_secrets(encoded_value) and not lookup.has_known_secret(encoded_value):
        assert lookup.mask(value) == value


def test_ordinary_values_need_no_masking() -> None:
    lookup = SecretLookup({})
    lookup.remember(["abcdefgh1"])
    encoded_value = encode({"tool": "echo", "arguments": {"text": "string(5)"}, "reason": "allow, server up"})
    assert not may_hold_secrets(encoded_value)
    assert not lookup.has_known_secret(encoded_value)


@pytest.mark.parametrize(
    "spell",
    [
        lambda secret: quote(secret, safe=""),
        lambda secret: quote_plus(secret),
        lambda secret: json.dumps({"a": secret}),
        lambda secret: base64.b64encode(secret.encode()).decode(),
    ],
    ids=["url", "form", "json", "base64"],
)
def test_an_encoded_secret_is_masked(spell: Callable[[str], str]) -> None:
    lookup = SecretLookup()
    lookup.remember(['p@ss "w/rd é'])
    masked = lookup.mask("connecting with " + spell('p@ss "w/rd é'))
    assert "w/rd" not in masked
    assert "***" in masked
    assert "w%2Frd" not in masked


def test_a_part_of_a_secret_is_masked_where_a_limit_cut_it() -> None:
    lookup = SecretLookup()
    lookup.remember([CANARY * 3])
    for cut in ("x" * 50 + (CANARY * 3)[:20], "x" * 50 + (CANARY * 3)[:20] + "…", (CANARY * 3)[-20:] + " and more"):
        assert CANARY[:9] not in lookup.mask(cut)
        assert CANARY[-9:] not in lookup.mask(cut)
    assert lookup.mask("it ends with canary") == "it ends with canary"


def test_a_number_that_is_a_secret_is_masked() -> None:
    lookup = SecretLookup()
    lookup.remember(["12345678"])
    assert lookup.mask({"code": 12345678, "other": 1234}) == {"code": "***", "other": 1234}
    assert lookup.has_known_secret(encode({"code": 12345678}))


def test_the_data_notes_and_context_of_an_error_are_masked() -> None:
    lookup = SecretLookup()
    lookup.remember([CANARY])
    error = RemoteError(1, "failed", {"value": CANARY})
    error.__context__ = ValueError(CANARY)
    error.add_note(CANARY)
    mask_error(error, lookup.mask)
    assert CANARY not in "".join(traceback.format_exception(error))
    assert error.data == {"value": "***"}


@pytest.mark.parametrize("note", [CANARY + "x" * 100_000, "x" * 100_000 + CANARY])
def test_the_long_notes_of_an_error_stay_a_list(note: str) -> None:
    lookup = SecretLookup()
    lookup.remember([CANARY])
    error = RemoteError(1, "failed")
    error.add_note(note)
    mask_error(error, lookup.mask)
    error.add_note("the last")
    assert error.__notes__[1:] == ["the last"]
    assert CANARY not in error.__notes__[0]
