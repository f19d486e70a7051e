"""Test that a mock server answers the recorded methods of extensions."""

import json
from pathlib import Path

import click
import pytest

from dovetail import Client, Server
from dovetail.cli.commands.mock import create_mock_server
from dovetail.cli.target_argument import read_recording
from dovetail.errors import InvalidParams, MethodNotFound, ProtocolError, RemoteError
from dovetail.extensions import Extension, Params, Result
from dovetail.middleware import Exchange

VERSIONS = ("2025-06-18", "2026-07-28")


class SayParams(Params):
    first_name: str


class SayResult(Result):
    text: str


class Busy(ProtocolError):
    code = 4029


hello = Extension("com.example/hello", settings={"limit": 3})


@hello.method("com.example/hello/say")
async def say(params: SayParams, exchange: Exchange) -> SayResult:
    if not params.first_name:
        raise Busy("Later", {"seconds": 5})
    return SayResult(text=f"Hello, {params.first_name}.")


async def record(path: Path, version: str) -> None:
    app = Server("office", recording=path, extensions=[hello])
    app.add_skill(lambda: "# Forms\n", name="forms", description="Fill in forms.")
    async with Client(app, protocol_version=version) as client:
        await client.list_resources()
        await client.list_resource_templates()
        [skill] = await client.list_skills()
        await skill.read()
        await client.get_skill(skill.uri)
        await client.request(say, SayParams(first_name="Ada"))
        with pytest.raises(RemoteError):
            await client.request(say, SayParams(first_name=""))


@pytest.mark.parametrize("recorded", VERSIONS)
@pytest.mark.parametrize("played", VERSIONS)
async def test_recorded_methods_of_extensions_are_served(tmp_path: Path, recorded: str, played: str) -> None:
    pytest.importorskip("yaml")
    await record(tmp_path / "r.jsonl", recorded)
    app = create_mock_server(read_recording(str(tmp_path / "r.jsonl")), "r.jsonl")
    async with Client(app, protocol_version=played) as client:
        extensions = client.server_capabilities.extensions or {}
        assert extensions["com.example/hello"] == {"limit": 3}
        assert extensions["io.modelcontextprotocol/skills"] == {"directoryRead": True}
        [skill] = await client.list_skills()
        assert str(await skill.read()).endswith("# Forms\n")
        assert (await client.get_skill(skill.uri)).description == "Fill in forms."
        assert (await client.request(say, SayParams(first_name="Ada"))).text == "Hello, Ada."
        with pytest.raises(RemoteError) as caught:
            await client.request(say, SayParams(first_name=""))
        assert (caught.value.code, caught.value.data) == (Busy.code, {"seconds": 5})
        with pytest.raises(RemoteError) as caught:
            await client.request(say, SayParams(first_name="Grace"))
        assert caught.value.code == InvalidParams.code


def write_recording(path: Path, extension: str, *exchanges: tuple[str, dict[str, object]]) -> None:
    result = {"protocolVersion": "2025-06-18", "capabilities": {"extensions": {extension: {}}}}
    lines: list[dict[str, object]] = [{"recording": 2}]
    for number, (method, response) in enumerate((("initialize", {"result": result}), *exchanges)):
        lines += [
            {"at": 0, "to": "server", "message": {"id": number, "method": method, "params": {}}},
            {"at": 0, "to": "client", "message": {"id": number, **response}},
        ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def test_a_recording_with_an_invalid_extension_is_refused(tmp_path: Path) -> None:
    write_recording(tmp_path / "r.jsonl", "nonsense")
    with pytest.raises(click.UsageError, match="nonsense"):
        create_mock_server(read_recording(str(tmp_path / "r.jsonl")), "r.jsonl")


async def test_a_method_that_the_server_did_not_have_is_not_served(tmp_path: Path) -> None:
    refusal: dict[str, object] = {"error": {"code": MethodNotFound.code, "message": "unknown"}}
    write_recording(tmp_path / "r.jsonl", "com.example/hello", ("not a name", refusal), ("other/method", refusal))
    app = create_mock_server(read_recording(str(tmp_path / "r.jsonl")), "r.jsonl")
    async with Client(app) as client:
        assert client.server_capabilities.extensions == {"com.example/hello": {}}
        with pytest.raises(RemoteError) as caught:
            await client.request("other/method", {})
    assert caught.value.code == MethodNotFound.code
