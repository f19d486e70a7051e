"""Run scenarios in pairs. Ours runs between two others without a pause, so that all of them see the same load on the
machine.

A ratio is the median of the ratios of the runs. If other programs used much more CPU in one part of a paired run than
in another, it is repeated a few times, and the most even one counts.
"""

import contextlib
import functools
import random
from collections.abc import Callable, Generator
from statistics import median
from typing import Any, NamedTuple

from load import Bounds, Pipes, RunResult
from request_kinds import WrongAnswer
from scenarios import ERAS, Limit, Scenario
from server_process import OURS, ServerProcess, ServerSettings, machine_cpu_seconds

MAX_CALLS = 10_000_000
MAX_UNEVENNESS = 0.3  # cores: a larger difference in the CPU use of other programs repeats the run
MAX_TRIES = 3

Results = dict[str, dict[str, dict[str, Any]]]
Ratios = dict[str, dict[str, Any]]  # key "scenario:other", our cost divided by the other's


class Participant(NamedTuple):
    """An implementation in a scenario."""

    scenario: str
    name: str


class PairedRun(NamedTuple):
    """Up to three runs in a row. The middle one is compared with the others."""

    middle: Participant
    others: tuple[Participant, ...]

    def in_order(self) -> list[Participant]:
        """Return the order of the runs. The order of two is random."""
        participants = [*self.others[:1], self.middle, *self.others[1:]]
        return participants if len(participants) > 2 else random.sample(participants, len(participants))


class Plan(NamedTuple):
    """The implementations, and the number and duration of their runs."""

    implementations: tuple[str, ...]
    rounds: int
    seconds: float
    warm: float


RunResults = dict[Participant, dict[str, Any]]


class ServerPool:
    """The servers of one block. Each starts when it is first needed and runs until the end of the block."""

    def __init__(self) -> None:
        self._servers: dict[tuple[str, ServerSettings, str], ServerProcess] = {}
        self._pipes: dict[int, Pipes] = {}

    def server(self, name: str, scenario: Scenario) -> ServerProcess:
        """Return the server for a scenario. A stdio server has one era for its lifetime, an HTTP server has both."""
        key = (name, scenario.settings, scenario.era if scenario.settings.transport == "stdio" else "")
        if key not in self._servers:
            self._servers[key] = ServerProcess(name, scenario.settings)
        return self._servers[key]

    @contextlib.contextmanager
    def open_connection(self, server: ServerProcess, scenario: Scenario) -> Generator[Callable[[Bounds], RunResult]]:
        """Connect and initialize, and yield a function that only runs the scenario."""
        kind, era = scenario.request_kind(), ERAS[scenario.era]
        if scenario.settings.transport == "stdio":
            pipes = self._pipes.get(server.process.pid)
            if pipes is None:
                pipes = self._pipes[server.process.pid] = server.pipes(era)
                pipes.open()
            yield lambda bounds: pipes.run(kind, scenario.width, bounds)
        else:
            # New connections each time: servers close idle ones.
            web = server.web(era, scenario.width)
            try:
                web.open()
                yield lambda bounds: web.run(kind, bounds)
            finally:
                web.close()

    def run_scenario(self, name: str, scenario: Scenario, seconds: float) -> dict[str, Any]:
        """Run an implementation in a scenario once."""
        server = self.server(name, scenario)
        with _add_server_to_errors(server, scenario), self.open_connection(server, scenario) as run:
            return _sample(server, run, seconds)

    def stop(self) -> None:
        """Stop all servers."""
        for server in self._servers.values():
            with contextlib.suppress(OSError):
                server.stop()


@contextlib.contextmanager
def _add_server_to_errors(server: ServerProcess, scenario: Scenario) -> Generator[None]:
    try:
        yield
    except (WrongAnswer, OSError) as exc:
        last = server.stderr_text()[-2000:].decode(errors="replace")
        raise RuntimeError(f"{server.name} in {scenario.name}: {exc}\n{last}") from exc


def _sample(server: ServerProcess, run: Callable[[Bounds], RunResult], seconds: float) -> dict[str, Any]:
    cpu, machine = server.cpu(), machine_cpu_seconds()
    result = run(Bounds(MAX_CALLS, seconds))
    cpu_used = server.cpu() - cpu
    foreign = max(0.0, machine_cpu_seconds() - machine - cpu_used - result.cpu) / result.seconds
    return {
        "calls": result.calls,
        "cpu_us": cpu_used / result.calls * 1e6,
        "calls_s": result.calls / result.seconds,
        "load_us": result.cpu / result.calls * 1e6,
        "p50_us": None if result.p50 is None else result.p50 * 1e6,
        "foreign": foreign,
    }


