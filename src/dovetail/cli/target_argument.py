"""The TARGET argument and its options."""

import math
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dovetail.cli.server_loader import may_have_metadata, split_object_name
from dovetail.cli.suggestions import suggest_file, suggest_target
from dovetail.error_context import find_similar
from dovetail.errors import UnsupportedFileVersion
from dovetail.host.config.server_entry import ConfigProblem, ServerConfig
from dovetail.protocol.redaction import strip_url
from dovetail.recording.recording_format import read_frames
from dovetail.terminal import output
from dovetail.wire.base import Struct, replace

if TYPE_CHECKING:
    from dovetail.cli.script_environment import EnvironmentSpec

F = TypeVar("F", bound=Callable[..., Any])

DOVETAIL_COMMAND = (sys.executable, "-m", "dovetail")
_RUN_COMMAND = (*DOVETAIL_COMMAND, "run")
_URL_PREFIXES = ("http://", "https://", "unix:", "tcp:")
SCRIPT_SUFFIXES = (".js", ".mjs", ".ts")
TARGET_SUFFIXES = (".py", ".jsonl", ".json", *SCRIPT_SUFFIXES)
_MAX_SHOWN_NAMES = 20
_SCRIPT_RUNNERS = {".js": ("node",), ".mjs": ("node",), ".ts": ("npx", "tsx")}


class PositiveNumber(click.FloatRange):
    """A finite number greater than 0."""

    name = "float range"

    def __init__(self, unit: str = "seconds") -> None:
        super().__init__(0, min_open=True)
        self._unit = unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert the value, or fail with a usage error."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            self.fail(f"must be a number of {self._unit} above 0, not {value}", param, ctx)
        return number


class TargetOptions(Struct, frozen=True, kw_only=True):
    """The target of a command, and the options for the client."""

    args: Sequence[str] = ()  # The positional arguments of the command, including the target.
    command: Sequence[str] = ()  # The command after `--`.
    module: str | None = None
    json: bool = False
    protocol_version: str | None = None  # The version to require, or the word "handshake" or "stateless".
    timeout: float | None = None
    headers: Sequence[str] = ()
    auth: str | None = None
    env: Sequence[str] = ()
    cwd: str | None = None
    inputs: Sequence[str] = ()  # Values of ${input:ID} references.
    roots: Sequence[str] = ()  # Directories that the server may use.
    answers: Sequence[str] = ()
    verbose: bool = False
    packages: Sequence[str] = ()  # Packages to install for the server.
    python: str | None = None  # The Python version to run the server with.
    lists_restricted: bool = False  # Whether a server in a file or a module also lists items that require scopes.

    def split_target(self, *, should_prompt: bool = True) -> tuple[Any, list[str]]:
        """Return the target and the remaining arguments.

        If `should_prompt` is True, ask the user for missing inputs of a configured server.
        """
        for arg in self.args[0 if self.command or self.module is not None else 1 :]:
            if any("\ud800" <= char <= "\udfff" for char in arg):
                raise click.UsageError(f"{arg!r} is not UTF-8")
        if self.inputs and (self.command or self.module is not None):
            raise click.UsageError(_INPUT_WITHOUT_CONFIG)
        if self.command:
            if self.environment_args:
                raise click.UsageError(WITHOUT_FILE)
            return list(self.command), list(self.args)
        if self.module is not None:
            return [*DOVETAIL_COMMAND, "run", *self._run_args, "-m", self.module], list(self.args)
        if not self.args:
            raise click.UsageError(MISSING_TARGET)
        target = resolve_target(
            self.args[0], as_absolute=self.cwd is not None, inputs=self.inputs, should_prompt=should_prompt
        )
        if isinstance(target, list) and target[: len(_RUN_COMMAND)] == [*_RUN_COMMAND]:
            target = [*_RUN_COMMAND, *self._run_args, *target[len(_RUN_COMMAND) :]]
        elif self.environment_args:
            raise click.UsageError(WITHOUT_FILE)
        return target, list(self.args[1:])

    @property
    def _run_args(self) -> list[str]:
        return [*self.environment_args, *(["--list-restricted"] if self.lists_restricted else [])]

    @property
    def environment_args(self) -> list[str]:
        """The options of `dovetail run` for the environment of the server."""
        args = [arg for package in self.packages for arg in ("--with", package)]
        return args if self.python is None else [*args, "--python", self.python]

    def describe_environment(self) -> "EnvironmentSpec | None":
        """Return the environment that the server needs. Return None if it runs in the current environment."""
        file = split_object_name(self.args[0])[0] if self.args else ""
        is_file = not self.command and self.module is None and file.endswith(".py")
        if self.environment_args and not is_file and self.module is None:
            raise click.UsageError(WITHOUT_FILE)
        if not self.environment_args and not (is_file and may_have_metadata(file)):
            return None
        from dovetail.cli.script_environment import describe_environment

        return describe_environment(Path(file) if is_file else None, self.module, self.packages, self.python)


