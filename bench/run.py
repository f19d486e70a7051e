"""Compare dovetail with its peers and the floors, and print the ratios.

python bench/run.py                      run everything, about 15 minutes
python bench/run.py --quick              only dovetail and the floors, under a minute. Fails far over a limit
python bench/run.py stdio http --rounds 3 --only dovetail,floor-inline,floor-http
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import gateways
import report
import startup_and_memory
import streams
from paired_runs import Plan, Ratios, Results, measure
from scenarios import (
    BLOCKS,
    GATEWAY_LIMITS,
    LIMITS,
    QUICK_BLOCKS,
    QUICK_IMPLEMENTATIONS,
    QUICK_LIMITS,
    STARTUP_LIMITS,
    STREAM_LIMITS,
    Limit,
    Scenario,
)
from server_process import FLOORS, IMPLEMENTATIONS, OURS

SLACK_FACTOR = 4 / 3  # a quick run fails if a ratio exceeds its limit by a third
STARTUP_BLOCKS = ("cold", "memory", "streams")
GATEWAY_BLOCK = "gateway"
OTHER_BLOCKS = (GATEWAY_BLOCK, *STARTUP_BLOCKS)
MIN_ROUNDS = 3  # for --publish

ProgressPrinter = Callable[[str], None]


def compute_verdict(limit: Limit, results: Results, ratios: Ratios) -> report.Verdict | None:
    """Compute the median ratio for a limit. Return None if one of the two was not measured."""
    name = limit.name
    if limit.against == "best":
        by_implementation = results.get(limit.scenario, {})
        others = {other: figures["cpu_us"] for other, figures in by_implementation.items() if other != OURS}
        if not others:
            return None
        name = f"{limit.scenario}:{min(others, key=lambda other: others[other])}"
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


def compute_verdicts(results: Results, ratios: Ratios, figures: dict[str, Any]) -> Iterator[report.Verdict]:
    """Yield the ratio for each limit."""
    for limit in LIMITS:
        verdict = compute_verdict(limit, results, ratios)
        if verdict is not None:
            yield verdict
    for name, ratio in _startup_ratios(figures):
        yield report.Verdict(name, ratio, (STARTUP_LIMITS | QUICK_LIMITS | STREAM_LIMITS)[name], None)
    for name, samples in figures.get(GATEWAY_BLOCK, {}).get("ratios", {}).items():
        low, high = min(samples), max(samples)
        yield report.Verdict(name, median(samples), GATEWAY_LIMITS[name], None, low=low, high=high)


def _startup_ratios(figures: dict[str, Any]) -> Iterator[tuple[str, float]]:
    if "import" in figures:
        yield "import", figures["import"][OURS]["cpu_ms"] / figures["import"]["floor"]["cpu_ms"]
        yield "spawn", figures["spawn"][OURS]["cpu_ms"] / figures["spawn"]["floor-inline"]["cpu_ms"]
        yield "spawn-http", figures["spawn-http"][OURS]["cpu_ms"] / figures["spawn-http"]["floor-http"]["cpu_ms"]
    if "memory" in figures:
        ours = figures["memory"][OURS]
        yield "rss-idle-stdio", ours["idle_stdio"] / figures["memory"]["floor-inline"]["idle_stdio"]
        yield "rss-per-session-KB", ours["per_session"] / 1024
        yield f"rss-{ours['calls'] // 10_000 * 10}k-calls", ours["after_calls"] / ours["before_calls"]
    for era, stream_figures in figures.get("streams", {}).items():
        yield f"memory-call-us-{era}", stream_figures["memory_call_us"]
        yield f"notice-us-{era}", stream_figures["notice_us"]
        yield f"stream-KB-{era}", stream_figures["stream_bytes"] / 1024


def measure_all(
    blocks: list[str], plan: Plan, print_progress: ProgressPrinter, *, quick: bool
) -> tuple[Results, Ratios, dict[str, Any], bool]:
    """Measure the blocks. Return the results, ratios and other figures, and whether all blocks succeeded.

    If a block fails, the error is printed and the other blocks still run.
    """
    results: Results = {}
    ratios: Ratios = {}
    figures: dict[str, Any] = {}
    succeeded = True
    for name in blocks:
        print_progress(name)
        try:
            if name == GATEWAY_BLOCK:
                figures[GATEWAY_BLOCK] = gateways.measure(plan, with_peers=not quick)
            elif name in STARTUP_BLOCKS:
                figures |= _measure_startup(name, plan, quick=quick)
            else:
                limits = [limit._replace(beside="") for limit in LIMITS] if quick else LIMITS
                scenarios = _select_limited(BLOCKS[name]) if quick else BLOCKS[name]
                block_results, block_ratios = measure(scenarios, limits, plan, print_progress)
                results |= block_results
                ratios |= block_ratios
        except RuntimeError as exc:
            sys.stderr.write(f"{name} failed: {exc}\n")
            succeeded = False
    return results, ratios, figures, succeeded


def _measure_startup(block: str, plan: Plan, *, quick: bool) -> dict[str, Any]:
    implementations = (OURS, "floor-inline") if quick else plan.implementations
    if block == "memory":
        return {"memory": startup_and_memory.measure_memory(implementations, 20_000 if quick else 100_000)}
    if block == "streams":
        return {"streams": streams.measure(1000, 3 if quick else 9)}
    startup_and_memory.compile_bytecode()
    over_http = (OURS, "floor-http") if quick else plan.implementations
    return {
        "import": startup_and_memory.measure_imports(implementations, plan.rounds * 3),
        "spawn": startup_and_memory.measure_spawn(implementations, plan.rounds * 2),
        "spawn-http": startup_and_memory.measure_spawn(over_http, plan.rounds * 2, "http"),
    }


def _select_limited(scenarios: list[Scenario]) -> list[Scenario]:
    """Select the scenarios and implementations that a limit on a floor or on dovetail itself needs."""
    needed: dict[str, set[str]] = {}
    for limit in LIMITS:
        if limit.most is not None:
            against = set(FLOORS) if limit.against == "best" else {limit.against} & set(FLOORS)
            needed.setdefault(limit.scenario, {OURS}).update(against)
            needed.setdefault(limit.against, {OURS})
    return [
        scenario._replace(implementations=tuple(sorted(needed[scenario.name])))
        for scenario in scenarios
        if scenario.name in needed
    ]


def main() -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("blocks", nargs="*", metavar="block", help=", ".join((*BLOCKS, *OTHER_BLOCKS)))
    parser.add_argument("--quick", action="store_true", help="only dovetail and the floors, one ratio per line")
    parser.add_argument("--rounds", type=int, default=None, help="number of rounds")
    parser.add_argument("--seconds", type=float, default=None, help="duration of one run")
    parser.add_argument("--only", default=None, metavar="NAMES", help=", ".join(IMPLEMENTATIONS))
    parser.add_argument("--publish", action="store_true", help="also write results/published.json and .svg")
    arguments = parser.parse_args()
    is_partial = arguments.quick or arguments.blocks or arguments.only or (arguments.rounds or 5) < MIN_ROUNDS
    if arguments.publish and is_partial:
        parser.error(f"--publish needs all blocks, all implementations and at least {MIN_ROUNDS} rounds")
    unknown = set(arguments.blocks) - {*BLOCKS, *OTHER_BLOCKS}
    if unknown:
        parser.error(f"unknown block: {', '.join(sorted(unknown))}")
    default = QUICK_IMPLEMENTATIONS if arguments.quick else tuple(IMPLEMENTATIONS)
    implementations = tuple(arguments.only.split(",")) if arguments.only else default
    if unknown_implementations := set(implementations) - {*IMPLEMENTATIONS}:
        parser.error(f"unknown implementation: {', '.join(sorted(unknown_implementations))}")
    blocks = arguments.blocks or [*(QUICK_BLOCKS if arguments.quick else BLOCKS), *OTHER_BLOCKS]
    plan = (
        Plan(implementations, arguments.rounds or 3, arguments.seconds or 0.08, 0.04)
        if arguments.quick
        else Plan(implementations, arguments.rounds or 5, arguments.seconds or 0.3, 0.4)
    )
    results, ratios, figures, succeeded = measure_all(
        blocks, plan, _ignore_progress if arguments.quick else _print_progress, quick=arguments.quick
    )
    verdicts = list(compute_verdicts(results, ratios, figures))
    if arguments.quick:
        for verdict in verdicts:
            sys.stdout.write(f"{verdict.name} {verdict.ratio:.2f} {verdict.most:g}\n")
        return int(not succeeded or any(_is_far_exceeded(verdict) for verdict in verdicts))
    rounds = {"rounds": plan.rounds, "seconds": plan.seconds}
    report.write(results, ratios, figures, verdicts, rounds, publish=arguments.publish and succeeded)
    return int(not succeeded)


def _is_far_exceeded(verdict: report.Verdict) -> bool:
    """Return whether a limit is far exceeded. Ignore growth with size, which depends mostly on the C library."""
    growth = {limit.name for limit in LIMITS if limit.beside}
    is_latency = verdict.name.endswith("-latency")  # depends on the load by other programs
    if verdict.most is None or verdict.name in growth or is_latency:
        return False
    return verdict.ratio > verdict.most * SLACK_FACTOR


def _print_progress(text: str) -> None:
    """Print progress to standard error, so that it does not mix with the results."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _ignore_progress(text: str) -> None:
    """Print nothing, because a quick run is short."""


if __name__ == "__main__":
    raise SystemExit(main())
