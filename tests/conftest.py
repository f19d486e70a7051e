"""What every test shares: where things stand, and the rule that under CI=true nothing may be skipped silently."""

import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is not a wrong answer: how long an example takes is judged by the tests that measure.
# Under CI the examples are the same each time, so that its verdict is about the change; other runs look further.
settings.register_profile("dovetail", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("dovetail")

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"

# A clone stands alone, so what lies beside the checkout may be missing even in CI; a platform cannot be installed.
TOLERATED_IN_CI = ("beside the checkout", "platform: ")


def pytest_collection_finish() -> None:
    gc.freeze()  # thousands of tests are no garbage, and need not be looked through at each collection


@pytest.fixture(scope="module", autouse=True)
def collected() -> Generator[None]:
    """What the tests of a file leave unclosed is found out in that file, not wherever a collection happens to come."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of official schemas and examples beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip("the shared folder is not beside the checkout")
    return SHARED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("CI") != "true" or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not any(text in reason for text in TOLERATED_IN_CI):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI=true does not allow: {reason}"
