"""`dovetail new`: create a server and a test for it."""

import keyword
import shlex
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import click

_SERVER_TEMPLATE = '''"""{name}: an MCP server. Run it with `dovetail run {module}.py`, or let a host start it."""

from dovetail import Server

app = Server("{name}", instructions="Describe here what this server is for.")


@app.tool
def greet(name: str) -> str:
    """Greet a person.

    Args:
        name: The name of the person.
    """
    return f"Hello, {{name}}!"


@app.resource("greetings://latest")
def latest() -> str:
    """Return the latest greeting."""
    return "Hello, world!"


if __name__ == "__main__":
    app.run()
'''

_TEST_TEMPLATE = '''"""Call the server as a host would."""

from dovetail import SyncClient
from {module} import app


def test_greet():
    with SyncClient(app) as client:
        assert client.call("greet", name="Ada") == "Hello, Ada!"
'''


@click.command("new")
@click.argument("name")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
def command(name: str, force: bool) -> int:
    """Create a server and a test for it.

    Writes NAME.py and test_NAME.py.

    \b
    dovetail new weather
    """
    folder, server_name = Path(name).parent, Path(name).name.removesuffix(".py")
    module = server_name.replace("-", "_")
    if not module.isidentifier():
        raise click.UsageError(f"{name!r} is not a valid name for a Python module. Use letters, digits and underscores")
    if keyword.iskeyword(module):
        raise click.UsageError(f"{module!r} is a Python keyword. Choose another name")
    if _is_existing_module(module, folder):
        raise click.UsageError(f"{module!r} would shadow an existing module. Choose another name")
    server_path = folder / f"{module}.py"
    files = {
        server_path: _SERVER_TEMPLATE.format(name=server_name, module=module),
        folder / f"test_{module}.py": _TEST_TEMPLATE.format(module=module),
    }
    for path in files:
        if path.exists() and not force:
            raise click.UsageError(f"{path} already exists. Use --force to overwrite it")
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        path.write_text(content, encoding="utf-8")
        click.echo(f"wrote {path}")
    click.echo(f"try: dovetail call {shlex.quote(str(server_path))} greet name=Ada")
    return 0


def _is_existing_module(module: str, folder: Path) -> bool:
    if module in sys.stdlib_module_names or module == "dovetail":
        return True
    own_folders = (folder.resolve(), Path.cwd())
    paths = [path for path in sys.path if path and Path(path).resolve() not in own_folders]
    spec = PathFinder.find_spec(module, paths)
    return spec is not None and spec.origin is not None  # The spec of a folder without __init__.py has no origin.
