"""Test that prompt arguments are the function's parameters, converted from text."""

import json
import re
from typing import Annotated, Any, Literal

import msgspec
import pytest

from dovetail import Context, Icon, PromptMessage, Server, TextContent, ToolError
from dovetail.server.items.prompt import Prompt
from dovetail.wire.prompts import PromptArgument
from server.direct_client import Client


def packing(city: str, days: int = 3, style: Literal["light", "full"] = "light") -> str:
    """A packing list."""
    return f"Pack for {days} days in {city}, {style}."


def test_arguments_are_the_parameters() -> None:
    declared = Prompt(packing).declaration
    assert (declared.name, declared.description) == ("packing", "A packing list.")
    assert (Prompt(packing).runner.run_in_thread, Prompt(packing).runner.timeout) == (True, None)
    assert declared.arguments == [
        PromptArgument(name="city", required=True),
        PromptArgument(name="days"),
        PromptArgument(name="style"),
    ]


def test_annotations_describe_arguments() -> None:
    def run(city: Annotated[str, msgspec.Meta(title="City", description="Where to")], ctx: Context) -> str:
        return city

    assert Prompt(run).declaration.arguments == [
        PromptArgument(name="city", title="City", description="Where to", required=True)
    ]


def test_an_argument_that_is_not_text_says_how_to_write_it() -> None:
    def trip(
        days: list[int],
        stops: Annotated[list[str] | None, "On the way."] = None,
        either: list[int] | str = "",
        n: int = 1,
    ) -> str:
        return ""

    told = [one.description for one in Prompt(trip).declaration.arguments or ()]
    assert told == [
        'As JSON text: {"type":"array","items":{"type":"integer"}}',
        'On the way. As JSON text: {"anyOf":[{"type":"array","items":{"type":"string"}},{"type":"null"}]}',
        None,
        None,
    ]


class Folder(msgspec.Struct):
    name: str
    folders: "list[Folder]" = []


class Circle(msgspec.Struct, tag="circle"):
    radius: float


class Square(msgspec.Struct, tag="square"):
    side: float


def test_arguments_that_are_classes_say_how_to_write_them() -> None:
    def draw(
        folder: Folder,
        shape: Annotated[Circle | Square, "The shape"],
        folders: Annotated[list[Folder], "All of them!"],
        n: int = 1,
    ) -> str:
        return ""

    folder, shape, folders, n = [one.description for one in Prompt(draw).declaration.arguments or ()]
    assert n is None
    for description, start in ((folder, ""), (shape, "The shape. "), (folders, "All of them! ")):
        assert description is not None
        assert description.startswith(f"{start}As JSON text: ")
        schema = json.loads(description.partition("JSON text: ")[2])
        assert "$ref" not in schema
        references = set(re.findall(r"#/\$defs/(\w+)", description))
        assert references == schema.get("$defs", {}).keys()
    assert "folders" in str(folder)
    assert "circle" in str(shape)


def test_options_come_first() -> None:
    prompt = Prompt(
        packing,
        name="p",
        title="P",
        description="",
        icons=[Icon(src="a:b")],
        meta={"x": 1},
        timeout=2.0,
        run_in_thread=False,
    )
    declared = prompt.declaration
    assert (declared.name, declared.title, declared.description) == ("p", "P", "")
    assert (declared.icons, declared.meta) == ([Icon(src="a:b")], {"x": 1})
    assert (prompt.runner.timeout, prompt.runner.run_in_thread) == (2.0, False)


def test_a_prompt_without_arguments_lists_none() -> None:
    assert Prompt(lambda: "hi", name="p").declaration.arguments is None


async def get(function: Any, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    app = Server("prompter")
    app.add_prompt(function, name="run")
    params = {"name": "run"} | ({} if arguments is None else {"arguments": arguments})
    return await Client(app).request("prompts/get", params)


async def test_texts_are_read_as_what_the_parameter_is() -> None:
    result = await get(packing, {"city": "Oslo", "days": "5", "style": "full"})
    assert result["messages"] == [
        {"role": "user", "content": {"type": "text", "text": "Pack for 5 days in Oslo, full."}}
    ]
    assert result["description"] == "A packing list."


@pytest.mark.parametrize(
    "arguments", [None, {}, {"days": "5"}, {"city": "Oslo", "days": "many"}, {"city": "O", "x": "1"}]
)
async def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, Any] | None) -> None:
    with pytest.raises(Exception, match=r"\S") as caught:
        await get(packing, arguments)
    assert getattr(caught.value, "code", None) == -32602


async def test_a_prompt_may_be_a_whole_conversation() -> None:
    def run() -> list[Any]:
        return ["Hello", PromptMessage(role="assistant", content=TextContent(text="Hi"))]

    assert [(one["role"], one["content"]["text"]) for one in (await get(run))["messages"]] == [
        ("user", "Hello"),
        ("assistant", "Hi"),
    ]


async def test_an_error_of_the_author_is_shown_and_all_others_are_masked(caplog: pytest.LogCaptureFixture) -> None:
    def told() -> str:
        raise ToolError("no such season")

    def masked() -> str:
        raise ValueError("secret")

    with pytest.raises(Exception, match="no such season") as caught:
        await get(told)
    assert getattr(caught.value, "code", None) == -32602
    with pytest.raises(Exception, match="run") as caught:
        await get(masked)
    assert getattr(caught.value, "code", None) == -32603
    assert "secret" not in str(caught.value)
    assert "secret" in caplog.text
