"""Test that only five files contain the dates of protocol versions."""

import re
from pathlib import Path

ALLOWED = {
    "wire/revisions.py",
    "wire/methods.py",
    "protocol/stateless.py",
    "protocol/handshake.py",
    "protocol/downgrade.py",
}
DATE = re.compile(r"20\d\d[-_](?:0[1-9]|1[0-2])[-_](?:0[1-9]|[12]\d|3[01])")


def test_revision_dates_stand_only_where_the_law_allows(root: Path) -> None:
    package = root / "src" / "dovetail"
    found = {
        f"{path.relative_to(package).as_posix()}:{number}"
        for path in package.rglob("*.py")
        if path.relative_to(package).as_posix() not in ALLOWED
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if DATE.search(line)
    }
    assert not found
