"""Import public names when they are first used, name what an installation lacks, and support deprecated names."""

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class FeatureMissing(ModuleNotFoundError):
    """Raised when an installation does not have the folder of an optional feature."""


class FeatureFinder:
    """The last finder of `sys.meta_path`. It finds nothing, and names the missing feature.

    The folder of an optional feature can be removed. Each use imports the folder, so the import describes the error.
    """

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        package, _, feature = fullname.partition(".")
        if package == "dovetail":
            reason = f"the folder {fullname.replace('.', '/')} is missing"
            raise FeatureMissing(f"this installation of dovetail has no {feature} ({reason})", name=fullname)


sys.meta_path.append(FeatureFinder)


class Deprecation(NamedTuple):
    """A deprecated name or parameter. `replacement` is the new name, and `removed_in` is a version such as "0.4"."""

    replacement: str
    removed_in: str


# Each key is a module and an old name, such as "dovetail.host.Terms". The new name is in the same module.
DEPRECATED_NAMES: Final[dict[str, Deprecation]] = {}
# Each key is a function and the old name of its parameter, such as "Client.timeouts".
DEPRECATED_PARAMETERS: Final[dict[str, Deprecation]] = {}


def create_lazy_loader(
    package: str, module_names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package. `module_names` maps each public name to its module."""

    def load(name: str) -> Any:
        module_name = module_names.get(name)
        if module_name is None:
            return _load_deprecated(package, name)
        value = getattr(import_module(module_name), name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_names})

    return load, list_names


def _load_deprecated(package: str, name: str) -> Any:
    deprecation = DEPRECATED_NAMES.get(f"{package}.{name}")
    if deprecation is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    _warn(f"{package}.{name}", f"{package}.{deprecation.replacement}", deprecation.removed_in, stacklevel=4)
    return getattr(sys.modules[package], deprecation.replacement)


def deprecated_parameter(old: str, new: str, *, removed_in: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that callers can use the old name of a renamed parameter, with a warning."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__qualname__.removesuffix(".__init__")
        DEPRECATED_PARAMETERS[f"{name}.{old}"] = Deprecation(new, removed_in)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if old in kwargs:
                if new in kwargs:
                    raise TypeError(f"{name}() got both {new}= and its old name {old}=. Pass only {new}=")
                _warn(f"{old}= of {name}()", f"{new}=", removed_in, stacklevel=3)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


def _warn(old: str, new: str, removed_in: str, *, stacklevel: int) -> None:
    from dovetail.errors import DovetailDeprecationWarning

    message = f"{old} is deprecated and will be removed in dovetail {removed_in}: use {new}"
    warnings.warn(message, DovetailDeprecationWarning, stacklevel=stacklevel)