MISSING_TARGET = "missing argument: TARGET. Pass a file, a URL, the name of a configured server, or -- COMMAND"
WITHOUT_FILE = "--with and --python require a Python file or a module"
_INPUT_WITHOUT_CONFIG = "--input requires the name of a configured server"
INPUT_OPTION = click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="ID=VALUE",
    help="Value of ${input:ID} in a configuration. Repeatable.",
)


# The client needs these options to connect. `_SESSION_OPTIONS` contains the options that only affect requests.
_CONNECTION_OPTIONS: Mapping[str, Callable[[Any], Any]] = {
    "module": click.option("-m", "--module", help="Python module that contains the server."),
    "headers": click.option(
        "-H", "--header", "headers", multiple=True, metavar="NAME:VALUE", help="HTTP header to send. Repeatable."
    ),
    "auth": click.option("--auth", help='"oauth" or a bearer token. Defaults to a saved login.'),
    "env": click.option(
        "-e",
        "--env",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Environment variable of the server. Defaults to your value.",
    ),
    "cwd": click.option("--cwd", type=click.Path(), help="Working directory of the command."),
    "inputs": INPUT_OPTION,
}
_SESSION_OPTIONS: Mapping[str, Callable[[Any], Any]] = {
    "json": click.option("--json", is_flag=True, help="Print JSON."),
    "protocol_version": click.option(
        "--protocol-version", metavar="VERSION", help='Protocol version to use, or "handshake" or "stateless".'
    ),
    "timeout": click.option("--timeout", type=PositiveNumber(), help="Seconds to wait for the server."),
    "roots": click.option(
        "--root", "roots", multiple=True, type=click.Path(), help="Directory that the server may use. Repeatable."
    ),
    "answers": click.option(
        "-a",
        "--answer",
        "answers",
        multiple=True,
        metavar="NAME=VALUE",
        help="Answer to an elicitation: NAME=VALUE. Repeatable.",
    ),
    "verbose": click.option("-v", "--verbose", is_flag=True, help="Show log messages and stderr of the server."),
}


_TARGET_METAVAR = "[TARGET]"
PROCESS_OPTIONS = ("module", "env", "cwd")  # options of commands that start a server process
CONFIG_OPTIONS = ("module", "headers", "env", "cwd")  # options of commands that write a configuration file


def target_options(
    *metavars: str, connection: Collection[str] | None = None, session: Collection[str] | None = None
) -> Callable[[F], F]:
    """Add the TARGET argument and its options to a command.

    `connection` and `session` select options by name. The default is all options.
    """
    tables = ((_CONNECTION_OPTIONS, connection), (_SESSION_OPTIONS, session))
    selected = [option for table, names in tables for name, option in table.items() if names is None or name in names]

    def decorate(function: F) -> F:
        for option in reversed(selected):
            function = option(function)
        return click.argument("args", nargs=-1, metavar=" ".join((_TARGET_METAVAR, *metavars)))(function)

    return decorate


def _resolve_packages(ctx: click.Context, param: click.Parameter, packages: tuple[str, ...]) -> tuple[str, ...]:
    """Make the paths of local packages absolute, because the server may start in another directory."""
    if invalid := next((package for package in packages if package.startswith("-")), None):
        raise click.BadParameter(f"{invalid!r} is not a package", ctx, param)
    is_path = re.compile(r"[./~]|[A-Za-z]:[\\/]").match
    return tuple(str(Path(package).expanduser().resolve()) if is_path(package) else package for package in packages)