def measure(
    block: list[Scenario], limits: list[Limit], plan: Plan, print_progress: Callable[[str], None]
) -> tuple[Results, Ratios]:
    """Run all scenarios of a block in pairs, in a new order each round."""
    scenarios = {scenario.name: scenario for scenario in block}
    samples: dict[Participant, list[dict[str, Any]]] = {}
    pairs: dict[tuple[Participant, Participant], list[tuple[float, float]]] = {}
    pool = ServerPool()
    try:
        for participant in _all_participants(block, plan.implementations):
            pool.run_scenario(participant.name, scenarios[participant.scenario], plan.warm)
            samples[participant] = []
        print_progress("  warmed up")
        retries_left = plan.rounds * len(samples) // 4  # repetitions allowed in the whole block
        for number in range(plan.rounds):
            for paired_run in plan_runs(block, limits, plan.implementations):
                run = functools.partial(_run_pair, pool, scenarios, paired_run, plan.seconds)
                run_results, retries_left = run_evenly(run, retries_left)
                for participant, sample in run_results.items():
                    samples[participant].append(sample)
                ours = run_results[paired_run.middle]
                for other in paired_run.others:
                    theirs = run_results[other]
                    pair = ours["cpu_us"] / theirs["cpu_us"], theirs["foreign"] - ours["foreign"]
                    pairs.setdefault((paired_run.middle, other), []).append(pair)
            print_progress(f"  round {number + 1} of {plan.rounds}")
    finally:
        pool.stop()
    results: Results = {scenario: {} for scenario in scenarios}
    for participant, participant_samples in samples.items():
        results[participant.scenario][participant.name] = _figures(participant_samples)
    return results, {_name(*participants): _ratio(values) for participants, values in pairs.items()}


def _run_pair(pool: ServerPool, scenarios: dict[str, Scenario], paired_run: PairedRun, seconds: float) -> RunResults:
    return {
        participant: pool.run_scenario(participant.name, scenarios[participant.scenario], seconds)
        for participant in paired_run.in_order()
    }


def run_evenly(run: Callable[[], RunResults], retries_left: int) -> tuple[RunResults, int]:
    """Return an even run, or the most even of a few, and the number of repetitions left."""
    best = run()
    for _ in range(MAX_TRIES - 1):
        if _unevenness(best) <= MAX_UNEVENNESS or retries_left <= 0:
            break
        retries_left -= 1
        best = min(best, run(), key=_unevenness)
    return best, retries_left


def _unevenness(run_results: RunResults) -> float:
    shares = [sample["foreign"] for sample in run_results.values()]
    return max(shares) - min(shares)


def _all_participants(block: list[Scenario], implementations: tuple[str, ...]) -> list[Participant]:
    return [Participant(scenario.name, name) for scenario in block for name in scenario.participants(implementations)]


def plan_runs(block: list[Scenario], limits: list[Limit], implementations: tuple[str, ...]) -> list[PairedRun]:
    """Pair ours with two others of the same scenario at a time, and each scenario with the one that a limit compares it
    with.
    """
    participants = _all_participants(block, implementations)
    pairs = [
        (Participant(limit.scenario, name), Participant(limit.against, name))
        for limit in limits
        for name in (OURS, limit.beside)
    ]
    runs = [PairedRun(middle, (other,)) for middle, other in pairs if {middle, other} <= {*participants}]
    for scenario in block:
        others = [Participant(scenario.name, name) for name in scenario.participants(implementations) if name != OURS]
        random.shuffle(others)
        if OURS in scenario.participants(implementations):
            ours = Participant(scenario.name, OURS)
            runs += [PairedRun(ours, tuple(others[start : start + 2])) for start in range(0, len(others), 2)]
    compared = {participant for paired_run in runs for participant in paired_run.in_order()}
    runs += [PairedRun(participant, ()) for participant in participants if participant not in compared]
    random.shuffle(runs)
    return runs


def _name(middle: Participant, other: Participant) -> str:
    """Return the name of the limit on this ratio, followed by the implementation if two scenarios of a floor are
    compared.
    """
    if middle.scenario == other.scenario:
        return f"{middle.scenario}:{other.name}"
    return f"{middle.scenario}:{other.scenario}" + ("" if middle.name == OURS else f":{middle.name}")


def _figures(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each figure, and all samples of the CPU time and of the load by other programs."""
    columns = {key: [sample[key] for sample in samples] for key in samples[0]}
    medians = {key: None if values[0] is None else median(values) for key, values in columns.items()}
    return medians | {"samples": {key: [round(value, 3) for value in columns[key]] for key in ("cpu_us", "foreign")}}


def _ratio(pairs: list[tuple[float, float]]) -> dict[str, Any]:
    return {
        "ratio": median(ratio for ratio, _ in pairs),
        "samples": [round(ratio, 6) for ratio, _ in pairs],
        "uneven": [round(difference, 2) for _, difference in pairs],
    }
