"""Measures dovetail, its peers and the floors side by side, and prints the ratios.

python bench/run.py                      everything, some twenty minutes
python bench/run.py --quick              dovetail and the floors, under a minute; fails when a limit is far exceeded
python bench/run.py stdio http --rounds 3 --who dovetail,floor-inline,floor-http
"""

import argparse
import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple

import report
import still
from asks import Wrong
from load import Bounds, Pipes, Tally
from scenes import BLOCKS, ERAS, LIMITS, QUICK, QUICK_WHO, STILL_LIMITS, Limit, Scene
from stage import FLOORS, IMPLEMENTATIONS, OURS, Running, Setting, busy

MOST_CALLS = 10_000_000
SLACK = 4 / 3  # a quick run fails when a ratio passes its limit by a third
STILL = ("cold", "memory")

Results = dict[str, dict[str, dict[str, Any]]]


class Plan(NamedTuple):
    """How long, and who."""

    who: tuple[str, ...]
    rounds: int
    seconds: float
    warm: float
    quick: bool

    def tell(self, text: str) -> None:
        """How far it is, for whoever watches a long run; never among the results."""
        if not self.quick:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


class Troupe:
    """The servers of one block: each is started when first needed and stays up until the block is over."""

    def __init__(self) -> None:
        self._servers: dict[tuple[str, Setting, str], Running] = {}
        self._pipes: dict[int, Pipes] = {}

    def server(self, name: str, scene: Scene) -> Running:
        """The server for a scene. A stdio server speaks one era in its life, an HTTP server both."""
        key = (name, scene.setting, scene.era if scene.setting.transport == "stdio" else "")
        if key not in self._servers:
            self._servers[key] = Running(name, scene.setting)
        return self._servers[key]

    @contextlib.contextmanager
    def ready(self, server: Running, scene: Scene) -> Iterator[Callable[[Bounds], Tally]]:
        """Connected and past the handshake: what is given plays the scene, and nothing else."""
        ask, era = scene.ask(), ERAS[scene.era]
        if scene.setting.transport == "stdio":
            pipes = self._pipes.get(server.process.pid)
            if pipes is None:
                pipes = self._pipes[server.process.pid] = server.pipes(era)
                pipes.open()
            yield lambda bounds: pipes.run(ask, scene.width, bounds)
        else:
            # New connections each time: servers hang up on idle ones.
            web = server.web(era, scene.width)
            try:
                web.open()
                yield lambda bounds: web.run(ask, bounds)
            finally:
                web.close()

    def leave(self) -> None:
        """Stop them all."""
        for server in self._servers.values():
            with contextlib.suppress(OSError):
                server.stop()


def measure(block: list[Scene], plan: Plan) -> Results:
    """All scenes of a block, in another order in every round."""
    samples: dict[str, dict[str, list[dict[str, Any]]]] = {scene.name: {} for scene in block}
    troupe = Troupe()
    try:
        for turn in range(plan.rounds + 1):
            parts = [(scene, name) for scene in block for name in scene.cast(plan.who)]
            random.shuffle(parts)
            for scene, name in parts:
                server = troupe.server(name, scene)
                with _blaming(server, scene), troupe.ready(server, scene) as play:
                    if turn == 0:
                        play(Bounds(MOST_CALLS, plan.warm))
                    else:
                        samples[scene.name].setdefault(name, []).append(_sample(server, play, plan.seconds))
            plan.tell(f"  round {turn} of {plan.rounds}" if turn else "  warm")
    finally:
        troupe.leave()
    return {scene: {name: _figures(found) for name, found in cast.items()} for scene, cast in samples.items()}


@contextlib.contextmanager
def _blaming(server: Running, scene: Scene) -> Iterator[None]:
    try:
        yield
    except (Wrong, OSError) as exc:
        last = server.said()[-2000:].decode(errors="replace")
        raise RuntimeError(f"{server.name} in {scene.name}: {exc}\n{last}") from exc


def _sample(server: Running, play: Callable[[Bounds], Tally], seconds: float) -> dict[str, Any]:
    cpu, machine = server.cpu(), busy()
    tally = play(Bounds(MOST_CALLS, seconds))
    used = server.cpu() - cpu
    foreign = max(0.0, busy() - machine - used - tally.cpu) / tally.seconds
    return {
        "calls": tally.calls,
        "cpu_us": used / tally.calls * 1e6,
        "calls_s": tally.calls / tally.seconds,
        "load_us": tally.cpu / tally.calls * 1e6,
        "p50_us": None if tally.p50 is None else tally.p50 * 1e6,
        "foreign": foreign,
    }


