"""Resolve references to secrets when a server starts, and mask the secrets in later output.

Secrets never appear in a repr, an error or a log. A reference without a value raises an error with the setting
and the reference. A project file may not run commands, read files outside the project, or read keyring entries of other
projects or users.
"""

import base64
import contextlib
import json
import os
import re
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeAlias
from urllib.parse import quote, quote_plus

from dovetail.error_context import clip
from dovetail.errors import MCPError
from dovetail.log import mask_in_log
from dovetail.protocol.redaction import MASK, is_secret_setting, mask_secrets
from dovetail.wire.base import Struct
from dovetail.wire.codec import encode

ConfigLevel: TypeAlias = Literal["user", "project"]
# A function that takes a service and a user name, and returns a password or None.
KeyringReader: TypeAlias = Callable[[str, str], str | None]
ReferenceKind: TypeAlias = Literal["env", "input", "keyring", "file", "cmd", "place", "unknown"]

_REFERENCE_PATTERN: Final = re.compile(r"\$\{([^{}]*)\}|\{(env|file):([^{}]*)\}")
_BARE_VARIABLE_PATTERN: Final = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_VARIABLE_PATTERN: Final = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_NAMED_REFERENCE_PATTERN: Final = re.compile(r"(input|keyring|file|cmd):(.+)", re.DOTALL)
_PATH_VARIABLES: Final = frozenset(("workspaceFolder", "workspaceFolderBasename", "userHome", "pathSeparator", "/"))
_MIN_MASKED_CHARS: Final = 6  # Shorter values are not masked, because they may be ordinary text.
_MIN_CUT_CHARS: Final = 8  # A part of a secret that is shorter than this is not recognized.
_MAX_MASKED_CHARS: Final = 64 * 1024  # Texts above this length are shortened before masking.
_MAX_SECRET_CHARS: Final = 8 * 1024
_COMMAND_TIMEOUT_S: Final = 30.0  # This timeout leaves time for the user to type a password.
_MAX_SECRET_BYTES: Final = 64 * 1024  # the maximum size of a file or command output that contains a secret
_KEYRING_SERVICE: Final = "dovetail"
# Environment variables that contain ordinary words and paths. The values of all other variables are masked.
_NON_SECRET_VARIABLES: Final = frozenset(
    ("PATH", "HOME", "USER", "USERNAME", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TERM", "TMPDIR", "TMP", "TEMP", "TZ",
     "PWD", "HOSTNAME", "EDITOR", "DISPLAY", "VIRTUAL_ENV", "NODE_ENV", "LOG_LEVEL", "USERPROFILE", "APPDATA",
     "LOCALAPPDATA", "SYSTEMROOT", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR")
)  # fmt: skip


class Reference(Struct, frozen=True):
    """A reference to a value in a setting, such as `${API_KEY}`."""

    kind: ReferenceKind
    name: str
    default: str | None = None

    def __str__(self) -> str:
        return self.name if self.kind in ("env", "unknown") else f"{self.kind}:{self.name}"


class SecretNotFound(KeyError):
    """Raised if a reference in a configuration file has no value.

    Args:
        name: The reference.
        setting: The setting that contains the reference.
        reason: Why the reference has no value.
    """

    def __init__(self, name: str, setting: str, reason: str) -> None:
        super().__init__(name)
        self.setting = setting
        self.reason = reason

    def __str__(self) -> str:
        # A text such as `Authorization: ...` would be masked as a secret, so the setting comes last.
        return f"{self.reason} (in {self.setting})" if self.setting else self.reason


class ReferenceContext(Struct, frozen=True, kw_only=True):
    """Where a setting comes from: the level of its configuration file, and the project folder."""

    level: ConfigLevel = "user"
    project_dir: Path = Path()
    allows_bare: bool = False  # True if the host also supports $NAME


def split_references(text: str, *, allow_bare: bool = False) -> Iterator[str | Reference]:
    """Split a setting into plain text and references."""
    position = 0
    for match in _REFERENCE_PATTERN.finditer(text):
        yield from _split_bare_variables(text[position : match.start()], allow_bare)
        position = match.end()
        yield _parse_reference(match[1]) if match[2] is None else _parse_reference(f"{match[2]}:{match[3]}")
    yield from _split_bare_variables(text[position:], allow_bare)


def _split_bare_variables(text: str, is_enabled: bool) -> Iterator[str | Reference]:
    pieces = _BARE_VARIABLE_PATTERN.split(text) if is_enabled else [text]
    for index, piece in enumerate(pieces):
        if piece:
            yield Reference("env", piece) if index % 2 else piece


def _parse_reference(body: str) -> Reference:
    if body in _PATH_VARIABLES:
        return Reference("place", body)
    if match := _NAMED_REFERENCE_PATTERN.fullmatch(body):
        return Reference(match[1], match[2])  # pyright: ignore[reportArgumentType] - the pattern matches only valid kinds
    if match := _VARIABLE_PATTERN.fullmatch(body):
        return Reference("env", match[1], match[2])
    return Reference("unknown", body)


def get_input_variable(input_id: str) -> str:
    """Return the name of the environment variable that provides the value of an input."""
    return f"DOVETAIL_INPUT_{re.sub(r'[^A-Za-z0-9]', '_', input_id).upper()}"


class SecretLookup:
    """Replaces references to secrets, and masks the secrets in later output."""

    version: ClassVar[object] = object()  # A new object replaces this one whenever there is a new secret.

    def __init__(
        self,
        env: Mapping[str, str] | None = None,
        inputs: Mapping[str, str] | None = None,
        keyring: KeyringReader | None = None,
    ) -> None:
        self._env = os.environ if env is None else env
        self._inputs = dict(inputs or {})
        self._keyring = keyring or _get_keyring_password
        self._values: set[str] = set()  # the known secrets, in all encodings in which they may appear
        self._longest_first: list[str] = []
        self._encoded_values: set[bytes] = set()  # the known secrets, escaped as in JSON text
        self._lock = threading.Lock()
        mask_in_log(self)

    def resolve(self, text: str, setting: str, context: ReferenceContext | None = None) -> str:
        """Replace the references in a setting with their values. Errors contain the name of the setting."""
        effective_context = context or ReferenceContext()
        value = "".join(
            part if isinstance(part, str) else self._look_up(part, setting, effective_context)
            for part in split_references(text, allow_bare=effective_context.allows_bare)
        )
        if is_secret_setting(setting):
            self.remember([value])
        return value

    def copy_variables(self, names: Iterable[str]) -> dict[str, str]:
        """Return the values of these environment variables. Variables that are not set are left out."""
        variables = {name: self._env[name] for name in names if name in self._env}
        self.remember(value for name, value in variables.items() if name not in _NON_SECRET_VARIABLES)
        return variables

    def remember_named(self, members: Mapping[str, Any]) -> None:
        """Mask each value whose name looks like the name of a secret, in all later output."""
        self.remember(str(value) for name, value in members.items() if is_secret_setting(name))

    def remember(self, values: Iterable[str]) -> None:
        """Mask these values from now on, in all output of the host.

        Each line of a value is masked separately, because output is read line by line. Encoded forms in URLs, JSON
        texts and base64 are masked, too.
        """
        spellings: set[str] = set()
        for value in values:
            for secret in {value, value.removeprefix("Bearer "), *map(str.strip, value.splitlines())}:
                spellings |= _list_spellings(secret) if len(secret) >= _MIN_MASKED_CHARS else set()
        with self._lock:  # Another thread may be reading these collections, so create new ones.
            if spellings <= self._values:
                return
            self._values = self._values | spellings
            self._longest_first = sorted(self._values, key=len, reverse=True)
            self._encoded_values = self._encoded_values | {*_encode_for_json(spellings)}
            SecretLookup.version = object()

    def mask(self, value: Any) -> Any:
        """Mask the secrets in a JSON value or a text.

        Every value that replaced a reference is a secret. Values with names such as "password" are also secrets.
        """
        return mask_secrets(self._replace_secrets(value))

    def mask_known(self, text: str) -> str:
        """Mask the known secrets in a text, even if a length limit has cut off a part of a secret."""
        for secret in self._longest_first:
            if secret in text:
                text = text.replace(secret, MASK)
            if len(secret) > _MIN_CUT_CHARS:
                text = _mask_cut_secret(text, secret)
        return text

    def has_known_secret(self, encoded_value: bytes) -> bool:
        """Return whether a JSON text contains a known secret."""
        return any(secret in encoded_value for secret in self._encoded_values)

    def _replace_secrets(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.mask_known(value)
        if isinstance(value, list):
            return [self._replace_secrets(item) for item in value]
        if isinstance(value, dict):
            return {self._replace_secrets(name): self._replace_secrets(member) for name, member in value.items()}
        if isinstance(value, int | float) and not isinstance(value, bool) and str(value) in self._values:
            return MASK
        return value

    def _look_up(self, reference: Reference, setting: str, context: ReferenceContext) -> str:
        def create_error(reason: str) -> SecretNotFound:
            return SecretNotFound(reference.name, setting, reason)

        name = reference.name
        match reference.kind:
            case "place":
                return _resolve_path_variable(name, context)
            case "env":
                value = self._env.get(name)
                if not value and reference.default is not None:
                    return reference.default
                if value is None:
                    raise create_error(f"the environment variable {name} is not set")
                if name in _NON_SECRET_VARIABLES:
                    return value
            case "input":
                variable = get_input_variable(name)
                value = self._inputs.get(name, self._env.get(variable))
                if value is None:
                    raise create_error(f"the input {clip(name)} has no value. Set the variable {clip(variable)}")
            case "keyring":
                value = self._read_keyring(name, context, create_error)
            case "file":
                value = _read_secret_file(name, context, create_error)
            case "cmd":
                value = _run_secret_command(name, context, create_error)
            case _:
                raise create_error(f"unknown reference ${{{clip(name)}}}. For a password manager, use ${{cmd:…}}")
        self.remember([value])
        return value

    def _read_keyring(self, name: str, context: ReferenceContext, create_error: Callable[[str], SecretNotFound]) -> str:
        # A project file may come from a stranger, so it may read only the keyring entries of this project.
        if context.level == "project":
            service = f"{_KEYRING_SERVICE}:{context.project_dir}"
            value = self._keyring(service, name)
            if value is None:
                raise create_error(
                    "the keyring has no entry with this name for the project. The file of a project cannot read other "
                    "entries. "
                    f"To create the entry, run: keyring set {service!r} {clip(name)}"
                )
            return value
        service, slash, user = name.partition("/")
        value = self._keyring(service, user) if slash else self._keyring(_KEYRING_SERVICE, name)
        if value is None:
            raise create_error(f"the entry {clip(name)} is not in the keyring")
        return value


class SecretResolver:
    """Replaces references to secrets in settings, and masks the secrets in all later output.

    Args:
        env: Environment variables. Defaults to those of this process.
        inputs: The user's answers to the inputs of a configuration file, by ID. An input without an answer
            is read from the variable DOVETAIL_INPUT_<ID>, with the ID in upper case and _ for other characters.
        keyring: A function that reads a password from the system keyring.
    """

    def __init__(
        self,
        env: Mapping[str, str] | None = None,
        inputs: Mapping[str, str] | None = None,
        *,
        keyring: KeyringReader | None = None,
    ) -> None:
        self._lookup = SecretLookup(env, inputs, keyring)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def resolve(self, text: str) -> str:
        """Replace the references in a text. Raise SecretNotFound if a reference has no value."""
        return self._lookup.resolve(text, "")

    def mask(self, value: Any) -> Any:
        """Mask the secrets in a JSON value or a text.

        Every value that replaced a reference is a secret. Values with names such as "password" are also secrets.
        """
        return self._lookup.mask(value)


def get_secret_lookup(resolver: SecretResolver) -> SecretLookup:
    """Return the SecretLookup of a resolver."""
    return resolver._lookup  # pyright: ignore[reportPrivateUsage]


def mask_start(text: str, mask: Callable[[str], str]) -> str:
    """Mask the secrets in text from a server. Very long text is shortened first, because masking is slow."""
    if len(text) <= _MAX_MASKED_CHARS:
        return mask(text)
    # Remove the end of the text, which may contain the first half of a secret.
    return f"{mask(text[:_MAX_MASKED_CHARS])[:-_MAX_SECRET_CHARS]}…"


def mask_error(exc: MCPError, mask: Callable[[Any], Any]) -> None:
    """Mask the secrets in an error. Remove its causes if they contain secrets."""
    exc.args = tuple(mask_start(arg, mask) if isinstance(arg, str) else arg for arg in exc.args)
    for name in ("message", "data", "body", "stderr", "hint"):
        if (value := getattr(exc, name, None)) is not None:
            setattr(exc, name, mask_data(value, mask))
    if hasattr(exc, "__notes__"):
        exc.__notes__ = [mask_start(note, mask) for note in map(str, exc.__notes__)]
    if any(mask_start(cause_text, mask) != cause_text for cause_text in map(str, _iter_causes(exc))):
        exc.__cause__ = None  # After this assignment, Python also hides `__context__`.


def mask_data(data: Any, mask: Callable[[Any], Any]) -> Any:
    """Mask the secrets in data from a server.

    A very long text is shortened, and other very large data is removed, because masking takes long.
    """
    if isinstance(data, str):
        return mask_start(data, mask)
    try:
        is_large = len(encode(data)) > _MAX_MASKED_CHARS
    except (TypeError, ValueError):
        is_large = True
    return None if is_large else mask(data)


def _iter_causes(exc: BaseException) -> Iterator[BaseException]:
    seen = {id(exc)}  # `__cause__` and `__context__` can form a cycle.
    cause = exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _resolve_path_variable(name: str, context: ReferenceContext) -> str:
    match name:
        case "workspaceFolder":
            return str(context.project_dir)
        case "workspaceFolderBasename":
            return context.project_dir.name
        case "userHome":
            return str(Path.home())
        case _:
            return os.sep


def _read_secret_file(name: str, context: ReferenceContext, create_error: Callable[[str], SecretNotFound]) -> str:
    path = Path(os.path.realpath(context.project_dir / Path(name).expanduser()))
    if context.level == "project" and not path.is_relative_to(os.path.realpath(context.project_dir)):
        raise create_error(
            f"the file {clip(name)} is outside the project, so the project's configuration may not read it"
        )
    try:
        with path.open("rb") as file:
            return file.read(_MAX_SECRET_BYTES).decode().strip()
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not a text file"
        raise create_error(f"the file {clip(name)} cannot be read: {reason}") from None


def _run_secret_command(command: str, context: ReferenceContext, create_error: Callable[[str], SecretNotFound]) -> str:
    if context.level == "project":
        raise create_error(
            "a project file cannot run a command to get a secret. Move the entry to your user configuration"
        )
    try:
        args = shlex.split(command)
        completed = subprocess.run(
            args, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_TIMEOUT_S, check=False
        )
        if completed.returncode:
            raise create_error(f"the command {clip(command)} failed with exit code {completed.returncode}")
        value = completed.stdout[:_MAX_SECRET_BYTES].decode().strip()
    except subprocess.TimeoutExpired:
        raise create_error(f"the command {clip(command)} took longer than {_COMMAND_TIMEOUT_S:g} s") from None
    except (OSError, ValueError) as exc:
        raise create_error(f"the command {clip(command)} cannot be run: {type(exc).__name__}") from None
    if not value:
        raise create_error(f"the command {clip(command)} printed nothing")
    return value


def _get_keyring_password(service: str, name: str) -> str | None:
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        return None
    try:
        return keyring.get_password(service, name)
    except KeyringError:  # The system does not have a keyring, or the keyring is locked.
        return None


def _list_spellings(secret: str) -> set[str]:
    """Return the forms in which a secret may appear: unchanged, in a URL, in a JSON text and in base64."""
    data = secret.encode("utf-8", "surrogatepass")
    return {
        secret,
        quote(data),
        quote(data, safe=""),
        quote_plus(data),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        base64.b64encode(data).decode("ascii").rstrip("="),
        base64.urlsafe_b64encode(data).decode("ascii").rstrip("="),
    }


def _encode_for_json(secrets: Iterable[str]) -> Iterator[bytes]:
    for secret in secrets:
        with contextlib.suppress(UnicodeEncodeError):  # JSON text cannot contain half a surrogate pair.
            yield encode(secret)[1:-1]


def _mask_cut_secret(text: str, secret: str) -> str:
    """Mask the part of a secret at the start or at the end of a text that was cut."""
    body = text.removesuffix("…")
    first, last = secret[:_MIN_CUT_CHARS], secret[-_MIN_CUT_CHARS:]
    tail_start = max(0, len(body) - len(secret) + 1)
    start = body.find(first, tail_start)
    while start >= 0 and not secret.startswith(body[start:]):
        start = body.find(first, start + 1)
    if start >= 0:
        text = f"{body[:start]}{MASK}{text[len(body) :]}"
    head_end = len(secret) - 1
    end = text.find(last, 0, head_end)
    while end >= 0 and not secret.endswith(text[: end + len(last)]):
        end = text.find(last, end + 1, head_end)
    return text if end < 0 else f"{MASK}{text[end + len(last) :]}"
