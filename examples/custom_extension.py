"""An extension of the protocol. The server and the client share it. Run it: `python examples/custom_extension.py`."""

import asyncio

from dovetail import Client, Server
from dovetail.extensions import Extension, Params, Result
from dovetail.middleware import Exchange

hello = Extension("com.example/hello", settings={"languages": ["en", "fr"]})


class HelloParams(Params):
    name: str
    language: str = "en"


class HelloResult(Result):
    greeting: str


@hello.method("com.example/hello/say")
async def say(params: HelloParams, exchange: Exchange) -> HelloResult:
    word = {"en": "Hello", "fr": "Bonjour"}[params.language]
    return HelloResult(greeting=f"{word}, {params.name}!")


app = Server("greeter", extensions=[hello])


async def main() -> None:
    for protocol_version in ("2026-07-28", "2025-11-25"):
        async with Client(app, extensions=[hello], protocol_version=protocol_version) as client:
            result = await client.request(say, HelloParams(name="Ada", language="fr"))
            print(protocol_version, result.greeting)


if __name__ == "__main__":
    asyncio.run(main())
