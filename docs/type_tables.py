"""Build the tables in guide/types.md: the schema of each annotation, and the result of each returned value."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import annotated_types as at
import attrs
import msgspec
from msgspec import Meta
from pydantic import BaseModel, Field

from dovetail import Audio, CallToolResult, File, Image, ResourceLink, TextContent
from dovetail.server.context import Context
from dovetail.server.invocation import get_collected_type
from dovetail.server.parameters.signature import compile_signature
from dovetail.server.results import compile_output
from dovetail.wire.codec import to_plain


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


class Row(TypedDict):
    id: int


class Pair(NamedTuple):
    left: int
    right: str


@attrs.define
class Box:
    width: int


class Place(msgspec.Struct):
    name: str


class Tree(msgspec.Struct):
    children: list["Tree"]


class Item(BaseModel):
    sku: str = Field(min_length=3)


PARAMETERS: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "None": None,
    "Any": Any,
    "int | None": int | None,
    "int | str": int | str,
    'Literal["b", "a"]': Literal["b", "a"],
    'Literal["a"] | None': Literal["a"] | None,
    "Color (an Enum)": Color,
    "list[int]": list[int],
    "set[int]": set[int],
    "tuple[int, str]": tuple[int, str],
    "tuple[int, ...]": tuple[int, ...],
    "dict[str, float]": dict[str, float],
    "datetime": datetime,
    "date": date,
    "time": time,
    "timedelta": timedelta,
    "UUID": UUID,
    "Decimal": Decimal,
    "Path": Path,
    "bytes": bytes,
    "Point (a dataclass)": Point,
    "Row (a TypedDict)": Row,
    "Pair (a NamedTuple)": Pair,
    "Box (attrs)": Box,
    "Place (msgspec)": Place,
    "Item (pydantic)": Item,
    "Tree (contains itself)": Tree,
    'Annotated[str, "What it is."]': Annotated[str, "What it is."],
    "Annotated[int, Meta(ge=1, le=9)]": Annotated[int, Meta(ge=1, le=9)],
    "Annotated[int, at.Gt(0)]": Annotated[int, at.Gt(0)],
    "Annotated[str, at.Len(2, 5)]": Annotated[str, at.Len(2, 5)],
    "Annotated[float, Field(gt=0)]": Annotated[float, Field(gt=0)],
}

PNG = b"\x89PNG\r\n\x1a\n"
LINK = ResourceLink(uri="shop://a", name="a")

# The label of the annotation, the annotation, the label of the value, and the value.
RESULTS: list[tuple[str, Any, str, Any]] = [
    ("str", str, '"hi"', "hi"),
    ("None", None, "None", None),
    ("int", int, "3", 3),
    ("bool", bool, "True", True),
    ("Point (a dataclass)", Point, "Point(1)", Point(1)),
    ("Item (pydantic)", Item, 'Item(sku="abc")', Item(sku="abc")),
    ("dict[str, int]", dict[str, int], '{"a": 1}', {"a": 1}),
    ("list[str]", list[str], '["a", "b"]', ["a", "b"]),
    ("int | None", int | None, "None", None),
    ("datetime", datetime, "datetime(2026, 7, 28)", datetime(2026, 7, 28)),
    ("*none*", Any, '"hi"', "hi"),
    ("*none*", Any, '{"a": 1}', {"a": 1}),
    ("*none*", Any, '["a", "b"]', ["a", "b"]),
    ("*none*", Any, "[1, 2]", [1, 2]),
    ("Image", Image, "Image(png)", Image(PNG)),
    ("Audio", Audio, "Audio(ogg)", Audio(b"OggS")),
    ("File", File, 'File(b"a,b", name="t.csv")', File(b"a,b", name="t.csv")),
    ("bytes", bytes, "png", PNG),
    ("bytes", bytes, 'b"?"', b"?"),
    ("ResourceLink", ResourceLink, "ResourceLink(…)", LINK),
    ("list[str | Image]", list[str | Image], '["Look:", Image(png)]', ["Look:", Image(PNG)]),
    ("*none*", Any, '["Look:", Image(png), {"a": 1}]', ["Look:", Image(PNG), {"a": 1}]),
    ("AsyncIterator[str]", get_collected_type(AsyncIterator[str]), 'yields "a", "b"', ["a", "b"]),
    ("AsyncIterator[Point]", get_collected_type(AsyncIterator[Point]), "yields Point(1)", [Point(1)]),
    ("CallToolResult", CallToolResult, "CallToolResult(…)", CallToolResult(content=[TextContent(text="as it is")])),
]


def list_parameter_rows() -> list[list[str]]:
    """Return rows with annotation and schema."""
    return [[_code(label), _code(json.dumps(_schema(kind), ensure_ascii=False))] for label, kind in PARAMETERS.items()]


def list_result_rows() -> list[list[str]]:
    """Return rows with annotation, value, content and structured content."""
    rows: list[list[str]] = []
    for label, annotation, value_label, value in RESULTS:
        output = compile_output(annotation)
        result = to_plain(output.to_result(value))
        structured = _code(json.dumps(result["structuredContent"])) if "structuredContent" in result else ""
        blocks = ", ".join(_block(block) for block in result["content"]) or "*no block*"
        rows.append([label if label.startswith("*") else _code(label), _code(value_label), blocks, structured])
    return rows


def _schema(kind: Any) -> dict[str, Any]:
    def function(value: Any) -> None: ...

    function.__annotations__["value"] = kind
    schema = compile_signature(function, context_type=Context).schema
    shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return schema["properties"]["value"] | shared


def _block(block: dict[str, Any]) -> str:
    match block["type"]:
        case "text":
            return f"text {_code(block['text'])}"
        case "resource":
            kind = "text" if "text" in block["resource"] else "blob"
            return f"embedded {kind}, {_code(block['resource']['mimeType'])}"
        case "resource_link":
            return "link"
        case kind:
            return f"{kind}, {_code(block['mimeType'])}"


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")
