"""Fixtures and hooks of all tests. Under CI=true a skipped test fails."""

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from support import official_schemas, outside_programs

# No deadline: examples may be slow on a busy machine, and other tests measure time. Under CI the examples are the same
# each time, so that a failure is caused by the change. Other runs use new examples.
settings.register_profile("dovetail", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.register_profile("quick", settings.get_profile("dovetail"), max_examples=10)  # for `make quick`
settings.load_profile("dovetail")

pytest_plugins = ["support.durations"]

ROOT = Path(__file__).parents[1]

ALLOWED_SKIPS_IN_CI = ("platform: ",)  # a skip because of the platform cannot be avoided

_not_collected: Counter[str] = Counter()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "official_schema(*revisions): needs the official schemas of these revisions")
    config.addinivalue_line("markers", "official_examples: needs the official examples")
    config.addinivalue_line("markers", f"{outside_programs.MARK}(*names): needs these outside programs")
    official_schemas.check_spec_dir()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Store the counts of a pytest-xdist worker. Every worker collects the same tests."""
    for reason, count in getattr(node, "workeroutput", {}).get("not_collected", {}).items():
        _not_collected[reason] = count


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason, count in _not_collected.items():
        tests = "1 test that needs" if count == 1 else f"{count} tests that need"
        terminalreporter.write_line(f"not collected: {tests} {reason}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Name the missing programs in the last lines, after the summary of pytest."""
    yield
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        for line in outside_programs.describe_missing_programs(reporter.stats.get("skipped", [])):
            reporter.write_line(line)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    outside_programs.begin_test(item)


def pytest_collection_finish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["not_collected"] = dict(_not_collected)
    # Not earlier: this hook runs only in the processes that run tests, and workers of pytest-xdist must still inherit
    # ignored hangups.
    _restore_signals()
    gc.freeze()  # garbage collections need not look at thousands of test objects


def _restore_signals() -> None:
    """Give the programs that tests start default signal handling, even if this process inherited ignored signals.

    A background job starts with SIGINT ignored, and `nohup` ignores SIGHUP. Programs inherit both. They do not inherit
    a handler: it becomes the default. So a handler that does nothing keeps this process running after a hangup.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGHUP", "SIGQUIT"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.fixture(scope="module", autouse=True)
def collect_garbage() -> Generator[None]:
    """Collect garbage after each file, so that a warning about an unclosed resource appears in its file."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def forget_known_eras() -> None:
    """Empty the list of known eras. A new server may get the port of one that an earlier test closed."""
    connector = sys.modules.get("dovetail.client.connector")
    if connector is not None:
        connector._KNOWN_ERAS.clear()


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _not_collected.update(official_schemas.remove_uncollectable(report.result or []))
    _fail_skip(report)
    return report


def _fail_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("CI") != "true" or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not any(text in reason for text in ALLOWED_SKIPS_IN_CI):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI=true does not allow: {reason}"
