"""Test the plan of paired runs, the computation of ratios and the published results."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).parents[2] / "bench/results"
IMPLEMENTATIONS = ("dovetail", "mcp", "fastmcp", "floor-inline", "floor-task", "floor-http")


def test_every_limit_names_a_scenario_and_an_implementation(bench: Any) -> None:
    scenarios, server_process = bench("scenarios"), bench("server_process")
    by_name = {scenario.name: scenario for block in scenarios.BLOCKS.values() for scenario in block}
    for limit in scenarios.LIMITS:
        assert limit.scenario in by_name
        participants = by_name[limit.scenario].participants(tuple(server_process.IMPLEMENTATIONS))
        assert limit.against in {*by_name, "best", *participants}
        assert limit.beside in {"", *participants}


def test_every_implementation_runs_next_to_ours(bench: Any) -> None:
    scenarios, paired_runs = bench("scenarios"), bench("paired_runs")
    for block in scenarios.BLOCKS.values():
        runs = paired_runs.plan_runs(block, scenarios.LIMITS, IMPLEMENTATIONS)
        for scenario in block:
            others = [
                other
                for paired_run in runs
                for other in paired_run.others
                if paired_run.middle == (scenario.name, "dovetail")
            ]
            inside = sorted(other.name for other in others if other.scenario == scenario.name)
            assert inside == sorted(name for name in scenario.participants(IMPLEMENTATIONS) if name != "dovetail")
        assert all(len(paired_run.others) <= 2 for paired_run in runs)
        pairs = {(paired_run.middle, other) for paired_run in runs for other in paired_run.others}
        names = {scenario.name for scenario in block}
        for limit in scenarios.LIMITS:
            if limit.against in names:
                for name in filter(None, ("dovetail", limit.beside)):
                    assert ((limit.scenario, name), (limit.against, name)) in pairs


def test_ours_is_the_middle_of_three_and_two_run_in_random_order(bench: Any) -> None:
    paired_runs = bench("paired_runs")
    ours, first, second = (paired_runs.Participant("s", name) for name in ("dovetail", "a", "b"))
    assert paired_runs.PairedRun(ours, (first, second)).in_order() == [first, ours, second]
    assert {paired_runs.PairedRun(ours, (first,)).in_order()[0] for _ in range(100)} == {ours, first}


def test_an_uneven_run_is_repeated_a_limited_number_of_times(bench: Any) -> None:
    paired_runs = bench("paired_runs")

    def runner(shares: list[tuple[float, float]]) -> Any:
        remaining = iter(shares)
        return lambda: dict(zip("ab", ({"foreign": share} for share in next(remaining)), strict=True))

    uneven, even, worse = (0.0, 0.9), (0.5, 0.6), (0.0, 1.5)
    best, left = paired_runs.run_evenly(runner([even]), 5)
    assert (best["b"]["foreign"], left) == (0.6, 5)
    best, left = paired_runs.run_evenly(runner([uneven, even]), 5)
    assert (best["b"]["foreign"], left) == (0.6, 4)
    best, left = paired_runs.run_evenly(runner([worse, uneven, worse]), 5)
    assert (best["b"]["foreign"], left) == (0.9, 3)
    best, left = paired_runs.run_evenly(runner([worse]), 0)
    assert (best["b"]["foreign"], left) == (1.5, 0)


def test_a_verdict_is_the_median_of_ratios_and_not_a_ratio_of_medians(bench: Any) -> None:
    run, scenarios = bench("run"), bench("scenarios")
    results: Any = {"stdio-echo-1MB": {"dovetail": {"cpu_us": 99}, "mcp": {"cpu_us": 2}, "floor-task": {"cpu_us": 1}}}
    ratios: Any = {
        "stdio-echo-1MB:floor-task": {"samples": [1.0, 5.0, 1.25], "ratio": 1.25},
        "stdio-echo-1MB:mcp": {"samples": [0.25, 0.5, 0.1], "ratio": 0.25},
        "stdio-echo-20MB:stdio-echo-1MB": {"samples": [30.0, 20.0, 40.0], "ratio": 30.0},
        "stdio-echo-20MB:stdio-echo-1MB:floor-inline": {"samples": [50.0], "ratio": 50.0},
    }
    most = run.compute_verdict(scenarios.Limit("stdio-echo-1MB", "best", most=1.5), results, ratios)
    assert (most.ratio, most.low, most.high, most.is_met) == (1.25, 1.0, 5.0, True)
    least = run.compute_verdict(scenarios.Limit("stdio-echo-1MB", "mcp", least=5), results, ratios)
    assert (least.ratio, least.low, least.high, least.is_met) == (4.0, 2.0, 10.0, False)
    growth = scenarios.Limit("stdio-echo-20MB", "stdio-echo-1MB", most=1.2, scale=20, beside="floor-inline")
    verdict = run.compute_verdict(growth, results, ratios)
    assert (verdict.ratio, verdict.beside, verdict.is_met) == (1.5, 2.5, False)
    assert run.compute_verdict(scenarios.Limit("sse-c1", "floor-http", most=2), results, ratios) is None


def test_the_published_results_have_the_current_limits(bench: Any) -> None:
    """A new limit or scenario is in the results of the next run with --publish."""
    scenarios = bench("scenarios")
    published = json.loads((RESULTS / "published.json").read_text(encoding="utf-8"))
    wanted = {limit.name: limit.most or limit.least for limit in scenarios.LIMITS}
    wanted |= scenarios.STARTUP_LIMITS | scenarios.STREAM_LIMITS | scenarios.GATEWAY_LIMITS
    limits = {verdict["name"]: verdict["most"] or verdict["least"] for verdict in published["verdicts"]}
    assert limits == wanted
    assert set(published["scenes"]) <= {scenario.name for block in scenarios.BLOCKS.values() for scenario in block}
    assert len(published["commit"].split()[0]) == 40


def test_the_published_client_results_contain_every_client_and_scenario(bench: Any) -> None:
    clients = bench("clients")
    published = json.loads((RESULTS / "published-clients.json").read_text(encoding="utf-8"))
    if "commit" not in published:
        pytest.skip("the published results have no commit")
    assert set(published["scenes"]) == set(clients.SCENARIOS)
    for name, by_client in published["scenes"].items():
        assert set(by_client) == {
            client for client in clients.CALLERS if clients.can_run(client, clients.SCENARIOS[name])
        }
    assert len(published["commit"].split()[0]) == 40


@pytest.mark.parametrize("arguments", [["--rounds", "2"], ["--only", "dovetail"]])
@pytest.mark.parametrize("program", ["run", "clients"])
def test_publish_rejects_a_partial_run(
    bench: Any, program: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--publish", *arguments])
    with pytest.raises(SystemExit) as stopped:
        bench(program).main()
    assert stopped.value.code == 2
    assert "rounds" in capsys.readouterr().err
