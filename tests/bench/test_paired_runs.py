"""Ratios are those of turns played at once, and what is published is what the limits name."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).parents[2] / "bench/results"
EVERYONE = ("dovetail", "mcp", "fastmcp", "floor-inline", "floor-task", "floor-http")


def test_every_limit_names_what_is_measured(bench: Any) -> None:
    scenes, stage = bench("scenarios"), bench("server_process")
    known = {scene.name: scene for block in scenes.BLOCKS.values() for scene in block}
    for limit in scenes.LIMITS:
        assert limit.scene in known
        cast = known[limit.scene].participants(tuple(stage.IMPLEMENTATIONS))
        assert limit.against in {*known, "best", *cast}
        assert limit.beside in {"", *cast}


def test_everyone_is_played_next_to_ours(bench: Any) -> None:
    scenes, turns = bench("scenarios"), bench("paired_runs")
    for block in scenes.BLOCKS.values():
        found = turns.plan_turns(block, scenes.LIMITS, EVERYONE)
        for scene in block:
            others = [one for turn in found for one in turn.others if turn.middle == (scene.name, "dovetail")]
            inside = sorted(one.name for one in others if one.scene == scene.name)
            assert inside == sorted(name for name in scene.participants(EVERYONE) if name != "dovetail")
        assert all(len(turn.others) <= 2 for turn in found)
        pairs = {(turn.middle, one) for turn in found for one in turn.others}
        names = {scene.name for scene in block}
        for limit in scenes.LIMITS:
            if limit.against in names:
                for name in filter(None, ("dovetail", limit.beside)):
                    assert ((limit.scene, name), (limit.against, name)) in pairs


def test_of_three_ours_is_the_middle_one_and_of_two_either_is_first(bench: Any) -> None:
    turns = bench("paired_runs")
    ours, one, other = (turns.Participant("s", name) for name in ("dovetail", "a", "b"))
    assert turns.PairedRun(ours, (one, other)).parts() == [one, ours, other]
    assert {turns.PairedRun(ours, (one,)).parts()[0] for _ in range(100)} == {ours, one}


def test_an_uneven_turn_is_played_again_but_not_for_ever(bench: Any) -> None:
    turns = bench("paired_runs")

    def play(shares: list[tuple[float, float]]) -> Any:
        given = iter(shares)
        return lambda: dict(zip("ab", ({"foreign": share} for share in next(given)), strict=True))

    uneven, even, worse = (0.0, 0.9), (0.5, 0.6), (0.0, 1.5)
    best, left = turns.play_evenly(play([even]), 5)
    assert (best["b"]["foreign"], left) == (0.6, 5)
    best, left = turns.play_evenly(play([uneven, even]), 5)
    assert (best["b"]["foreign"], left) == (0.6, 4)
    best, left = turns.play_evenly(play([worse, uneven, worse]), 5)
    assert (best["b"]["foreign"], left) == (0.9, 3)
    best, left = turns.play_evenly(play([worse]), 0)
    assert (best["b"]["foreign"], left) == (1.5, 0)


def test_a_verdict_is_the_median_of_the_turns_and_not_a_ratio_of_medians(bench: Any) -> None:
    run, scenes = bench("run"), bench("scenarios")
    results: Any = {"stdio-echo-1MB": {"dovetail": {"cpu_us": 99}, "mcp": {"cpu_us": 2}, "floor-task": {"cpu_us": 1}}}
    ratios: Any = {
        "stdio-echo-1MB:floor-task": {"samples": [1.0, 5.0, 1.25], "ratio": 1.25},
        "stdio-echo-1MB:mcp": {"samples": [0.25, 0.5, 0.1], "ratio": 0.25},
        "stdio-echo-20MB:stdio-echo-1MB": {"samples": [30.0, 20.0, 40.0], "ratio": 30.0},
        "stdio-echo-20MB:stdio-echo-1MB:floor-inline": {"samples": [50.0], "ratio": 50.0},
    }
    most = run.verdict(scenes.Limit("stdio-echo-1MB", "best", most=1.5), results, ratios)
    assert (most.ratio, most.low, most.high, most.is_met) == (1.25, 1.0, 5.0, True)
    least = run.verdict(scenes.Limit("stdio-echo-1MB", "mcp", least=5), results, ratios)
    assert (least.ratio, least.low, least.high, least.is_met) == (4.0, 2.0, 10.0, False)
    growth = scenes.Limit("stdio-echo-20MB", "stdio-echo-1MB", most=1.2, scale=20, beside="floor-inline")
    found = run.verdict(growth, results, ratios)
    assert (found.ratio, found.beside, found.is_met) == (1.5, 2.5, False)
    assert run.verdict(scenes.Limit("sse-c1", "floor-http", most=2), results, ratios) is None


def test_what_is_published_has_every_limit(bench: Any) -> None:
    scenes = bench("scenarios")
    published = json.loads((RESULTS / "published.json").read_text(encoding="utf-8"))
    wanted = {limit.name: limit.most or limit.least for limit in scenes.LIMITS} | scenes.STARTUP_LIMITS
    assert {one["name"]: one["most"] or one["least"] for one in published["verdicts"]} == wanted
    assert set(published["scenes"]) == {scene.name for block in scenes.BLOCKS.values() for scene in block}
    assert len(published["commit"].split()[0]) == 40


def test_what_is_published_of_clients_has_everyone_in_every_scene(bench: Any) -> None:
    clients = bench("clients")
    published = json.loads((RESULTS / "published-clients.json").read_text(encoding="utf-8"))
    if "commit" not in published:
        pytest.skip("published before commits were named")
    assert set(published["scenes"]) == set(clients.SCENES)
    for name, cast in published["scenes"].items():
        assert set(cast) == {one for one in clients.CALLERS if clients.can_play(one, clients.SCENES[name])}
    assert len(published["commit"].split()[0]) == 40


@pytest.mark.parametrize("words", [["--rounds", "2"], ["--who", "dovetail"]])
@pytest.mark.parametrize("program", ["run", "clients"])
def test_only_everything_is_published(
    bench: Any, program: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--publish", *words])
    with pytest.raises(SystemExit) as stopped:
        bench(program).main()
    assert stopped.value.code == 2
    assert "rounds" in capsys.readouterr().err
