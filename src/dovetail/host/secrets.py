"""References in configurations: looked up when a server starts, remembered only to be masked.

A value never appears in a repr, an error or a log. What cannot be looked up is an error that names the setting and the
reference, never an empty text and never the reference itself. A project's file may not run commands, nor read files
outside of the project or what the keyring keeps for anybody else.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from dovetail.errors import MCPError, clip
from dovetail.protocol.recording import MASK, masked
from dovetail.wire.shape import Struct

Level: TypeAlias = Literal["user", "project"]
Kind: TypeAlias = Literal["env", "input", "keyring", "file", "cmd", "place", "unknown"]

_REFERENCE: Final = re.compile(r"\$\{([^{}]*)\}|\{(env|file):([^{}]*)\}")
_BARE: Final = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_VARIABLE: Final = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_NAMED: Final = re.compile(r"(input|keyring|file|cmd):(.+)", re.DOTALL)
_PLACES: Final = frozenset(("workspaceFolder", "workspaceFolderBasename", "userHome", "pathSeparator", "/"))
_SECRET: Final = re.compile(r"token|key|secret|pass|auth|cred|cookie|bearer|(?:^|_)pat(?:_|$)", re.IGNORECASE)
_SHORTEST: Final = 6  # a shorter text would be masked wherever it happens to stand
_PATIENCE: Final = 30.0  # of a command, which may ask its user
_LARGEST: Final = 64 * 1024  # of a file or an output that is one secret
_SERVICE: Final = "dovetail"
_ORDINARY: Final = frozenset(("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR", "TZ", "PWD"))


class Reference(Struct, frozen=True):
    """One reference of a text."""

    kind: Kind
    name: str
    default: str | None = None

    def __str__(self) -> str:
        return self.name if self.kind in ("env", "unknown") else f"{self.kind}:{self.name}"


class Unresolved(KeyError):
    """A reference whose value is not there; `setting` is where it stands."""

    def __init__(self, name: str, setting: str, why: str) -> None:
        super().__init__(name)
        self.setting = setting
        self.why = why

    def __str__(self) -> str:
        return f"{self.setting}: {self.why}"


class Place(Struct, frozen=True, kw_only=True):
    """Where a text stands: whose file it is in, and which folder that is about."""

    level: Level = "user"
    folder: Path = Path()
    bare: bool = False  # whether this host also writes $NAME


def parts(text: str, *, bare: bool = False) -> Iterator[str | Reference]:
    """A text as what stands in it, and what it refers to."""
    at = 0
    for found in _REFERENCE.finditer(text):
        yield from _bare(text[at : found.start()], bare)
        at = found.end()
        yield _reference(found[1]) if found[2] is None else _reference(f"{found[2]}:{found[3]}")
    yield from _bare(text[at:], bare)


def _bare(text: str, wanted: bool) -> Iterator[str | Reference]:
    pieces = _BARE.split(text) if wanted else [text]
    for number, one in enumerate(pieces):
        if one:
            yield Reference("env", one) if number % 2 else one


def _reference(body: str) -> Reference:
    if body in _PLACES:
        return Reference("place", body)
    if found := _NAMED.fullmatch(body):
        return Reference(found[1], found[2])  # pyright: ignore[reportArgumentType] - the pattern names the kinds
    if found := _VARIABLE.fullmatch(body):
        return Reference("env", found[1], found[2])
    return Reference("unknown", body)


class Secrets:
    """Looks references up, and masks what it found wherever it is shown again.

    `inputs` are the answers to what a file says its user must be asked for.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        inputs: Mapping[str, str] | None = None,
        *,
        keyring: Callable[[str, str], str | None] | None = None,
    ) -> None:
        self._environ = os.environ if environ is None else environ
        self._inputs = dict(inputs or {})
        self._keyring = keyring or _from_keyring
        self._values: set[str] = set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def resolve(self, text: str, setting: str, place: Place | None = None) -> str:
        """The text with its references replaced; Unresolved names the setting and what is missing."""
        where = place or Place()
        found = [
            one if isinstance(one, str) else self._looked_up(one, setting, where)
            for one in parts(text, bare=where.bare)
        ]
        value = "".join(found)
        if _SECRET.search(setting):
            self.remember(value)
        return value

    def passed(self, names: Iterable[str]) -> dict[str, str]:
        """Those of these variables that are set."""
        found = {name: self._environ[name] for name in names if name in self._environ}
        self.remember_all(value for name, value in found.items() if name not in _ORDINARY)
        return found

    def remember_named(self, named: Mapping[str, Any]) -> None:
        """Mask those of these values whose names say that they are secrets."""
        self.remember_all(str(value) for name, value in named.items() if _SECRET.search(name))

    def remember_all(self, values: Iterable[str]) -> None:
        """Mask all of these from now on."""
        for value in values:
            self.remember(value)

    def remember(self, value: str) -> None:
        """Mask this value from now on."""
        for one in {value, value.removeprefix("Bearer ")}:
            if len(one) >= _SHORTEST:
                self._values.add(one)

    def mask(self, value: Any) -> Any:
        """A JSON value, or a text, in which no secret is left: neither one looked up here nor one named as such."""
        return masked(self._hidden(value))

    def _hidden(self, value: Any) -> Any:
        if isinstance(value, str):
            for one in sorted(self._values, key=len, reverse=True):
                value = value.replace(one, MASK)
            return value
        if isinstance(value, list):
            return [self._hidden(one) for one in value]
        if isinstance(value, dict):
            return {self._hidden(name): self._hidden(one) for name, one in value.items()}
        return value

    def _looked_up(self, reference: Reference, setting: str, place: Place) -> str:
        def missing(why: str) -> Unresolved:
            return Unresolved(reference.name, setting, why)

        name = reference.name
        match reference.kind:
            case "place":
                return _place(name, place)
            case "env":
                value = self._environ.get(name)
                if not value and reference.default is not None:
                    return reference.default
                if value is None:
                    raise missing(f"the variable {name} is not set")
                if not _SECRET.search(name):
                    return value
            case "input":
                value = self._inputs.get(name)
                if value is None:
                    raise missing(f"nobody was asked for the input {clip(name)}")
            case "keyring":
                value = self._kept(name, place, missing)
            case "file":
                value = _file(name, place, missing)
            case "cmd":
                value = _output(name, place, missing)
            case _:
                raise missing(
                    f"${{{clip(name)}}} is no reference that is known; for a password manager, use ${{cmd:…}}"
                )
        self.remember(value)
        return value

    def _kept(self, name: str, place: Place, missing: Callable[[str], Unresolved]) -> str:
        if place.level == "project":  # anything else is the user's, who did not write this file
            service = f"{_SERVICE}:{place.folder}"
            value = self._keyring(service, name)
            if value is None:
                raise missing(f"a project's file reads only what is kept for it: keyring set {service!r} {clip(name)}")
            return value
        service, slash, user = name.partition("/")
        value = self._keyring(service, user) if slash else self._keyring(_SERVICE, name)
        if value is None:
            raise missing(f"the keyring has no {clip(name)}")
        return value