def environment_options(function: F) -> F:
    """Add the options for the environment of a server."""
    function = click.option("--python", metavar="VERSION", help="Python version for the server. Needs uv.")(function)
    return click.option(
        "--with",
        "packages",
        multiple=True,
        metavar="PACKAGE",
        callback=_resolve_packages,
        help="Package to install for the server with uv. Repeatable.",
    )(function)


def read_target_options(ctx: click.Context, **params: Any) -> TargetOptions:
    options = TargetOptions(command=ctx.obj or (), **params)
    accepts_target_only = any(
        param.metavar == _TARGET_METAVAR for param in ctx.command.params if isinstance(param, click.Argument)
    )
    extra_args = options.args[0 if options.command or options.module is not None else 1 :]
    if accepts_target_only and extra_args:
        raise click.UsageError(f"unexpected argument: {extra_args[0]}")
    return options


def resolve_target(
    target_arg: str, *, as_absolute: bool = False, inputs: Sequence[str] = (), should_prompt: bool = True
) -> Any:
    """Return the target for the client.

    If `as_absolute` is True, paths become absolute, because the server starts in another directory. `inputs` and
    `should_prompt` are for configured servers.
    """
    target = _resolve_location(target_arg, as_absolute)
    if target is None:
        return _build_target(_find_entry(target_arg), parse_pairs(inputs, "=", "--input"), should_prompt)
    if inputs:
        raise click.UsageError(_INPUT_WITHOUT_CONFIG)
    return target


def _resolve_location(target_arg: str, as_absolute: bool) -> Any:
    if target_arg.startswith(_URL_PREFIXES):
        return target_arg
    path = Path(split_object_name(target_arg)[0])
    if path.suffix == ".py":
        return [
            *DOVETAIL_COMMAND,
            "run",
            make_absolute(target_arg) if as_absolute else _require_file(path) and target_arg,
        ]
    if path.suffix == ".jsonl":
        return [*DOVETAIL_COMMAND, "mock", str(_require_file(path).resolve() if as_absolute else _require_file(path))]
    if path.suffix in SCRIPT_SUFFIXES:
        return str(_require_file(path).resolve() if as_absolute else _require_file(path))
    if not _names_config_file(target_arg) and path.is_file() and (os.sep in target_arg or "/" in target_arg):
        return [str(path.resolve())]
    return None


def can_connect_unasked(options: TargetOptions) -> bool:
    """Return whether the target is a URL, or a server in the user's own configuration files.

    Any other target could start a program that the user has not approved.
    """
    if options.command or options.module is not None or not options.args:
        return False
    target_arg = options.args[0]
    try:
        if _resolve_location(target_arg, as_absolute=False) is not None:
            return target_arg.startswith(_URL_PREFIXES)
        return _find_entry(target_arg).level == "user"
    except click.UsageError:
        return False


def _names_config_file(target_arg: str) -> bool:
    return target_arg.endswith(".json") or target_arg.rpartition(":")[0].endswith(".json")


def _find_entry(target_arg: str) -> ServerConfig:
    if not _names_config_file(target_arg):
        return find_config_entry(target_arg)
    prefix, _, name = target_arg.rpartition(":")
    return _read_config_entry(Path(prefix), name) if prefix.endswith(".json") else _read_config_entry(Path(target_arg))


def find_folder(options: TargetOptions) -> Path | None:
    """Return the path if the target is a folder. A configured server with the same name takes precedence."""
    if options.command or options.module is not None or not options.args:
        return None
    target_arg = options.args[0]
    path = Path(target_arg)
    if not path.is_dir():
        return None
    if "/" in target_arg or os.sep in target_arg or target_arg in (".", ".."):
        return path
    from dovetail.host.config.config_files import discover_configs

    is_configured = any(target_arg in (entry.name, entry.original_name) for entry in discover_configs()[0])
    return None if is_configured else path


def make_absolute(target_arg: str) -> str:
    """Return the absolute path of a file or `file.py:object`. Raise UsageError if the file does not exist."""
    file_name, object_name = split_object_name(target_arg)
    return f"{_require_file(Path(file_name)).resolve()}{f':{object_name}' if object_name else ''}"


def _require_file(path: Path) -> Path:
    if not path.is_file():
        raise click.UsageError(f"file not found: {str(path)!r}{suggest_file(path)}")
    return path


