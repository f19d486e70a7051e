"""Test completion of prompt arguments and template variables."""

from enum import Enum
from typing import Any, Literal

from behaviour.manifest import requirement
from behaviour.request_helpers import expect_error
from dovetail import Completion, Server
from support.driver import connect

CITIES = ["Oslo", "Osaka", "Odessa", "Rome"]


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


def server() -> Server:
    app = Server("completing")

    @app.prompt
    def trip(city: str, street: str, mode: Literal["Train", "Tram", "Boat"], size: Size = Size.SMALL) -> str:
        return city

    @app.resource("map://{city}/{kind}")
    def chart(city: str, kind: Literal["road", "rail"]) -> str:
        return city

    @app.completion("trip", "city")
    def cities(value: str) -> list[str]:
        return [city for city in CITIES if city.startswith(value)]

    @app.completion("trip", "street")
    async def streets(value: str, arguments: dict[str, str]) -> list[str]:
        return [f"{value} {arguments.get('city', 'nowhere')} {len(arguments)}"]

    @app.completion("map://{city}/{kind}", "city")
    def many(value: str) -> Any:
        match value:
            case "list":
                return [f"city {number}" for number in range(250)]
            case "known":
                return Completion(values=[f"city {number}" for number in range(101)], total=9000)
            case "page":
                return Completion(values=["a", "b"], total=7, has_more=True)
            case "hundred":
                return [f"city {number}" for number in range(100)]
            case _:
                return None

    return app


def prompt(argument: str, value: str, **more: Any) -> dict[str, Any]:
    return {"ref": {"type": "ref/prompt", "name": "trip"}, "argument": {"name": argument, "value": value}} | more


def template(argument: str, value: str) -> dict[str, Any]:
    ref = {"type": "ref/resource", "uri": "map://{city}/{kind}"}
    return {"ref": ref, "argument": {"name": argument, "value": value}}


@requirement("completion.suggests")
async def test_a_function_suggests_values(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        result = await peer.request("completion/complete", prompt("city", "Os"))
        assert result["completion"] == {"values": ["Oslo", "Osaka"], "total": 2, "hasMore": False}
        none = await peer.request("completion/complete", prompt("city", "x"))
        assert none["completion"] == {"values": [], "total": 0, "hasMore": False}
        nothing = await peer.request("completion/complete", template("city", "nothing"))
        assert nothing["completion"]["values"] == []
        page = await peer.request("completion/complete", template("city", "page"))
        assert page["completion"] == {"values": ["a", "b"], "total": 7, "hasMore": True}


@requirement("completion.context")
async def test_settled_arguments_reach_the_function(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        context = {"arguments": {"city": "Oslo", "mode": "Tram"}}
        result = await peer.request("completion/complete", prompt("street", "Main", context=context))
        assert result["completion"]["values"] == ["Main Oslo 2"]
        for empty in ({}, {"context": {}}, {"context": {"arguments": {}}}):
            result = await peer.request("completion/complete", prompt("street", "Main", **empty))
            assert result["completion"]["values"] == ["Main nowhere 0"]


@requirement("completion.choices")
async def test_choices_are_completed_for_free(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        for params, values in (
            (prompt("mode", "t"), ["Train", "Tram"]),
            (prompt("mode", ""), ["Train", "Tram", "Boat"]),
            (prompt("mode", "OA"), ["Boat"]),
            (prompt("mode", "z"), []),
            (prompt("size", "L"), ["large"]),
            (template("kind", "r"), ["road", "rail"]),
        ):
            result = await peer.request("completion/complete", params)
            assert result["completion"]["values"] == values, params


@requirement("completion.cap")
async def test_an_answer_holds_at_most_a_hundred(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        found = (await peer.request("completion/complete", template("city", "list")))["completion"]
        assert found == {"values": [f"city {number}" for number in range(100)], "total": 250, "hasMore": True}
        known = (await peer.request("completion/complete", template("city", "known")))["completion"]
        assert (len(known["values"]), known["total"], known["hasMore"]) == (100, 9000, True)
        hundred = (await peer.request("completion/complete", template("city", "hundred")))["completion"]
        assert (len(hundred["values"]), hundred["total"], hundred["hasMore"]) == (100, 100, False)


@requirement("completion.errors")
async def test_what_is_unknown_cannot_be_completed(revision: str, transport: str) -> None:
    argument = {"name": "city", "value": "O"}
    async with connect(server(), transport, revision) as peer:
        for params in (
            {"ref": {"type": "ref/prompt", "name": "none"}, "argument": argument},
            {"ref": {"type": "ref/resource", "uri": "map://{nowhere}"}, "argument": argument},
            {"ref": {"type": "ref/resource", "uri": "trip"}, "argument": argument},
            {"ref": {"type": "ref/tool", "name": "trip"}, "argument": argument},
            {"ref": {"type": "ref/prompt"}, "argument": argument},
            {"argument": argument},
            prompt("country", "N"),
            {"ref": {"type": "ref/prompt", "name": "trip"}},
            {"ref": {"type": "ref/prompt", "name": "trip"}, "argument": {"name": "city"}},
            {"ref": {"type": "ref/prompt", "name": "trip"}, "argument": {"name": "city", "value": 5}},
            prompt("city", "O", context={"arguments": {"mode": 5}}),
        ):
            assert (await expect_error(peer.request("completion/complete", params))).code == -32602, params


@requirement("completion.capability")
async def test_completions_are_declared_where_there_are_any(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        opened = peer.initialize_result or await peer.request("server/discover")
        assert opened["capabilities"].get("completions") == (None if revision == "2024-11-05" else {})
        result = await peer.request("completion/complete", prompt("city", "R"))
        assert result["completion"]["values"] == ["Rome"]
    plain = Server("plain")
    plain.add_prompt(lambda a: a, name="free")
    async with connect(plain, transport, revision) as peer:
        opened = peer.initialize_result or await peer.request("server/discover")
        assert "completions" not in opened["capabilities"]
        params = {"ref": {"type": "ref/prompt", "name": "free"}, "argument": {"name": "a", "value": ""}}
        assert (await expect_error(peer.request("completion/complete", params))).code == -32601