def cleaned(exc: MCPError, mask: Callable[[str], str]) -> None:
    """Take secrets out of an error; a cause that holds some is left out of it."""
    exc.args = tuple(mask(one) if isinstance(one, str) else one for one in exc.args)
    for name in ("message", "stderr", "hint"):
        if isinstance(said := getattr(exc, name, None), str):
            setattr(exc, name, mask(said))
    cause = exc.__cause__
    while cause is not None:
        if mask(told := str(cause)) != told:
            exc.__cause__ = None
            return
        cause = cause.__cause__


def _place(name: str, place: Place) -> str:
    match name:
        case "workspaceFolder":
            return str(place.folder)
        case "workspaceFolderBasename":
            return place.folder.name
        case "userHome":
            return str(Path.home())
        case _:
            return os.sep


def _file(name: str, place: Place, missing: Callable[[str], Unresolved]) -> str:
    path = Path(os.path.realpath(place.folder / Path(name).expanduser()))
    if place.level == "project" and not path.is_relative_to(os.path.realpath(place.folder)):
        raise missing(f"a project's file may not read {clip(name)}, which is outside of the project")
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST).decode().strip()
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is no text"
        raise missing(f"the file {clip(name)} cannot be read: {reason}") from None


def _output(command: str, place: Place, missing: Callable[[str], Unresolved]) -> str:
    if place.level == "project":
        raise missing("a project's file may not run a command to get a secret; put it into a file of your own")
    try:
        words = shlex.split(command)
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, check=False)
        if done.returncode:
            raise missing(f"the command {clip(command)} ended with {done.returncode}")
        value = done.stdout[:_LARGEST].decode().strip()
    except subprocess.TimeoutExpired:
        raise missing(f"the command {clip(command)} took longer than {_PATIENCE:g} s") from None
    except (OSError, ValueError) as exc:
        raise missing(f"the command {clip(command)} cannot be run: {type(exc).__name__}") from None
    if not value:
        raise missing(f"the command {clip(command)} printed nothing")
    return value


def _from_keyring(service: str, name: str) -> str | None:
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        return None
    try:
        return keyring.get_password(service, name)
    except KeyringError:  # there is none, or it stays closed
        return None