def print_problems(problems: Iterable[ConfigProblem]) -> None:
    """Print each problem of the configuration files on one line. Names are escaped, so that they cannot add lines."""
    for problem in problems:
        output.print_note(output.escape_full_line(f"{problem.path}: {problem.message}"))


def _read_config_entry(path: Path, name: str | None = None) -> ServerConfig:
    from dovetail.host.config.config_files import load_config

    entries, problems = load_config(_require_file(path), path.name)
    matches = [entry for entry in entries if name in (None, entry.name, entry.original_name)]
    if len(matches) == 1:
        return matches[0]
    print_problems(problems)
    similar_names = find_similar(name or "", [entry.name for entry in entries])
    targets = [output.escape_line(f"{path}:{entry_name}") for entry_name in similar_names[:1]]
    targets = targets or [output.escape_line(f"{path}:{entry.name}") for entry in entries]
    problem = f"no server {name!r}" if name else "several servers"
    raise click.UsageError(f"{problem} in {path}. Use {'one of: ' if len(targets) > 1 else ''}{', '.join(targets)}")


def find_config_entry(target_arg: str) -> ServerConfig:
    """Return the configured server with this name. Raise UsageError if the name is unknown or ambiguous."""
    from dovetail.host.config.config_files import discover_configs

    entries, problems = discover_configs()
    source, _, name = target_arg.rpartition(":")
    matches = [entry for entry in entries if name in (entry.name, entry.original_name) and source in ("", entry.source)]
    if not matches:
        print_problems(problems)
        names = qualify_names(entries, always=bool(source))
        hint = suggest_target(target_arg, names, TARGET_SUFFIXES)
        available = ", ".join(output.escape_line(candidate) for candidate in names[:_MAX_SHOWN_NAMES])
        hint = hint or (f". Configured servers: {available}" if names else "")
        raise click.UsageError(f"unknown target {target_arg!r}: not a file, a URL or a configured server{hint}")
    if len({entry.source for entry in matches}) > 1:
        names = ", ".join(sorted({f"{entry.source}:{entry.name}" for entry in matches}))
        raise click.UsageError(f"several configurations have a server named {target_arg!r}. Choose one: {names}")
    return matches[0]


def qualify_names(entries: Sequence[ServerConfig], *, always: bool = False) -> list[str]:
    """Return the name of each server as a target. An ambiguous name gets its source, such as `cursor:hello`."""
    counts = Counter(entry.name for entry in entries)
    return [f"{entry.source}:{entry.name}" if always or counts[entry.name] > 1 else entry.name for entry in entries]


def _build_target(entry: ServerConfig, inputs: Mapping[str, str], should_prompt: bool) -> Any:
    from dovetail.cli.config_inputs import collect_inputs, find_missing_input
    from dovetail.host.config.secret_lookup import SecretResolver, get_input_variable

    collected = collect_inputs([entry], inputs, should_prompt=should_prompt)
    if (input_id := find_missing_input(entry, collected)) is not None:
        raise click.UsageError(
            f"{entry.name}: the input {input_id!r} has no value. Pass --input {input_id}=VALUE, or set "
            f"{get_input_variable(input_id)}"
        )
    try:
        return entry.to_target(secrets=SecretResolver(inputs=collected))
    except KeyError as exc:
        raise click.UsageError(f"{entry.name}: {exc}") from None


class ProcessSpec(Struct, frozen=True, kw_only=True):
    """A server that runs as a process, and how to start it."""

    command: list[str]
    env: dict[str, str]
    cwd: str | None = None


class EndpointSpec(Struct, frozen=True, kw_only=True):
    """A server with an HTTP URL, and the headers to send."""

    url: str
    headers: dict[str, str]


def locate_target(options: TargetOptions, target: Any) -> ProcessSpec | EndpointSpec:
    """Return the command or the URL of a server, for use without a `Client`.

    Raise UsageError if there is neither, or if an option does not match the target.
    """
    entry: Mapping[str, Any] = target if isinstance(target, Mapping) else {}
    if (url := get_target_url(target)) is not None:
        if options.env or options.cwd is not None:
            raise click.UsageError("--env and --cwd require a command, not a URL")
        return EndpointSpec(url=url, headers={**(entry.get("headers") or {}), **_build_headers(options)})
    if options.headers or options.auth is not None:
        raise click.UsageError("--header and --auth require a URL, not a command")
    if isinstance(target, str) and (runner := _SCRIPT_RUNNERS.get(Path(target).suffix)):
        command = [*runner, str(Path(target).resolve())]
    elif isinstance(target, str) or (entry and "command" not in entry):
        raise click.UsageError(
            f"{target if isinstance(target, str) else 'the entry'!r} is not a command or an HTTP URL"
        )
    else:
        command = [str(entry["command"]), *(entry.get("args") or ())] if entry else [*target]
    env = {**(entry.get("env") or {}), **parse_env(options.env)}
    return ProcessSpec(command=command, env=env, cwd=options.cwd if options.cwd is not None else entry.get("cwd"))


