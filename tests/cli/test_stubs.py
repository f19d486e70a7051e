"""Write typed clients, check them with a type checker, and call servers with them."""

import ast
import asyncio
import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from cli.command_process import ROOT, RunCommand
from dovetail import Client, Server, ToolError
from dovetail.cli.client_stubs import write_client
from dovetail.wire.prompts import Prompt, PromptArgument
from dovetail.wire.resources import ResourceTemplate
from dovetail.wire.tools import Tool

BREAKOUT = '''"""\n    import os; os.system("x")\n    """ \\""" \' \x1b[31m \u202e {0} # %s'''
NODE_SCHEMA = {
    "type": "object",
    "properties": {"tree": {"$ref": "#/$defs/Node"}, "a-b": {"type": ["string", "null"]}, "class": {"enum": [1, "x"]}},
    "required": ["tree"],
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {"list": {"type": "array", "items": {"$ref": "#/$defs/Node"}}, "x-y": {"const": "z"}},
            "required": ["list"],
        }
    },
}

app = Server("tea shop")


@dataclass
class Order:
    item: str
    amount: int = 1


class Receipt(TypedDict):
    total: float
    orders: list[Order]
    note: NotRequired[str | None]


@app.tool
def buy(
    orders: list[Order], currency: Literal["EUR", "USD"] = "EUR", tip: Annotated[float, "In percent"] = 0
) -> Receipt:
    """Buy tea."""
    return {"total": 2.5 * sum(order.amount for order in orders) * (1 + tip), "orders": orders, "note": currency}


@app.tool
def count(item: str) -> int:
    """Count an item."""
    return len(item)


@app.tool(input_schema=NODE_SCHEMA)
def plant(arguments: dict[str, Any]) -> dict[str, Any]:
    """Plant a tree."""
    return arguments


@app.tool
def convert(into: str) -> str:
    """Convert something."""
    if into == "gold":
        raise ToolError("no gold")
    return into


@app.prompt
def sell(item: str, price: int = 1) -> str:
    """Sell an item."""
    return f"Sell {item} for {price}"


@app.resource("shop://{item}/pages/{+path}")
def page(item: str, path: str) -> str:
    return f"{item}: {path}"


USE = """
async def use(shop: TeaShop) -> None:
    receipt = await shop.buy(orders=[{"item": "tea", "amount": 2}], currency="USD")
    total: float = receipt["total"]
    amount: int = await shop.count(item="tea")
    print(total, amount, receipt["orders"][0]["item"])
    await shop.buy(orders=[{"item": 3}])  # error
    await shop.buy(orders=[], currency="GBP")  # error
    await shop.count()  # error
    text: str = await shop.count(item="tea")  # error
    print(text, receipt["missing"])  # error
"""


async def _write() -> str:
    async with Client(app) as client:
        return write_client(
            "tea shop", await client.list_tools(), await client.list_prompts(), await client.list_resource_templates()
        )


def _load(code: str, folder: Path) -> ModuleType:
    path = folder / "generated_client.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("generated_client", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_client_calls_the_server(tmp_path: Path):
    module = _load(await _write(), tmp_path)
    async with Client(app) as client:
        shop = module.TeaShop(client)
        receipt = await shop.buy(orders=[{"item": "tea", "amount": 2}])
        assert (receipt["total"], receipt["note"]) == (5.0, "EUR")
        assert await shop.count(item="tea") == 3
        tree = {"list": [{"list": []}]}
        assert await shop.plant(tree=tree, a_b="c", class_=1) == {"tree": tree, "a-b": "c", "class": 1}
        assert await shop.convert(into="silver") == "silver"
        with pytest.raises(ToolError, match="no gold"):
            await shop.convert(into="gold")
        assert "Sell tea for 1" in str(await shop.get_sell_prompt(item="tea"))
        assert await shop.read_page(item="a b", path="c/d") == "a b: c/d"


async def test_code_is_deterministic():
    assert await _write() == await _write()