def _figures(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure, and all of the two that tell how far to trust it."""
    middle = {key: None if samples[0][key] is None else median([one[key] for one in samples]) for key in samples[0]}
    kept = {key: [round(one[key], 3) for one in samples] for key in ("cpu_us", "foreign")}
    return middle | {"samples": kept}


def ratio(limit: Limit, results: Results) -> float | None:
    """What a limit is put on; None where one of the two was not measured."""
    cast = results.get(limit.scene, {})
    if OURS not in cast:
        return None
    ours = cast[OURS]["cpu_us"]
    if limit.against in results:
        other = results[limit.against].get(OURS)
    elif limit.against == "best":
        others = [figures for name, figures in cast.items() if name != OURS]
        other = min(others, key=lambda one: one["cpu_us"], default=None)
    else:
        other = cast.get(limit.against)
    if other is None:
        return None
    if limit.most is None:
        return other["cpu_us"] / ours
    found = ours / other["cpu_us"] / limit.scale
    if not limit.beside:
        return found
    beside = [results[scene].get(limit.beside) for scene in (limit.scene, limit.against)]
    if beside[0] is None or beside[1] is None:
        return None
    return found / (beside[0]["cpu_us"] / beside[1]["cpu_us"] / limit.scale)


def verdicts(results: Results, figures: dict[str, Any]) -> Iterator[report.Verdict]:
    """Every limit with the ratio found."""
    for limit in LIMITS:
        found = ratio(limit, results)
        if found is not None:
            yield report.Verdict(limit.name, found, limit.most, limit.least)
    for name, found in _still_ratios(figures):
        yield report.Verdict(name, found, STILL_LIMITS[name], None)


def _still_ratios(figures: dict[str, Any]) -> Iterator[tuple[str, float]]:
    if "import" in figures:
        yield "import", figures["import"][OURS]["cpu_ms"] / figures["import"]["floor"]["cpu_ms"]
        yield "spawn", figures["spawn"][OURS]["cpu_ms"] / figures["spawn"]["floor-inline"]["cpu_ms"]
    if "memory" in figures:
        ours = figures["memory"][OURS]
        yield "rss-idle-stdio", ours["idle_stdio"] / figures["memory"]["floor-inline"]["idle_stdio"]
        yield "rss-per-session-KB", ours["per_session"] / 1024
        yield "rss-100k-calls", ours["after_calls"] / ours["before_calls"]


def measure_all(blocks: list[str], plan: Plan) -> tuple[Results, dict[str, Any], bool]:
    """Everything that is asked for: figures of calls, those of servers at rest, and whether nothing went wrong.

    A block that fails is told of and left out: it must not take the others' quarter of an hour with it.
    """
    results: Results = {}
    figures: dict[str, Any] = {}
    good = True
    for name in blocks:
        plan.tell(name)
        try:
            if name in STILL:
                figures |= _at_rest(name, plan)
            else:
                results |= measure(_for_limits(BLOCKS[name]) if plan.quick else BLOCKS[name], plan)
        except RuntimeError as exc:
            sys.stderr.write(f"{name} failed: {exc}\n")
            good = False
    return results, figures, good


def _at_rest(block: str, plan: Plan) -> dict[str, Any]:
    who = (OURS, "floor-inline") if plan.quick else plan.who
    if block == "memory":
        return {"memory": still.memory(who, 5 if plan.quick else 30)}
    still.compiled()
    return {"import": still.imports(who, plan.rounds * 3), "spawn": still.spawn(who, plan.rounds * 2)}


def _for_limits(scenes: list[Scene]) -> list[Scene]:
    """Only what a limit on a floor or on ourselves needs, with only those it needs."""
    needed: dict[str, set[str]] = {}
    for limit in LIMITS:
        if limit.most is not None:
            against = set(FLOORS) if limit.against == "best" else {limit.against} & set(FLOORS)
            needed.setdefault(limit.scene, {OURS}).update(against)
            if limit.beside:
                needed[limit.scene].add(limit.beside)
            if limit.against in {scene.name for scene in scenes}:
                needed.setdefault(limit.against, {OURS}).update({limit.beside} - {""})
    return [scene._replace(who=tuple(sorted(needed[scene.name]))) for scene in scenes if scene.name in needed]


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("blocks", nargs="*", metavar="block", help=", ".join((*BLOCKS, *STILL)))
    parser.add_argument("--quick", action="store_true", help="dovetail and the floors only, one ratio a line")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=None, help="of one run")
    parser.add_argument("--who", default=None, help=", ".join(IMPLEMENTATIONS))
    parser.add_argument("--publish", action="store_true", help="also write results/published.json and .svg")
    given = parser.parse_args()
    unknown = set(given.blocks) - {*BLOCKS, *STILL}
    if unknown:
        parser.error(f"no such block: {', '.join(sorted(unknown))}")
    everyone = QUICK_WHO if given.quick else tuple(IMPLEMENTATIONS)
    who = tuple(given.who.split(",")) if given.who else everyone
    blocks = given.blocks or [*(QUICK if given.quick else BLOCKS), *STILL]
    if given.quick:
        plan = Plan(who, given.rounds or 3, given.seconds or 0.2, 0.1, quick=True)
    else:
        plan = Plan(who, given.rounds or 5, given.seconds or 0.7, 1.0, quick=False)
    results, figures, good = measure_all(blocks, plan)
    found = list(verdicts(results, figures))
    if given.quick:
        for one in found:
            sys.stdout.write(f"{one.name} {one.ratio:.2f} {one.most:g}\n")
        return int(not good or any(one.most is not None and one.ratio > one.most * SLACK for one in found))
    report.write(results, figures, found, {"rounds": plan.rounds, "seconds": plan.seconds}, publish=given.publish)
    return int(not good)


if __name__ == "__main__":
    raise SystemExit(main())
