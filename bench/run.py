"""Measures dovetail, its peers and the floors side by side, and prints the ratios.

python bench/run.py                      everything, some fifteen minutes
python bench/run.py --quick              dovetail and the floors, under a minute; fails when a limit is far exceeded
python bench/run.py stdio http --rounds 3 --who dovetail,floor-inline,floor-http
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import report
import startup_and_memory
from paired_runs import Plan, Ratios, Results, measure
from scenarios import BLOCKS, LIMITS, QUICK, QUICK_LIMITS, QUICK_WHO, STARTUP_LIMITS, Limit, Scenario
from server_process import FLOORS, IMPLEMENTATIONS, OURS

SLACK = 4 / 3  # a quick run fails when a ratio passes its limit by a third
STARTUP_BLOCKS = ("cold", "memory")
MIN_ROUNDS = 3  # of what is published

PrintProgress = Callable[[str], None]


def verdict(limit: Limit, results: Results, ratios: Ratios) -> report.Verdict | None:
    """A limit with the ratio found: the median of those of the turns; None where one of the two was not measured."""
    name = limit.name
    if limit.against == "best":
        others = {other: one["cpu_us"] for other, one in results.get(limit.scene, {}).items() if other != OURS}
        if not others:
            return None
        name = f"{limit.scene}:{min(others, key=lambda other: others[other])}"
    if name not in ratios:
        return None
    samples = [ratio / limit.scale for ratio in ratios[name]["samples"]]
    if limit.most is None:
        samples = [1 / ratio for ratio in samples]
    beside = ratios.get(f"{limit.name}:{limit.beside}")
    return report.Verdict(
        limit.name,
        median(samples),
        limit.most,
        limit.least,
        low=min(samples),
        high=max(samples),
        beside=None if beside is None else beside["ratio"] / limit.scale,
    )


def verdicts(results: Results, ratios: Ratios, figures: dict[str, Any]) -> Iterator[report.Verdict]:
    """Every limit with the ratio found."""
    for limit in LIMITS:
        found = verdict(limit, results, ratios)
        if found is not None:
            yield found
    for name, ratio in _still_ratios(figures):
        yield report.Verdict(name, ratio, (STARTUP_LIMITS | QUICK_LIMITS)[name], None)


def _still_ratios(figures: dict[str, Any]) -> Iterator[tuple[str, float]]:
    if "import" in figures:
        yield "import", figures["import"][OURS]["cpu_ms"] / figures["import"]["floor"]["cpu_ms"]
        yield "spawn", figures["spawn"][OURS]["cpu_ms"] / figures["spawn"]["floor-inline"]["cpu_ms"]
    if "memory" in figures:
        ours = figures["memory"][OURS]
        yield "rss-idle-stdio", ours["idle_stdio"] / figures["memory"]["floor-inline"]["idle_stdio"]
        yield "rss-per-session-KB", ours["per_session"] / 1024
        yield f"rss-{ours['calls'] // 10_000 * 10}k-calls", ours["after_calls"] / ours["before_calls"]


def measure_all(
    blocks: list[str], plan: Plan, tell: PrintProgress, *, quick: bool
) -> tuple[Results, Ratios, dict[str, Any], bool]:
    """Everything that is asked for: figures of calls, those of servers at rest, and whether nothing went wrong.

    A block that fails is told of and left out: it must not take the others' quarter of an hour with it.
    """
    results: Results = {}
    ratios: Ratios = {}
    figures: dict[str, Any] = {}
    good = True
    for name in blocks:
        tell(name)
        try:
            if name in STARTUP_BLOCKS:
                figures |= _at_rest(name, plan, quick=quick)
            else:
                limits = [limit._replace(beside="") for limit in LIMITS] if quick else LIMITS
                found = measure(_for_limits(BLOCKS[name]) if quick else BLOCKS[name], limits, plan, tell)
                results |= found[0]
                ratios |= found[1]
        except RuntimeError as exc:
            sys.stderr.write(f"{name} failed: {exc}\n")
            good = False
    return results, ratios, figures, good


def _at_rest(block: str, plan: Plan, *, quick: bool) -> dict[str, Any]:
    who = (OURS, "floor-inline") if quick else plan.who
    if block == "memory":
        return {"memory": startup_and_memory.measure_memory(who, 20_000 if quick else 100_000)}
    startup_and_memory.compile_bytecode()
    return {
        "import": startup_and_memory.measure_imports(who, plan.rounds * 3),
        "spawn": startup_and_memory.measure_spawn(who, plan.rounds * 2),
    }


def _for_limits(scenes: list[Scenario]) -> list[Scenario]:
    """Only what a limit on a floor or on ourselves needs, with only those it needs."""
    needed: dict[str, set[str]] = {}
    for limit in LIMITS:
        if limit.most is not None:
            against = set(FLOORS) if limit.against == "best" else {limit.against} & set(FLOORS)
            needed.setdefault(limit.scene, {OURS}).update(against)
            needed.setdefault(limit.against, {OURS})
    return [scene._replace(who=tuple(sorted(needed[scene.name]))) for scene in scenes if scene.name in needed]


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("blocks", nargs="*", metavar="block", help=", ".join((*BLOCKS, *STARTUP_BLOCKS)))
    parser.add_argument("--quick", action="store_true", help="dovetail and the floors only, one ratio a line")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=None, help="of one run")
    parser.add_argument("--who", default=None, help=", ".join(IMPLEMENTATIONS))
    parser.add_argument("--publish", action="store_true", help="also write results/published.json and .svg")
    given = parser.parse_args()
    if given.publish and (given.quick or given.blocks or given.who or (given.rounds or 5) < MIN_ROUNDS):
        parser.error(f"what is published is everything and everyone, in {MIN_ROUNDS} rounds or more")
    unknown = set(given.blocks) - {*BLOCKS, *STARTUP_BLOCKS}
    if unknown:
        parser.error(f"no such block: {', '.join(sorted(unknown))}")
    everyone = QUICK_WHO if given.quick else tuple(IMPLEMENTATIONS)
    who = tuple(given.who.split(",")) if given.who else everyone
    if strangers := set(who) - {*IMPLEMENTATIONS}:
        parser.error(f"nobody is called {', '.join(sorted(strangers))}")
    blocks = given.blocks or [*(QUICK if given.quick else BLOCKS), *STARTUP_BLOCKS]
    plan = (
        Plan(who, given.rounds or 3, given.seconds or 0.08, 0.04)
        if given.quick
        else Plan(who, given.rounds or 5, given.seconds or 0.3, 0.4)
    )
    results, ratios, figures, good = measure_all(
        blocks, plan, _ignore_progress if given.quick else _print_progress, quick=given.quick
    )
    found = list(verdicts(results, ratios, figures))
    if given.quick:
        for one in found:
            sys.stdout.write(f"{one.name} {one.ratio:.2f} {one.most:g}\n")
        return int(not good or any(_is_far_exceeded(one) for one in found))
    rounds = {"rounds": plan.rounds, "seconds": plan.seconds}
    report.write(results, ratios, figures, found, rounds, publish=given.publish and good)
    return int(not good)


def _is_far_exceeded(one: report.Verdict) -> bool:
    """Whether a limit is far exceeded, by our doing: how cost grows with size is mostly the C library's."""
    growth = {limit.name for limit in LIMITS if limit.beside}
    return one.most is not None and one.name not in growth and one.ratio > one.most * SLACK


def _print_progress(text: str) -> None:
    """How far it is, for whoever watches a long run; never among the results."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _ignore_progress(text: str) -> None:
    """Nobody watches a short run."""


if __name__ == "__main__":
    raise SystemExit(main())
