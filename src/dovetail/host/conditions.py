"""Conditions on the arguments of a call: a place, named by a JSON pointer, and what must be true of the value there.

A value can fulfil a condition, fail it, or be beyond judging (another type, an address written oddly): whoever asks
says what such doubt counts as. Of a list, every item must fulfil it, or, where doubt counts, any. The same holds for
the values a server may take an argument for, such as a text that is also a number.
"""

import ntpath
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from dovetail.errors import clip
from dovetail.host.coercion import NOTHING, UNCLEAR, Expected, TooManySteps, json_type, places, readings
from dovetail.wire.codec import canonical, encode
from dovetail.wire.shape import Struct

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?([/?#][!-\[\]-~]*)?")
_EXACT: Final = 2**53  # up to which every whole number is one float
_MAX_DEPTH: Final = 64
_JSON: Final = (str, int, float, list, dict, type(None))
_DRIVE: Final = re.compile(r"[A-Za-z]:[\\/]")


class Condition(Struct, frozen=True):
    """One test of one argument."""

    pointer: str
    test: str
    values: tuple[Any, ...] = ()

    def holds(self, arguments: Mapping[str, Any], *, doubt: bool, schema: Mapping[str, Any] | None = None) -> bool:
        """Return whether the arguments fulfil it, or `doubt` where that is unknown or would take too long to find out.

        The schema of the arguments says which types a server expects. Without it a value may be taken for any type.
        """
        try:
            return _together((self._at(*place, doubt) for place in places(arguments, self.pointer, schema)), doubt)
        except TooManySteps:
            return doubt

    def found(self, arguments: Mapping[str, Any]) -> str:
        """What stands there, for a reader."""
        value, _ = next(places(arguments, self.pointer, None))
        return "nothing" if value is NOTHING else shown(value)

    def _at(self, value: Any, wanted: Expected, doubt: bool) -> bool:
        if value is UNCLEAR:
            return doubt
        if value is NOTHING or self.test == "exists":
            return value is not NOTHING
        return self._judge(value, wanted, doubt)

    def _judge(self, value: Any, wanted: Expected, doubt: bool, depth: int = 0) -> bool:
        if depth > _MAX_DEPTH:
            return doubt
        answers: list[bool] = []
        for reading in readings(value, wanted):
            answer = None if reading is UNCLEAR else _TESTS[self.test](reading, self.values, wanted)
            if isinstance(reading, list) and not answer:
                items = (self._judge(item, wanted.inside(at), doubt, depth + 1) for at, item in enumerate(reading))
                unsure = answer is None and _TESTS[self.test] is _in
                answer = (bool(reading) and _together(items, doubt)) or (None if unsure else False)
            if answer and _as_meant(reading, value):
                return True
            answers.append(doubt if answer is None else answer)
        return _together(answers, doubt)

    def __str__(self) -> str:
        said = ", ".join(shown(one) for one in self.values)
        return f"{self.pointer} {_WORDS[self.test]} {f'[{said}]' if len(self.values) > 1 else said}".rstrip()


class Argument(Struct, frozen=True):
    """A place in the arguments of a call; its methods make conditions."""

    pointer: str

    def in_(self, values: Sequence[Any]) -> Condition:
        """One of these values."""
        return Condition(self.pointer, "in", tuple(values))

    def equals(self, value: Any) -> Condition:
        """Exactly this value."""
        return Condition(self.pointer, "equals", (value,))

    def matches(self, *globs: str) -> Condition:
        """A text that one of these globs matches."""
        return Condition(self.pointer, "matches", globs)

    def host_in(self, *globs: str) -> Condition:
        """A URL whose host one of these globs matches, whatever its port."""
        return Condition(self.pointer, "host_in", globs)

    def under(self, *folders: str) -> Condition:
        """A path in one of these folders, as it is written: links are not followed."""
        return Condition(self.pointer, "under", folders)

    def exists(self) -> Condition:
        """Anything at all."""
        return Condition(self.pointer, "exists")


def arg(pointer: str) -> Argument:
    """The argument at a JSON pointer, such as "/repo" or "/filter/labels"."""
    if not pointer.startswith("/"):
        raise ValueError(f'a pointer begins with a slash, as in "/repo", not {pointer!r}')
    return Argument(pointer)


def condition(given: Mapping[str, Any]) -> Condition:
    """A condition as a file has it: `{arg = "/repo", in = ["a", "b"]}`."""
    tests = given.keys() - {"arg"}
    if "arg" not in given or len(tests) != 1 or not isinstance(given["arg"], str):
        raise ValueError(f"a condition names an arg and one of {', '.join(_TESTS)}, exists")
    (test,) = tests
    place, value = arg(given["arg"]).pointer, given[test]
    if test == "exists":
        if value is not True:
            raise ValueError("exists can only be true; use unless for the opposite")
        return Condition(place, test)
    if test not in _TESTS:
        raise ValueError(f"no test is called {test!r}; there are {', '.join(_TESTS)}, exists")
    if test == "equals":
        return Condition(place, test, (value,))
    values = tuple(value) if isinstance(value, list) else (value,)
    if test != "in" and not all(isinstance(one, str) for one in values):
        raise ValueError(f"{test} takes texts")
    return Condition(place, test, values)


def shown(value: Any) -> str:
    """A value of a stranger as a reader may see it: JSON, bounded, nothing that acts on a terminal."""
    return clip(encode(value).decode(errors="replace"), 200)


def _together(answers: Iterable[bool], doubt: bool) -> bool:
    return any(answers) if doubt else all(answers)


def _as_meant(reading: Any, value: Any) -> bool:
    """Return whether a value is read as written and is not a string. A string may always be read as another type."""
    return reading is value and not isinstance(value, str)


def _in(value: Any, values: Sequence[Any], wanted: Expected) -> bool | None:
    answers = [_equals(value, one, wanted) for one in values]
    return True if True in answers else None if None in answers else False


def _equals(value: Any, other: Any, wanted: Expected) -> bool | None:
    """Return whether two values are equal, or None if that depends on how a server reads something in the first."""
    if isinstance(value, _JSON) and isinstance(other, _JSON) and json_type(value) != json_type(other):
        return False  # true is not 1
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        if value.keys() != other.keys():
            return False
        pairs = ((value[name], other[name], name) for name in value)
    elif isinstance(value, list) and isinstance(other, list):
        if len(value) != len(other):
            return False
        pairs = ((one, two, at) for at, (one, two) in enumerate(zip(value, other, strict=True)))
    elif isinstance(value, str) and isinstance(other, str):
        return value == other
    else:
        return canonical(_valued(value)) == canonical(_valued(other))
    answers = {_may_equal(one, two, wanted.inside(step)) for one, two, step in pairs}
    return False if False in answers else None if None in answers else True


def _may_equal(value: Any, other: Any, wanted: Expected) -> bool | None:
    answers: set[bool | None] = set()
    for reading in readings(value, wanted):
        answer = None if reading is UNCLEAR else _equals(reading, other, wanted)
        if answer and _as_meant(reading, value):
            return True
        answers.add(answer)
    return answers.pop() if len(answers) == 1 else None


def _valued(value: Any) -> Any:
    """Numbers by their value: 1.0 is 1."""
    match value:
        case float() if value.is_integer() and abs(value) <= _EXACT:
            return int(value)
        case list():
            return [_valued(one) for one in value]
        case Mapping():
            return {name: _valued(one) for name, one in value.items()}
        case _:
            return value


def _matches(value: Any, globs: Sequence[str], _: Expected) -> bool | None:
    return any(fnmatchcase(value, glob) for glob in globs) if isinstance(value, str) else None


def _host_in(value: Any, globs: Sequence[str], _: Expected) -> bool | None:
    # Only what every reader of URLs reads alike: no user, no backslash, no blank, nothing but ASCII.
    found = _URL.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    host = found[1].lower().removesuffix(".")
    return any(fnmatchcase(host, glob.lower()) for glob in globs)


def _under(value: Any, folders: Sequence[str], _: Expected) -> bool | None:
    if not isinstance(value, str) or "\0" in value or value.startswith("~"):
        return None
    if value.lower().startswith("file:"):
        parts = urlsplit(value)
        if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
            return None
        value = unquote(parts.path)
    answers = [_within(value, folder) for folder in folders]
    return True if True in answers else None if None in answers else False


def _within(value: str, folder: str) -> bool | None:
    kind = ntpath if _DRIVE.match(folder) else posixpath
    if kind is posixpath and "\\" in value:  # which some systems read as a slash
        return None
    path, place = kind.normpath(value), kind.normpath(folder)
    if kind.isabs(path) != kind.isabs(place) or bool(kind.splitdrive(path)[0]) != bool(kind.splitdrive(place)[0]):
        return None
    path, place = kind.normcase(path).lstrip(kind.sep), kind.normcase(place).lstrip(kind.sep)
    if place in ("", "."):
        return path != ".." and not path.startswith(f"..{kind.sep}")
    return path == place or path.startswith(f"{place}{kind.sep}")


_TESTS: Final[Mapping[str, Callable[[Any, Sequence[Any], Expected], bool | None]]] = {
    "in": _in,
    "equals": _in,
    "matches": _matches,
    "host_in": _host_in,
    "under": _under,
}

_WORDS: Final = {
    "in": "in",
    "equals": "is",
    "matches": "matches",
    "host_in": "has a host in",
    "under": "is under",
    "exists": "exists",
}
