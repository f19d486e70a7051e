"""Test that an installation of `dovetail-mcp` is small and declares all of its dependencies."""

from importlib.metadata import Distribution, distribution

from packaging.requirements import Requirement

MOST_DISTRIBUTIONS = 25
MOST_BYTES = 60_000_000


def test_an_installation_stays_small() -> None:
    installed = _closure("dovetail-mcp")
    sizes = {name: _size(found) for name, found in installed.items() if name != "dovetail-mcp"}
    assert len(sizes) <= MOST_DISTRIBUTIONS, sorted(sizes)
    assert sum(sizes.values()) <= MOST_BYTES, sizes


def _closure(name: str) -> dict[str, Distribution]:
    found: dict[str, Distribution] = {}
    pending = [name]
    while pending:
        current = pending.pop()
        if current in found:
            continue
        found[current] = distribution(current)
        wanted = [Requirement(line) for line in found[current].requires or []]
        pending += [one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def _size(installed: Distribution) -> int:
    return sum(file.size or 0 for file in installed.files or [] if file.suffix != ".pyc")
