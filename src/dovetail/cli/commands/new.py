"""`dovetail new`: create a server and a test for it."""

import keyword
import sys
from pathlib import Path

import click

_SERVER_TEMPLATE = '''"""{name}: an MCP server. Run it with `dovetail run {file}`, or let a host start it."""

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
    module = Path(name).stem.replace("-", "_")
    if not module.isidentifier():
        raise click.UsageError(f"{name!r} is not a valid name for a Python module")
    if keyword.iskeyword(module):
        raise click.UsageError(f"{module!r} is a Python keyword. Choose another name")
    if module in sys.stdlib_module_names or module == "dovetail":
        raise click.UsageError(f"{module!r} would shadow an existing module. Choose another name")
    folder = Path(name).parent
    files = {
        folder / f"{module}.py": _SERVER_TEMPLATE.format(name=module, file=f"{module}.py"),
        folder / f"test_{module}.py": _TEST_TEMPLATE.format(module=module),
    }
    for path in files:
        if path.exists() and not force:
            raise click.UsageError(f"{path} already exists. Use --force to overwrite it")
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        path.write_text(content, encoding="utf-8")
        click.echo(f"wrote {path}")
    click.echo(f"try: dovetail call {folder / module}.py greet name=Ada")
    return 0
