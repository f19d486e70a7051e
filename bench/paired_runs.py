"""Playing scenes in turns: ours between two others, at once one after the other, so that the machine treats them alike.

A ratio is the median of what the turns found. A turn in which the others on the machine took unequal shares of it is
played again, a bounded number of times; the most even one counts.
"""

import contextlib
import random
from collections.abc import Callable, Generator
from statistics import median
from typing import Any, NamedTuple

from load import Bounds, Pipes, RunResult
from request_kinds import WrongAnswer
from scenarios import ERAS, Limit, Scenario
from server_process import OURS, ServerProcess, ServerSettings, machine_cpu_seconds

MAX_CALLS = 10_000_000
MAX_UNEVENNESS = 0.3  # cores: more difference than that in the work of others, and a turn is played again
MAX_TRIES = 3

Results = dict[str, dict[str, dict[str, Any]]]
Ratios = dict[str, dict[str, Any]]  # by "scene:other", ours over the other's


class Participant(NamedTuple):
    """Somebody in a scene."""

    scene: str
    name: str


class PairedRun(NamedTuple):
    """The middle one is compared with those before and after it."""

    middle: Participant
    others: tuple[Participant, ...]

    def parts(self) -> list[Participant]:
        """In an order of play; of two, either is first."""
        found = [*self.others[:1], self.middle, *self.others[1:]]
        return found if len(found) > 2 else random.sample(found, len(found))


class Plan(NamedTuple):
    """How long, and who."""

    who: tuple[str, ...]
    rounds: int
    seconds: float
    warm: float


RunResults = dict[Participant, dict[str, Any]]


class ServerPool:
    """The servers of one block: each is started when first needed and stays up until the block is over."""

    def __init__(self) -> None:
        self._servers: dict[tuple[str, ServerSettings, str], ServerProcess] = {}
        self._pipes: dict[int, Pipes] = {}

    def server(self, name: str, scene: Scenario) -> ServerProcess:
        """The server for a scene. A stdio server speaks one era in its life, an HTTP server both."""
        key = (name, scene.setting, scene.era if scene.setting.transport == "stdio" else "")
        if key not in self._servers:
            self._servers[key] = ServerProcess(name, scene.setting)
        return self._servers[key]

    @contextlib.contextmanager
    def open_connection(self, server: ServerProcess, scene: Scenario) -> Generator[Callable[[Bounds], RunResult]]:
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

    def run_scenario(self, name: str, scene: Scenario, seconds: float) -> dict[str, Any]:
        """One run of somebody in a scene."""
        server = self.server(name, scene)
        with _add_server_to_errors(server, scene), self.open_connection(server, scene) as play:
            return _sample(server, play, seconds)

    def stop(self) -> None:
        """Stop them all."""
        for server in self._servers.values():
            with contextlib.suppress(OSError):
                server.stop()


@contextlib.contextmanager
def _add_server_to_errors(server: ServerProcess, scene: Scenario) -> Generator[None]:
    try:
        yield
    except (WrongAnswer, OSError) as exc:
        last = server.stderr_text()[-2000:].decode(errors="replace")
        raise RuntimeError(f"{server.name} in {scene.name}: {exc}\n{last}") from exc


def _sample(server: ServerProcess, play: Callable[[Bounds], RunResult], seconds: float) -> dict[str, Any]:
    cpu, machine = server.cpu(), machine_cpu_seconds()
    tally = play(Bounds(MAX_CALLS, seconds))
    used = server.cpu() - cpu
    foreign = max(0.0, machine_cpu_seconds() - machine - used - tally.cpu) / tally.seconds
    return {
        "calls": tally.calls,
        "cpu_us": used / tally.calls * 1e6,
        "calls_s": tally.calls / tally.seconds,
        "load_us": tally.cpu / tally.calls * 1e6,
        "p50_us": None if tally.p50 is None else tally.p50 * 1e6,
        "foreign": foreign,
    }


