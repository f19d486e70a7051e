"""Conditions on the arguments of a call. A condition has a JSON pointer and a test for the value at that pointer.

The value can pass the test, fail it, or be unclear. For example, a value of another type or an
unusual URL is unclear. The caller passes the result for unclear values as `if_unclear`. If the value is a list, or a
server may read it in several ways, all items and readings must pass the test. With `if_unclear=True`, one is enough.
"""

import contextlib
import ipaddress
import math
import ntpath
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from dovetail.error_context import clip
from dovetail.host.policy.argument_coercion import (
    MISSING,
    UNCLEAR,
    ExpectedSchemas,
    StepBudget,
    TooManySteps,
    get_json_type,
    iter_defaults_at,
    iter_readings,
    iter_values_at,
)
from dovetail.protocol.http_checks import NAT64_NETWORK
from dovetail.wire.base import Struct
from dovetail.wire.codec import encode, encode_canonical

_PLAIN_URL: Final = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?([/?#][!-\[\]-~]*)?"
)
# This matches the last part of an IPv4 address in any notation.
_HOST_NUMBER: Final = re.compile(r"[0-9]*|0x[0-9a-f]*")
_NAT64: Final = ipaddress.ip_network(NAT64_NETWORK)
_MAX_EXACT_INTEGER: Final = 2**53  # Floats represent all integers up to 2**53 exactly.
_MAX_DEPTH: Final = 64
_JSON_TYPES: Final = (str, int, float, list, dict, type(None))
_DRIVE_PREFIX: Final = re.compile(r"[A-Za-z]:[\\/]")


class Condition(Struct, frozen=True):
    """A condition for one argument of a call. Create it with `argument`."""

    pointer: str  # the JSON pointer of the argument
    test: str  # the name of the test, such as "equals"
    values: tuple[Any, ...] = ()  # the values to compare the argument with

    def evaluate(
        self, arguments: Mapping[str, Any], *, if_unclear: bool, schema: Mapping[str, Any] | None = None
    ) -> bool:
        """Return whether the condition is true for these arguments.

        Args:
            if_unclear: The result if a value is unclear or the evaluation takes too long. If True, the default of a
                missing value also counts.
            schema: The JSON Schema of the arguments. Without a schema, the server may read a value as any type.
        """
        return self._evaluate(arguments, StepBudget(), if_unclear=if_unclear, schema=schema)

    def _evaluate(
        self, arguments: Mapping[str, Any], steps: StepBudget, *, if_unclear: bool, schema: Mapping[str, Any] | None
    ) -> bool:
        try:
            locations = iter_values_at(arguments, self.pointer, schema, steps)
            outcome = _combine((self._evaluate_at(*location, if_unclear) for location in locations), if_unclear)
            return outcome or (if_unclear and self._is_true_by_default(arguments, schema, steps))
        except TooManySteps:
            return if_unclear

    def _is_true_by_default(
        self, arguments: Mapping[str, Any], schema: Mapping[str, Any] | None, steps: StepBudget
    ) -> bool:
        if schema is None or self.test == "exists":
            return False
        return any(
            self._evaluate_value(default, expected, if_unclear=False)
            for default, expected in iter_defaults_at(arguments, self.pointer, schema, steps)
        )

    def describe_value(self, arguments: Mapping[str, Any]) -> str:
        """Return the value of the argument as text for the user."""
        value, _ = next(iter_values_at(arguments, self.pointer, None, StepBudget()))
        return "nothing" if value is MISSING else format_value(value)

    def _evaluate_at(self, value: Any, expected: ExpectedSchemas, if_unclear: bool) -> bool:
        if value is UNCLEAR:
            return if_unclear
        if value is MISSING or self.test == "exists":
            return value is not MISSING
        return self._evaluate_value(value, expected, if_unclear)

    def _evaluate_value(self, value: Any, expected: ExpectedSchemas, if_unclear: bool, depth: int = 0) -> bool:
        if depth > _MAX_DEPTH:
            return if_unclear
        outcomes: list[bool] = []
        for reading in iter_readings(value, expected):
            outcome = None if reading is UNCLEAR else _TEST_FUNCTIONS[self.test](reading, self.values, expected)
            if isinstance(reading, list) and not outcome:
                item_outcomes = (
                    self._evaluate_value(item, expected.get_child(index), if_unclear, depth + 1)
                    for index, item in enumerate(reading)
                )
                is_unclear = outcome is None and _TEST_FUNCTIONS[self.test] is _is_in
                outcome = (bool(reading) and _combine(item_outcomes, if_unclear)) or (None if is_unclear else False)
            if outcome and _is_unambiguous(reading, value):
                return True
            outcomes.append(if_unclear if outcome is None else outcome)
        return _combine(outcomes, if_unclear)

    def __str__(self) -> str:
        values_text = ", ".join(format_value(value) for value in self.values)
        if len(self.values) > 1:
            values_text = f"[{values_text}]"
        return f"{self.pointer} {_TEST_DESCRIPTIONS[self.test]} {values_text}".rstrip()


def evaluate_condition(
    condition: Condition,
    arguments: Mapping[str, Any],
    steps: StepBudget,
    *,
    if_unclear: bool,
    schema: Mapping[str, Any] | None,
) -> bool:
    return condition._evaluate(arguments, steps, if_unclear=if_unclear, schema=schema)  # pyright: ignore[reportPrivateUsage]


class ArgumentReference(Struct, frozen=True):
    """An argument of a tool call. Its methods create conditions."""

    pointer: str

    def in_(self, values: Sequence[Any]) -> Condition:
        """Return a condition that requires one of these values."""
        return Condition(self.pointer, "in", tuple(values))

    def equals(self, value: Any) -> Condition:
        """Return a condition that requires exactly this value."""
        return Condition(self.pointer, "equals", (value,))

    def matches(self, *globs: str) -> Condition:
        """Return a condition that requires a string. The string must match one of these globs."""
        return Condition(self.pointer, "matches", globs)

    def host_in(self, *globs: str) -> Condition:
        """Return a condition that requires a URL whose host matches one of these globs. Any port is allowed."""
        return Condition(self.pointer, "host_in", globs)

    def under(self, *folders: str) -> Condition:
        """Return a condition that requires a path in one of these folders. Symbolic links are not followed."""
        return Condition(self.pointer, "under", folders)

    def exists(self) -> Condition:
        """Return a condition that requires the argument to exist with any value."""
        return Condition(self.pointer, "exists")


def argument(pointer: str) -> ArgumentReference:
    """Return a reference to the argument at a JSON pointer. The methods of the reference create conditions.

    Args:
        pointer: A JSON pointer such as "/repo" or "/filter/labels".
    """
    if not pointer.startswith("/"):
        raise ValueError(f'a JSON pointer must start with a slash, as in "/repo", not {pointer!r}')
    return ArgumentReference(pointer)


def parse_condition(table: Any) -> Condition:
    """Create a condition from a table such as `{argument = "/repo", in = ["a", "b"]}`."""
    if not isinstance(table, Mapping):
        raise ValueError(f'a condition must be a table or the result of argument("/name").equals(...), not {table!r}')
    tests = table.keys() - {"argument"}
    if "argument" not in table or len(tests) != 1 or not isinstance(table["argument"], str):
        raise ValueError(
            f"a condition must have `argument` and exactly one test: {', '.join(_TEST_FUNCTIONS)} or exists"
        )
    (test,) = tests
    pointer, value = argument(table["argument"]).pointer, table[test]
    if test == "exists":
        if value is not True:
            raise ValueError("`exists` must be true. To require that an argument is missing, use `unless`")
        return Condition(pointer, test)
    if test not in _TEST_FUNCTIONS:
        raise ValueError(f"unknown test {test!r} in a condition. Known tests: {', '.join(_TEST_FUNCTIONS)}, exists")
    if test == "equals":
        return Condition(pointer, test, (value,))
    values = tuple(value) if isinstance(value, list) else (value,)
    if test != "in" and not all(isinstance(item, str) for item in values):
        raise ValueError(f"the value of `{test}` must be a string or a list of strings")
    return Condition(pointer, test, values)


def format_value(value: Any) -> str:
    """Return an untrusted value as JSON for the user, escaped and shortened."""
    return clip(encode(value).decode(errors="replace"), 200)


def _combine(outcomes: Iterable[bool], if_unclear: bool) -> bool:
    return any(outcomes) if if_unclear else all(outcomes)


def _is_unambiguous(reading: Any, value: Any) -> bool:
    """Return whether all servers read a value in the same way. Some servers convert strings to other types."""
    return reading is value and not isinstance(value, str)


def _is_in(value: Any, values: Sequence[Any], expected: ExpectedSchemas) -> bool | None:
    outcomes = [_is_equal(value, candidate, expected) for candidate in values]
    return True if True in outcomes else None if None in outcomes else False


def _is_equal(value: Any, other: Any, expected: ExpectedSchemas) -> bool | None:
    """Return whether two values are equal. Return None if servers may interpret the first value differently."""
    if (
        isinstance(value, _JSON_TYPES)
        and isinstance(other, _JSON_TYPES)
        and get_json_type(value) != get_json_type(other)
    ):
        return False  # Values of different types, such as true and 1, are not equal.
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        if value.keys() != other.keys():
            return False
        pairs = ((value[name], other[name], name) for name in value)
    elif isinstance(value, list) and isinstance(other, list):
        if len(value) != len(other):
            return False
        pairs = ((left, right, index) for index, (left, right) in enumerate(zip(value, other, strict=True)))
    elif isinstance(value, str) and isinstance(other, str):
        return value == other
    elif isinstance(value, int | float) and isinstance(other, int | float):
        return _is_same_number(value, other)
    else:
        return encode_canonical(value) == encode_canonical(other)
    outcomes = {_compare_readings(left, right, expected.get_child(step)) for left, right, step in pairs}
    return False if False in outcomes else None if None in outcomes else True


def _compare_readings(value: Any, other: Any, expected: ExpectedSchemas) -> bool | None:
    outcomes: set[bool | None] = set()
    for reading in iter_readings(value, expected):
        outcome = None if reading is UNCLEAR else _is_equal(reading, other, expected)
        if outcome and _is_unambiguous(reading, value):
            return True
        outcomes.add(outcome)
    return outcomes.pop() if len(outcomes) == 1 else None


def _is_same_number(value: float, other: float) -> bool | None:
    """Return whether two numbers are equal.

    Return None if they are equal only for servers that read large integers as floats.
    """
    if value == other:
        return True
    if max(abs(value), abs(other)) <= _MAX_EXACT_INTEGER:
        return False
    return None if _to_float(value) == _to_float(other) else False


def _to_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _matches_glob(value: Any, globs: Sequence[str], _: ExpectedSchemas) -> bool | None:
    return any(fnmatchcase(value, glob) for glob in globs) if isinstance(value, str) else None


def _has_host_in(value: Any, globs: Sequence[str], _: ExpectedSchemas) -> bool | None:
    # URL parsers differ. Accept only ASCII URLs without a user name, backslash or space, which all parsers read alike.
    match = _PLAIN_URL.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    host = _normalize_host(match[1])
    return None if host is None else any(fnmatchcase(host, _normalize_glob(glob)) for glob in globs)


def _normalize_host(host: str) -> str | None:
    """Return a host in its usual form.

    Return None for an IP address in a form that programs read differently, such as an octal number or an IPv4 address
    inside an IPv6 address.
    """
    name = host.lower().removesuffix(".")
    if not name.startswith("[") and not _HOST_NUMBER.fullmatch(name.rpartition(".")[2]):
        return name
    try:
        address = ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return None
    return None if isinstance(address, ipaddress.IPv6Address) and _has_ipv4(address) else str(address)


def _has_ipv4(address: ipaddress.IPv6Address) -> bool:
    is_compatible = 0xFFFF < int(address) <= 0xFFFF_FFFF
    return bool(address.ipv4_mapped or address.sixtofour or address.teredo) or address in _NAT64 or is_compatible


def _normalize_glob(glob: str) -> str:
    glob = glob.lower()
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(glob.strip("[]")))
    return glob


