"""Names that are loaded when they are first used: a program pays for what it takes."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def create_lazy_loader(
    package: str, module_names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package, given the module each of its names lives in."""

    def load(name: str) -> Any:
        module_name = module_names.get(name)
        if module_name is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module_name), name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_names})

    return load, list_names