def measure(
    block: list[Scenario], limits: list[Limit], plan: Plan, tell: Callable[[str], None]
) -> tuple[Results, Ratios]:
    """All scenes of a block, in turns, in another order in every round."""
    scenes = {scene.name: scene for scene in block}
    samples: dict[Participant, list[dict[str, Any]]] = {}
    found: dict[tuple[Participant, Participant], list[tuple[float, float]]] = {}
    troupe = ServerPool()
    try:
        for part in _all_participants(block, plan.who):
            troupe.run_scenario(part.name, scenes[part.scene], plan.warm)
            samples[part] = []
        tell("  warm")
        again = plan.rounds * len(samples) // 4  # turns that may be played once more, in all
        for number in range(plan.rounds):
            for turn in plan_turns(block, limits, plan.who):
                played, again = play_evenly(lambda turn=turn: _run_pair(troupe, scenes, turn, plan.seconds), again)
                for part, sample in played.items():
                    samples[part].append(sample)
                ours = played[turn.middle]
                for other in turn.others:
                    pair = ours["cpu_us"] / played[other]["cpu_us"], played[other]["foreign"] - ours["foreign"]
                    found.setdefault((turn.middle, other), []).append(pair)
            tell(f"  round {number + 1} of {plan.rounds}")
    finally:
        troupe.stop()
    results: Results = {scene: {} for scene in scenes}
    for part, taken in samples.items():
        results[part.scene][part.name] = _figures(taken)
    return results, {_name(*pair): _ratio(taken) for pair, taken in found.items()}


def _run_pair(troupe: ServerPool, scenes: dict[str, Scenario], turn: PairedRun, seconds: float) -> RunResults:
    return {part: troupe.run_scenario(part.name, scenes[part.scene], seconds) for part in turn.parts()}


def play_evenly(play: Callable[[], RunResults], again: int) -> tuple[RunResults, int]:
    """A turn that is even, or the most even of a few; and how many more may be repeated."""
    best = play()
    for _ in range(MAX_TRIES - 1):
        if _unevenness(best) <= MAX_UNEVENNESS or again <= 0:
            break
        again -= 1
        best = min(best, play(), key=_unevenness)
    return best, again


def _unevenness(played: RunResults) -> float:
    shares = [sample["foreign"] for sample in played.values()]
    return max(shares) - min(shares)


def _all_participants(block: list[Scenario], who: tuple[str, ...]) -> list[Participant]:
    return [Participant(scene.name, name) for scene in block for name in scene.participants(who)]


def plan_turns(block: list[Scenario], limits: list[Limit], who: tuple[str, ...]) -> list[PairedRun]:
    """Everybody in a scene with ours, two by two, and a scene with the one a limit holds it against."""
    parts = _all_participants(block, who)
    pairs = [
        (Participant(limit.scene, name), Participant(limit.against, name))
        for limit in limits
        for name in (OURS, limit.beside)
    ]
    found = [PairedRun(one, (other,)) for one, other in pairs if {one, other} <= {*parts}]
    for scene in block:
        others = [Participant(scene.name, name) for name in scene.participants(who) if name != OURS]
        random.shuffle(others)
        if OURS in scene.participants(who):
            found += [
                PairedRun(Participant(scene.name, OURS), tuple(others[at : at + 2])) for at in range(0, len(others), 2)
            ]
    compared = {part for turn in found for part in turn.parts()}
    found += [PairedRun(part, ()) for part in parts if part not in compared]
    random.shuffle(found)
    return found


def _name(middle: Participant, other: Participant) -> str:
    """As limits are called: by a scene and an implementation, or by two scenes; with a floor's own name where it is."""
    if middle.scene == other.scene:
        return f"{middle.scene}:{other.name}"
    return f"{middle.scene}:{other.scene}" + ("" if middle.name == OURS else f":{middle.name}")


def _figures(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure, and all of the two that tell how far to trust it."""
    middle = {key: None if samples[0][key] is None else median([one[key] for one in samples]) for key in samples[0]}
    kept = {key: [round(one[key], 3) for one in samples] for key in ("cpu_us", "foreign")}
    return middle | {"samples": kept}


def _ratio(taken: list[tuple[float, float]]) -> dict[str, Any]:
    return {
        "ratio": median(ratio for ratio, _ in taken),
        "samples": [round(ratio, 6) for ratio, _ in taken],
        "uneven": [round(difference, 2) for _, difference in taken],
    }