def _is_under(value: Any, folders: Sequence[str], _: ExpectedSchemas) -> bool | None:
    if not isinstance(value, str) or "\0" in value or value.startswith("~"):
        return None
    if value.lower().startswith("file:"):
        parts = urlsplit(value)
        if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
            return None
        value = unquote(parts.path)
    outcomes = [_is_within_folder(value, folder) for folder in folders]
    return True if True in outcomes else None if None in outcomes else False


def _is_within_folder(value: str, folder: str) -> bool | None:
    path_module = ntpath if _DRIVE_PREFIX.match(folder) else posixpath
    if path_module is posixpath and "\\" in value:  # Some systems read a backslash as a slash.
        return None
    path, folder_path = path_module.normpath(value), path_module.normpath(folder)
    if path_module.isabs(path) != path_module.isabs(folder_path) or bool(path_module.splitdrive(path)[0]) != bool(
        path_module.splitdrive(folder_path)[0]
    ):
        return None
    path, folder_path = (
        path_module.normcase(path).lstrip(path_module.sep),
        path_module.normcase(folder_path).lstrip(path_module.sep),
    )
    if folder_path in ("", "."):
        return path != ".." and not path.startswith(f"..{path_module.sep}")
    return path == folder_path or path.startswith(f"{folder_path}{path_module.sep}")


_TEST_FUNCTIONS: Final[Mapping[str, Callable[[Any, Sequence[Any], ExpectedSchemas], bool | None]]] = {
    "in": _is_in,
    "equals": _is_in,
    "matches": _matches_glob,
    "host_in": _has_host_in,
    "under": _is_under,
}

_TEST_DESCRIPTIONS: Final = {
    "in": "in",
    "equals": "is",
    "matches": "matches",
    "host_in": "has a host in",
    "under": "is under",
    "exists": "exists",
}
