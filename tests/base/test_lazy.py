import importlib
import re
import sys
import types
from pathlib import Path

import pytest

from dovetail import lazy
from dovetail.errors import DovetailDeprecationWarning
from dovetail.lazy import (
    DEPRECATED_NAMES,
    DEPRECATED_PARAMETERS,
    Deprecation,
    FeatureMissing,
    create_lazy_loader,
    deprecated_parameter,
)
from dovetail.version import VERSION
from support.mentions import mentions

SOURCE = Path(lazy.__file__).parent


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("shop")
    module.__getattr__, module.__dir__ = create_lazy_loader("shop", {"OrderedDict": "collections"})  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "shop", module)
    monkeypatch.setitem(DEPRECATED_NAMES, "shop.SortedDict", Deprecation("OrderedDict", "0.9"))
    return module


def test_a_name_is_loaded_when_it_is_used(package: types.ModuleType) -> None:
    assert "OrderedDict" in dir(package)
    assert "OrderedDict" not in vars(package)
    assert package.OrderedDict is vars(package)["OrderedDict"]
    with pytest.raises(AttributeError, match="nothing"):
        _ = package.nothing


def test_a_missing_folder_is_named() -> None:
    message = "this installation of dovetail has no nothing (the folder dovetail/nothing is missing)"
    with pytest.raises(FeatureMissing) as caught:
        importlib.import_module("dovetail.nothing.app")
    assert (str(caught.value), caught.value.name) == (message, "dovetail.nothing")
    assert isinstance(caught.value, ModuleNotFoundError)


def test_an_old_name_warns_and_works(package: types.ModuleType) -> None:
    for _ in range(2):
        with pytest.warns(DovetailDeprecationWarning) as caught:
            found = package.SortedDict
        assert found is package.OrderedDict
        assert mentions(str(caught[0].message), "shop.SortedDict", "0.9", "shop.OrderedDict")
        assert caught[0].filename == __file__
    assert "SortedDict" not in dir(package)


def test_an_old_parameter_warns_and_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "DEPRECATED_PARAMETERS", {})

    class Shop:
        @deprecated_parameter("timeouts", "timeout", removed_in="0.9")
        def __init__(self, name: str, *, timeout: float = 1.0) -> None:
            self.order = (name, timeout)

    assert Shop("a", timeout=2).order == ("a", 2)
    with pytest.warns(DovetailDeprecationWarning) as caught:
        assert Shop("a", timeouts=3).order == ("a", 3)  # type: ignore[call-arg]
    assert mentions(str(caught[0].message), "timeouts=", "Shop()", "0.9", "timeout=")
    assert caught[0].filename == __file__
    with pytest.raises(TypeError, match="timeouts="):
        Shop("a", timeouts=3, timeout=2)  # type: ignore[call-arg]


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def find_overdue(version: str) -> list[str]:
    """What should have been removed in this version. Parameters are found in the source, since modules load lazily."""
    removals = [(name, entry.removed_in) for name, entry in DEPRECATED_NAMES.items()]
    removals += [(name, entry.removed_in) for name, entry in DEPRECATED_PARAMETERS.items()]
    pattern = re.compile(r'@deprecated_parameter\(\s*"(\w+)".*?removed_in="([\d.]+)"', re.DOTALL)
    for path in SOURCE.rglob("*.py"):
        removals += pattern.findall(path.read_text(encoding="utf-8"))
    return [name for name, removed_in in removals if _parse_version(removed_in) <= _parse_version(version)]


def test_nothing_deprecated_has_outlived_its_version(package: types.ModuleType) -> None:
    assert find_overdue(VERSION) == []
    assert find_overdue("0.9.0") == ["shop.SortedDict"]
    assert find_overdue("1.0") == ["shop.SortedDict"]