def _build_headers(options: TargetOptions) -> dict[str, str]:
    headers = parse_pairs(options.headers, ":", "--header")
    if options.auth is None:
        return headers
    if options.auth == "oauth":
        raise click.UsageError("--auth must be a bearer token here, because `tap` cannot log in for you")
    from dovetail.cli.logins import create_auth

    return headers | {"Authorization": f"Bearer {create_auth(options.auth, '').token}"}


def get_target_url(target: Any) -> str | None:
    """Return the HTTP URL of a target. Return None if the target has no HTTP URL."""
    url = target.get("url") if isinstance(target, Mapping) else target
    return url if isinstance(url, str) and url.startswith(("http://", "https://")) else None


def list_restricted_items(options: TargetOptions) -> TargetOptions:
    """Make the server also list items that require scopes. This works only for a server in a file or a module."""
    return replace(options, lists_restricted=True)


def build_client_options(options: TargetOptions, target: Any) -> dict[str, Any]:
    """Return the keyword arguments for `Client`."""
    from dovetail.protocol.limits import Timeouts

    client_kwargs: dict[str, Any] = {"protocol_version": options.protocol_version}
    if not options.command:
        client_kwargs["name"] = options.module or strip_url(options.args[0])
    if options.timeout is not None:
        seconds = options.timeout
        client_kwargs["timeout"] = Timeouts(
            initialize=seconds, call=seconds, request=seconds, total=max(seconds, Timeouts().total)
        )
    if options.headers:
        client_kwargs["headers"] = parse_pairs(options.headers, ":", "--header")
    if (auth := _build_auth(options, target)) is not None:
        client_kwargs["auth"] = auth
    if options.env:
        client_kwargs["env"] = parse_env(options.env)
    if options.cwd is not None:
        client_kwargs["cwd"] = options.cwd
    if options.roots:
        client_kwargs["roots"] = [Path(root).resolve() for root in options.roots]
    if options.verbose and get_target_url(target) is None:
        client_kwargs["stderr"] = output.print_quoted
    return client_kwargs


def _build_auth(options: TargetOptions, target: Any) -> Any:
    url = get_target_url(target)
    has_auth_header = any(header.lower().startswith("authorization:") for header in options.headers)
    # Do not use a saved login if the user passes an Authorization header.
    if options.auth is None and (url is None or has_auth_header):
        return None
    from dovetail.cli.logins import create_auth

    return create_auth(options.auth, url or "")


def parse_env(assignments: Iterable[str]) -> dict[str, str]:
    """Return the environment variables that --env sets."""
    env: dict[str, str] = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator and name not in os.environ:
            raise click.UsageError(f"--env {name}: the variable is not set. Pass {name}=VALUE")
        env[name] = value if separator else os.environ[name]
    return env


def parse_pairs(values: Iterable[str], separator: str, option: str) -> dict[str, str]:
    """Parse options of the form NAME=VALUE or NAME:VALUE into a dict."""
    result: dict[str, str] = {}
    for item in values:
        name, actual_separator, value = item.partition(separator)
        if not actual_separator or not name:
            # The value may be a secret, so the error message does not contain the value.
            raise click.UsageError(f"{option} must be NAME{separator}VALUE. NAME and {separator!r} are required")
        result[name.strip()] = value.strip() if separator == ":" else value
    return result


def read_recording(path: str) -> list[Any]:
    """Read the messages of a recording. Raise UsageError if the recording is invalid."""
    try:
        return [*read_frames(Path(path).read_bytes().splitlines(), path)]
    except UnsupportedFileVersion:
        raise
    except (OSError, ValueError) as exc:
        raise click.UsageError(f"{path}: {exc}") from None
