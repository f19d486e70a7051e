"""Test that the table of limits in docs/reliability.md matches `limits.py`.

RELIABILITY_WRITE=1 writes the table.
"""

import inspect
import os
import re
from pathlib import Path

import msgspec

from dovetail.protocol import limits

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
BLOCK = re.compile(r"(<!-- generated: limits -->\n).*?(<!-- end -->)", re.DOTALL)


def comments() -> dict[str, str]:
    """Return the comment of each limit, which is above the limit or on its line."""
    found: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(limits.ServerLimits).splitlines():
        if line.startswith("    # "):
            above.append(line.removeprefix("    # "))
        elif name := re.match(r"    (\w+): (?:int|float) =", line):
            beside = line.partition("  # ")[2]
            found[name[1]] = " ".join([*above, *([beside] if beside else [])])
            above = []
    return found


def spoken(name: str, value: float) -> str:
    if isinstance(value, int) and not name.endswith("_bytes"):
        return f"{value:,}".replace(",", " ")
    if isinstance(value, int):
        unit, size = ("MiB", limits.MiB) if value % limits.MiB == 0 else ("KiB", limits.KiB)
        return f"{value // size} {unit}"
    for unit, seconds in (("h", 3600), ("min", 60)):
        if value >= seconds and value % seconds == 0:
            return f"{value / seconds:g} {unit}"
    return f"{value:g} s"


def table() -> str:
    comment_by_name = comments()
    rows = [
        f"| `{one.name}` | {spoken(one.name, one.default)} | {comment_by_name[one.name].replace('|', '/')} |"
        for one in msgspec.structs.fields(limits.ServerLimits)
    ]
    return "\n".join(["| limit | default | meaning |", "| --- | --- | --- |", *rows]) + "\n"


def test_the_limits_are_those_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    due = BLOCK.sub(lambda found: found[1] + table() + found[2], text)
    if os.environ.get("RELIABILITY_WRITE"):
        PAGE.write_text(due, encoding="utf-8")
    assert BLOCK.search(text)
    assert PAGE.read_text(encoding="utf-8") == due
