"""The durations of test files. Long files start first, and `--quick` leaves them out.

`durations.json` has the seconds of each file that takes at least one second. `--write-durations` measures the files of
a run again.
"""

import json
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("durations.json")
_MAX_QUICK_S = 6  # `--quick` leaves out files that take longer
_MIN_WRITTEN_S = 1


def read_durations() -> dict[str, float]:
    """Return the seconds of each long file by its path below the root."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out test files that take long")
    parser.addoption("--write-durations", action="store_true", help="write tests/support/durations.json")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Durations(read_durations(), is_quick=config.getoption("quick")))
    if config.getoption("write_durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(DurationWriter())


class Durations:
    """Orders and selects test files by their durations."""

    def __init__(self, seconds: dict[str, float], *, is_quick: bool) -> None:
        self._seconds = seconds
        self._is_quick = is_quick

    def _get_seconds(self, path: Path) -> float:
        return self._seconds.get(path.relative_to(ROOT).as_posix(), 0) if path.is_relative_to(ROOT) else 0

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if self._is_quick and self._get_seconds(collection_path) > _MAX_QUICK_S else None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Start with the longest file, so that no worker has to finish a long file alone."""
        items.sort(key=lambda item: -self._get_seconds(item.path))


class DurationWriter:
    """Measures the durations of test files, and writes them at the end."""

    def __init__(self) -> None:
        self._measured: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._measured[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write the durations of the files that have run, and keep those of other files."""
        kept = {name: seconds for name, seconds in read_durations().items() if (ROOT / name).is_file()}
        seconds = Counter(kept | {name: round(value) for name, value in self._measured.items()})
        written = {name: value for name, value in seconds.most_common() if value >= _MIN_WRITTEN_S}
        FILE.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
