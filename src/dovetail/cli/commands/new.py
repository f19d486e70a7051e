"""`dovetail new`: a new server, with a test, ready to run."""

import keyword
import sys
from pathlib import Path

import click

_SERVER_TEMPLATE = '''"""{name}: an MCP server. Run it with `dovetail run {file}`, or let a host start it."""

from dovetail import Server

app = Server("{name}", instructions="Say here what this server is for.")


@app.tool
def greet(name: str) -> str:
    """Greet someone.

    Args:
        name: Whom to greet.
    """
    return f"Hello, {{name}}!"


@app.resource("greetings://latest")
def latest() -> str:
    """The latest greeting."""
    return "Hello, world!"


if __name__ == "__main__":
    app.run()
'''

_TEST_TEMPLATE = '''"""The server, called as a host would call it."""

from dovetail import SyncClient
from {module} import app


def test_greet():
    with SyncClient(app) as client:
        assert client.call("greet", name="Ada") == "Hello, Ada!"
'''


@click.command("new")
@click.argument("name")
@click.option("--force", is_flag=True, help="Write over files that are there.")
def command(name: str, force: bool) -> int:
    """Write a new server, with a test: NAME.py and test_NAME.py.

    \b
    dovetail new weather
    """
    module = Path(name).stem.replace("-", "_")
    if not module.isidentifier():
        raise click.UsageError(f"{name!r} is no name for a Python file")
    if keyword.iskeyword(module):
        raise click.UsageError(f"{module!r} is a word of Python's own, and no module can have it as its name")
    if module in sys.stdlib_module_names or module == "dovetail":
        raise click.UsageError(
            f"{module!r} is a module that is needed: yours would stand in its place; take another name"
        )
    folder = Path(name).parent
    files = {
        folder / f"{module}.py": _SERVER_TEMPLATE.format(name=module, file=f"{module}.py"),
        folder / f"test_{module}.py": _TEST_TEMPLATE.format(module=module),
    }
    for path in files:
        if path.exists() and not force:
            raise click.UsageError(f"{path} is there already; --force writes over it")
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        path.write_text(content, encoding="utf-8")
        click.echo(f"wrote {path}")
    click.echo(f"try: dovetail call {folder / module}.py greet name=Ada")
    return 0
