"""Measure the clients of dovetail and its peers. All of them call the same floor server, which uses very little CPU.

python bench/clients.py [--rounds 5] [--seconds 0.3] [--only dovetail,mcp,fastmcp,floor] [--publish] [scenario ...]

The figures contain only the CPU time of the client process. In memory, client and server share a process and an
implementation, so the figures contain both.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from statistics import median
from typing import Any, NamedTuple

from paired_runs import PairedRun, Participant
from report import RESULTS, Verdict, describe_run
from server_process import HERE, OURS, SERVERS, ServerProcess, ServerSettings

CALLERS = ("dovetail", "mcp", "fastmcp", "floor")
TIMEOUT_S = 120.0
MIN_ROUNDS = 3  # for --publish

Results = dict[str, dict[str, dict[str, Any]]]
Ratios = dict[str, list[float]]  # key "scenario:other", the other's cost divided by ours


class ClientScenario(NamedTuple):
    """One kind of request, `width` at once."""

    name: str
    transport: str
    era: str
    request: str
    width: int

    @property
    def megabytes(self) -> float:
        """Return the size of a large response, or 1."""
        return float(self.request.removeprefix("read-")) if self.request.startswith("read-") else 1


def _define_scenarios() -> list[ClientScenario]:
    eras = ("handshake", "stateless")
    small = [
        ClientScenario(f"{transport}-{era}-x{width}", transport, era, "echo", width)
        for transport in ("memory", "stdio", "http")
        for era in eras
        for width in (1, 16)
    ]
    large = [
        ClientScenario(f"{transport}-{size}MB", transport, "handshake", f"read-{size}", 1)
        for transport in ("stdio", "http")
        for size in (1, 5, 20)
    ]
    return small + large


SCENARIOS = {scenario.name: scenario for scenario in _define_scenarios()}

# The peer's CPU time divided by ours, at least.
TARGET_RATIOS = {"stdio": 10, "http": 5, "memory": 20}
# The cost per megabyte of a 20 MB response divided by that of a 1 MB response, at most.
MAX_GROWTH = 1.3


def run_scenario(caller: str, scenario: ClientScenario, seconds: float, url: str) -> dict[str, float]:
    """Run a client once, in a new process."""
    target = {"http": [url], "stdio": _floor_command(scenario)}.get(scenario.transport, [])
    program = [sys.executable, str(HERE / "callers" / f"with_{caller}.py")]
    arguments = [scenario.transport, scenario.era, scenario.request, str(scenario.width), str(seconds), *target]
    with tempfile.TemporaryFile() as stderr:
        command = [*program, *arguments]
        completed = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, timeout=TIMEOUT_S, check=False)
        if completed.returncode:
            stderr.seek(0)
            raise RuntimeError(f"{caller} in {scenario.name}: {stderr.read()[-2000:].decode(errors='replace')}")
    return json.loads(completed.stdout.splitlines()[-1])


def _floor_command(scenario: ClientScenario) -> list[str]:
    options = ["stdio", "style=inline", "stamped=1", f"megabytes={scenario.megabytes}"]
    return [sys.executable, str(SERVERS / "floor_stdio.py"), *options]


def can_run(caller: str, scenario: ClientScenario) -> bool:
    return caller != "floor" or scenario.transport == "stdio"


def measure(scenarios: list[ClientScenario], clients: list[str], rounds: int, seconds: float) -> tuple[Results, Ratios]:
    """Run every client in every scenario, in a new order each round, with ours between two others."""
    samples: dict[Participant, list[dict[str, float]]] = {}
    ratios: dict[tuple[Participant, Participant], list[float]] = {}
    by_name = {scenario.name: scenario for scenario in scenarios}
    servers = {
        megabytes: ServerProcess("floor-http", ServerSettings("http", megabytes=megabytes, stamped=True))
        for megabytes in {scenario.megabytes for scenario in scenarios if scenario.transport == "http"}
    }
    try:
        for number in range(rounds):
            for paired_run in _plan_runs(scenarios, clients):
                for participant in paired_run.in_order():
                    scenario = by_name[participant.scenario]
                    server = servers.get(scenario.megabytes) if scenario.transport == "http" else None
                    url = f"http://127.0.0.1:{server.port}/mcp" if server is not None else ""
                    samples.setdefault(participant, []).append(run_scenario(participant.name, scenario, seconds, url))
                for other in paired_run.others:
                    ratio = _cost(samples[other][-1]) / _cost(samples[paired_run.middle][-1])
                    ratios.setdefault((paired_run.middle, other), []).append(ratio)
            sys.stderr.write(f"round {number + 1} of {rounds}\n")
    finally:
        for server in servers.values():
            server.stop()
    results: Results = {scenario.name: {} for scenario in scenarios}
    for participant, values in samples.items():
        results[participant.scenario][participant.name] = _figures(values)
    return results, {_name(*pair): values for pair, values in ratios.items()}


def _name(middle: Participant, other: Participant) -> str:
    return f"{middle.scenario}:{other.name if middle.scenario == other.scenario else other.scenario}"


def _plan_runs(scenarios: list[ClientScenario], clients: list[str]) -> list[PairedRun]:
    runs: list[PairedRun] = []
    for scenario in scenarios:
        participants = [Participant(scenario.name, caller) for caller in clients if can_run(caller, scenario)]
        ours = Participant(scenario.name, OURS)
        others = [participant for participant in participants if participant != ours]
        random.shuffle(others)
        if ours in participants and others:
            runs += [PairedRun(ours, tuple(others[start : start + 2])) for start in range(0, len(others), 2)]
        else:
            runs += [PairedRun(participant, ()) for participant in participants]
    names = {scenario.name for scenario in scenarios} if OURS in clients else set[str]()
    for transport in ("stdio", "http"):
        small, large = f"{transport}-1MB", f"{transport}-20MB"
        if {small, large} <= names:
            runs.append(PairedRun(Participant(large, OURS), (Participant(small, OURS),)))
    random.shuffle(runs)
    return runs


def _cost(sample: dict[str, float]) -> float:
    return sample["cpu"] / sample["calls"] * 1e6


def _figures(samples: list[dict[str, float]]) -> dict[str, Any]:
    costs = [_cost(sample) for sample in samples]
    rates = [sample["calls"] / sample["seconds"] for sample in samples]
    return {"cpu_us": median(costs), "calls_s": median(rates), "samples": [round(cost, 1) for cost in costs]}


def print_results(results: Results, ratios: Ratios) -> None:
    """Print the tables and the limits."""
    out = sys.stdout
    for name, by_client in results.items():
        out.write(f"\n{name}\n  {'':12}{'CPU us/call':>12}{'to ours':>9}{'calls/s':>10}\n")
        ours = by_client.get(OURS, {}).get("cpu_us")
        for caller, figures in sorted(by_client.items(), key=lambda item: item[1]["cpu_us"]):
            ratio = f"{figures['cpu_us'] / ours:.1f}" if ours else ""
            out.write(f"  {caller:12}{figures['cpu_us']:12.1f}{ratio:>9}{figures['calls_s']:10.0f}\n")
    out.write("\n")
    for verdict in compute_verdicts(results, ratios):
        missed = "" if verdict.is_met else "MISSED"
        out.write(f"{verdict.name:32}{verdict.ratio:9.2f}   {verdict.limit_text:14}{missed}\n")


def compute_verdicts(results: Results, ratios: Ratios) -> list[Verdict]:
    """Return all ratios that have a limit."""
    verdicts: list[Verdict] = []
    for scenario in SCENARIOS.values():
        samples = ratios.get(f"{scenario.name}:mcp")
        if scenario.request == "echo" and samples:
            floor_ratio = _floor_ratio(scenario, results)
            least = TARGET_RATIOS[scenario.transport]
            name = f"{scenario.name}:mcp"
            verdicts.append(Verdict(name, median(samples), None, least, min(samples), max(samples), floor_ratio))
    for transport in ("stdio", "http"):
        name = f"{transport}-20MB:{transport}-1MB"
        samples = [1 / ratio / 20 for ratio in ratios.get(name, ())]
        if samples:
            verdicts.append(Verdict(name, median(samples), MAX_GROWTH, None, min(samples), max(samples)))
    return verdicts


def _floor_ratio(scenario: ClientScenario, results: Results) -> float | None:
    """Return the peer's cost divided by the floor's, or None without a floor."""
    by_client = results[scenario.name]
    return by_client["mcp"]["cpu_us"] / by_client["floor"]["cpu_us"] if "floor" in by_client else None


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help=", ".join(SCENARIOS))
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds")
    parser.add_argument("--seconds", type=float, default=0.3, help="duration of one run")
    parser.add_argument("--only", default=",".join(CALLERS), metavar="NAMES", help=", ".join(CALLERS))
    parser.add_argument("--publish", action="store_true", help="also write results/published-clients.json")
    arguments = parser.parse_args()
    unknown = set(arguments.scenarios) - SCENARIOS.keys()
    if unknown:
        parser.error(f"unknown scenario: {', '.join(sorted(unknown))}")
    scenarios = [SCENARIOS[name] for name in arguments.scenarios or SCENARIOS]
    is_partial = arguments.scenarios or arguments.only != ",".join(CALLERS) or arguments.rounds < MIN_ROUNDS
    if arguments.publish and is_partial:
        parser.error(f"--publish needs all scenarios, all clients and at least {MIN_ROUNDS} rounds")
    results, ratios = measure(scenarios, arguments.only.split(","), arguments.rounds, arguments.seconds)
    print_results(results, ratios)
    record: dict[str, Any] = {
        **describe_run({"rounds": arguments.rounds, "seconds": arguments.seconds}),
        "verdicts": [verdict._asdict() | {"good": verdict.is_met} for verdict in compute_verdicts(results, ratios)],
        "scenes": results,
        "ratios": ratios,
    }
    RESULTS.mkdir(exist_ok=True)
    names = [f"clients-{record['date'][:16].replace(':', '')}", *(["published-clients"] if arguments.publish else [])]
    for name in names:
        (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
