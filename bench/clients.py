"""Measures clients: dovetail's and its peers', each calling the same floor server, which costs next to nothing.

python bench/clients.py [--rounds 5] [--seconds 0.3] [--who dovetail,mcp,fastmcp,floor] [--publish] [scene ...]

What is counted is the processor time of the client's process alone; in memory, where the server is of the client's own
make and in its process, that of both.
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
from report import RESULTS, Verdict, about
from server_process import HERE, OURS, SERVERS, ServerProcess, ServerSettings

CALLERS = ("dovetail", "mcp", "fastmcp", "floor")
TIMEOUT_S = 120.0
MIN_ROUNDS = 3  # of what is published

Results = dict[str, dict[str, dict[str, Any]]]
Ratios = dict[str, list[float]]  # by "scene:other", the other's over ours


class ClientScenario(NamedTuple):
    """Calls of one kind, `width` at once."""

    name: str
    transport: str
    era: str
    ask: str
    width: int

    @property
    def megabytes(self) -> float:
        """The size of the answer, where it is a large one."""
        return float(self.ask.removeprefix("read-")) if self.ask.startswith("read-") else 1


def _scenes() -> list[ClientScenario]:
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


SCENES = {scene.name: scene for scene in _scenes()}

# The other's processor time over ours, at least.
TARGET_RATIOS = {"stdio": 10, "http": 5, "memory": 20}
# The time of a large answer over that of a small one, for each megabyte, at most.
MAX_GROWTH = 1.3


def run_scenario(caller: str, scene: ClientScenario, seconds: float, url: str) -> dict[str, float]:
    """One run in a process of its own."""
    target = [url] if scene.transport == "http" else _floor(scene) if scene.transport == "stdio" else []
    program = [sys.executable, str(HERE / "callers" / f"with_{caller}.py")]
    words = [scene.transport, scene.era, scene.ask, str(scene.width), str(seconds), *target]
    with tempfile.TemporaryFile() as said:
        run = subprocess.run([*program, *words], stdout=subprocess.PIPE, stderr=said, timeout=TIMEOUT_S, check=False)
        if run.returncode:
            said.seek(0)
            raise RuntimeError(f"{caller} in {scene.name}: {said.read()[-2000:].decode(errors='replace')}")
    return json.loads(run.stdout.splitlines()[-1])


def _floor(scene: ClientScenario) -> list[str]:
    options = ["stdio", "style=inline", "stamped=1", f"megabytes={scene.megabytes}"]
    return [sys.executable, str(SERVERS / "floor_stdio.py"), *options]


def can_play(caller: str, scene: ClientScenario) -> bool:
    return caller != "floor" or scene.transport == "stdio"


def measure(scenes: list[ClientScenario], who: list[str], rounds: int, seconds: float) -> tuple[Results, Ratios]:
    """Everyone in every scene, ours between two others, in another order in every round."""
    samples: dict[Participant, list[dict[str, float]]] = {}
    ratios: dict[tuple[Participant, Participant], list[float]] = {}
    known = {scene.name: scene for scene in scenes}
    webs = {
        scene.megabytes: ServerProcess("floor-http", ServerSettings("http", megabytes=scene.megabytes, stamped=True))
        for scene in scenes
        if scene.transport == "http"
    }
    try:
        for number in range(rounds):
            for turn in _turns(scenes, who):
                for part in turn.parts():
                    scene = known[part.scene]
                    web = webs.get(scene.megabytes) if scene.transport == "http" else None
                    url = f"http://127.0.0.1:{web.port}/mcp" if web is not None else ""
                    samples.setdefault(part, []).append(run_scenario(part.name, scene, seconds, url))
                for other in turn.others:
                    ratio = _cost(samples[other][-1]) / _cost(samples[turn.middle][-1])
                    ratios.setdefault((turn.middle, other), []).append(ratio)
            sys.stderr.write(f"round {number + 1} of {rounds}\n")
    finally:
        for web in webs.values():
            web.stop()
    results: Results = {scene.name: {} for scene in scenes}
    for part, found in samples.items():
        results[part.scene][part.name] = _figures(found)
    return results, {_name(*pair): found for pair, found in ratios.items()}


def _name(one: Participant, other: Participant) -> str:
    return f"{one.scene}:{other.name if one.scene == other.scene else other.scene}"


def _turns(scenes: list[ClientScenario], who: list[str]) -> list[PairedRun]:
    found: list[PairedRun] = []
    for scene in scenes:
        cast = [Participant(scene.name, caller) for caller in who if can_play(caller, scene)]
        ours = Participant(scene.name, OURS)
        others = random.sample([part for part in cast if part != ours], len(cast) - (ours in cast))
        if ours in cast and others:
            found += [PairedRun(ours, tuple(others[at : at + 2])) for at in range(0, len(others), 2)]
        else:
            found += [PairedRun(part, ()) for part in cast]
    names = {scene.name for scene in scenes} if OURS in who else set[str]()
    for transport in ("stdio", "http"):
        small, large = f"{transport}-1MB", f"{transport}-20MB"
        if {small, large} <= names:
            found.append(PairedRun(Participant(large, OURS), (Participant(small, OURS),)))
    random.shuffle(found)
    return found


def _cost(sample: dict[str, float]) -> float:
    return sample["cpu"] / sample["calls"] * 1e6


def _figures(samples: list[dict[str, float]]) -> dict[str, Any]:
    costs = [_cost(one) for one in samples]
    rates = [one["calls"] / one["seconds"] for one in samples]
    return {"cpu_us": median(costs), "calls_s": median(rates), "samples": [round(cost, 1) for cost in costs]}


def print_results(results: Results, ratios: Ratios) -> None:
    """The table, and which wishes came true."""
    out = sys.stdout
    for name, cast in results.items():
        out.write(f"\n{name}\n  {'':12}{'CPU us/call':>12}{'to ours':>9}{'calls/s':>10}\n")
        ours = cast.get(OURS, {}).get("cpu_us")
        for caller, one in sorted(cast.items(), key=lambda item: item[1]["cpu_us"]):
            ratio = f"{one['cpu_us'] / ours:.1f}" if ours else ""
            out.write(f"  {caller:12}{one['cpu_us']:12.1f}{ratio:>9}{one['calls_s']:10.0f}\n")
    out.write("\n")
    for one in verdicts(results, ratios):
        out.write(f"{one.name:32}{one.ratio:9.2f}   {one.limit_text:14}{'' if one.is_met else 'MISSED'}\n")


def verdicts(results: Results, ratios: Ratios) -> list[Verdict]:
    """Every ratio there is a wish for."""
    found: list[Verdict] = []
    for scene in SCENES.values():
        taken = ratios.get(f"{scene.name}:mcp")
        if scene.ask == "echo" and taken:
            beside = _beside(scene, results)
            least = TARGET_RATIOS[scene.transport]
            found.append(Verdict(f"{scene.name}:mcp", median(taken), None, least, min(taken), max(taken), beside))
    for transport in ("stdio", "http"):
        name = f"{transport}-20MB:{transport}-1MB"
        taken = [1 / ratio / 20 for ratio in ratios.get(name, ())]
        if taken:
            found.append(Verdict(name, median(taken), MAX_GROWTH, None, min(taken), max(taken)))
    return found


def _beside(scene: ClientScenario, results: Results) -> float | None:
    """What the floor reaches itself, where there is one."""
    cast = results[scene.name]
    return cast["mcp"]["cpu_us"] / cast["floor"]["cpu_us"] if "floor" in cast else None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scenes", nargs="*", metavar="scene", help=", ".join(SCENES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of one run")
    parser.add_argument("--who", default=",".join(CALLERS))
    parser.add_argument("--publish", action="store_true", help="also write results/published-clients.json")
    given = parser.parse_args()
    unknown = set(given.scenes) - SCENES.keys()
    if unknown:
        parser.error(f"no such scene: {', '.join(sorted(unknown))}")
    scenes = [SCENES[name] for name in given.scenes or SCENES]
    if given.publish and (given.scenes or given.who != ",".join(CALLERS) or given.rounds < MIN_ROUNDS):
        parser.error(f"what is published is everything and everyone, in {MIN_ROUNDS} rounds or more")
    results, ratios = measure(scenes, given.who.split(","), given.rounds, given.seconds)
    print_results(results, ratios)
    record: dict[str, Any] = {
        **about({"rounds": given.rounds, "seconds": given.seconds}),
        "verdicts": [one._asdict() | {"good": one.is_met} for one in verdicts(results, ratios)],
        "scenes": results,
        "ratios": ratios,
    }
    RESULTS.mkdir(exist_ok=True)
    for name in (f"clients-{record['date'][:16].replace(':', '')}", *(["published-clients"] if given.publish else [])):
        (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