def test_type_checker_accepts_the_client_and_finds_mistakes(tmp_path: Path):
    path = tmp_path / "generated_client.py"
    path.write_text(asyncio.run(_write()) + USE)
    settings = tmp_path / "pyrightconfig.json"
    settings.write_text('{"typeCheckingMode": "strict", "pythonVersion": "3.11"}')
    checker = Path(sys.executable).with_name("basedpyright")
    completed = subprocess.run(
        [checker, "--outputjson", "--pythonpath", sys.executable, "--project", settings, path],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    lines = path.read_text().splitlines()
    expected = [number for number, line in enumerate(lines) if line.endswith("# error")]
    found = [item for item in json.loads(completed.stdout)["generalDiagnostics"] if item["severity"] == "error"]
    assert sorted({item["range"]["start"]["line"] for item in found}) == expected, found


def test_text_of_a_server_never_becomes_code():
    schema = {
        "type": "object",
        "title": BREAKOUT,
        "description": BREAKOUT,
        "properties": {
            BREAKOUT: {"type": "string", "description": BREAKOUT, "default": BREAKOUT},
            "x): import os  #": {"enum": [BREAKOUT, "b"]},
            "self": {"type": "integer"},
            "nested": {"$ref": f"#/$defs/{BREAKOUT.replace('/', '')}"},
        },
        "required": ["self", BREAKOUT],
        "$defs": {BREAKOUT.replace("/", ""): {"type": "object", "properties": {BREAKOUT: {"const": BREAKOUT}}}},
    }
    names = [BREAKOUT, "__init__", "client", "print(1)", "import", "", "\u0441ount", "1x", "a.b", "a-b", "list"]
    tools = [Tool(name=name, description=BREAKOUT, input_schema=schema, output_schema=schema) for name in names]
    prompt = Prompt(
        name=BREAKOUT, description=BREAKOUT, arguments=[PromptArgument(name=BREAKOUT, description=BREAKOUT)]
    )
    template = ResourceTemplate(
        name=BREAKOUT, uri_template=f"x://{BREAKOUT.replace('{0}', '')}/{{a}}", description=BREAKOUT
    )
    code = write_client(BREAKOUT, tools, [prompt], [template])
    assert code.isascii()
    assert code.replace("\n", "").isprintable()
    tree = ast.parse(code)
    allowed = (ast.Expr, ast.ImportFrom, ast.ClassDef, ast.Assign)
    assert [type(node) for node in tree.body if not isinstance(node, allowed)] == []
    imports = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imports == {"__future__", "typing", "urllib.parse", "dovetail", "dovetail.types"}
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert called <= {"TypedDict", "quote", "self.client.call", "self.client.get_prompt", "self.client.read"}
    (server,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.bases]
    methods = [node.name for node in server.body if isinstance(node, ast.AsyncFunctionDef)]
    assert len({*methods}) == len(names) + 2
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    sent = [ast.literal_eval(call.args[0]) for call in calls if ast.unparse(call.func) == "self.client.call"]
    assert sent == names


@pytest.mark.parametrize(
    "schema", [True, {}, {"type": "object", "properties": 3}, {"properties": {"a": {"$ref": "#"}}}]
)
def test_strange_schemas(schema: Any):
    tool = Tool(name="x", input_schema=schema, output_schema={"type": "object", "properties": {"a": schema}})
    ast.parse(write_client("s", [tool], [], []))


def test_deep_schemas_end():
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(200):
        schema = {"type": "object", "properties": {"a": schema, "b": {"anyOf": [schema, {"type": "null"}]}}}
    code = write_client("s", [Tool(name="x", input_schema=schema)], [], [])
    assert len(code) < 1_000_000
    ast.parse(code)


def test_command(run_here: RunCommand):
    weather = ROOT / "examples" / "weather.py"
    code = run_here("stubs", weather).check_success().out
    assert "class Weather:" in code
    assert run_here("stubs", weather, "--json").check_success().json == {"code": code}
    ast.parse(code)


def test_a_schema_that_grows_with_each_level() -> None:
    definitions: dict[str, Any] = {
        f"d{level}": {"anyOf": [{"type": "array", "items": {"$ref": f"#/$defs/d{level + 1}"}}] * 60}
        for level in range(14)
    }
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": definitions}
    code = write_client("x", [Tool(name="grow", input_schema=schema), Tool(name="Any", input_schema={})], [], [])
    ast.parse(code)
    assert "def Any(" not in code  # It would hide the type.


def test_equal_objects_share_a_class() -> None:
    shape = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
    inputs = {"type": "object", "properties": {"shapes": {"type": "array", "items": shape}}, "required": ["shapes"]}
    outputs = {"type": "object", "additionalProperties": shape}
    code = write_client("x", [Tool(name="draw", input_schema=inputs, output_schema=outputs)], [], [])
    classes = [node.name for node in ast.parse(code).body if isinstance(node, ast.ClassDef)]
    assert classes == ["DrawShapesItem", "X"]
    assert "-> dict[str, DrawShapesItem]:" in code


def test_notes_about_parameters() -> None:
    properties = {
        "size": {"type": "integer", "description": "Size in mm", "default": 3},
        "ident": {"type": ["string", "null"], "default": None},
    }
    code = write_client("x", [Tool(name="draw", input_schema={"type": "object", "properties": properties})], [], [])
    assert "size: Size in mm. Defaults to 3." in code
    assert "ident: Defaults" not in code
