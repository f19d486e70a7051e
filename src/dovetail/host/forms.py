"""Tools as the makers of models take them, and their calls read back.

A schema is handed on as it was declared. Where a maker would refuse it, and with it the whole conversation, it is made
wider and the rest is said in the description: what was valid stays valid, and the server still checks.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dovetail.host.offers import Offered
from dovetail.protocol.profiles import RULES, refusals
from dovetail.wire.codec import encode

PROVIDERS: Final = ("openai", "anthropic", "gemini")
_COMBINED: Final = ("anyOf", "oneOf", "allOf", "not", "enum")
_MOST_SAID: Final = 400


def openai(tools: Iterable[Offered], api: str = "chat") -> list[dict[str, Any]]:
    """For chat completions, or for responses."""
    if api not in ("chat", "responses"):
        raise ValueError(f'api is "chat" or "responses", not {api!r}')
    made: list[dict[str, Any]] = []
    for one in tools:
        description, schema = _told("openai", one)
        function = {"name": one.exposed, "description": description, "parameters": schema}
        made.append({"type": "function", "function": function} if api == "chat" else {"type": "function", **function})
    return made


def anthropic(tools: Iterable[Offered]) -> list[dict[str, Any]]:
    """For messages."""
    made: list[dict[str, Any]] = []
    for one in tools:
        description, schema = _told("anthropic", one)
        made.append({"name": one.exposed, "description": description, "input_schema": schema})
    return made


def gemini(tools: Iterable[Offered]) -> list[dict[str, Any]]:
    """For generateContent."""
    made: list[dict[str, Any]] = []
    for one in tools:
        description, schema = _told("gemini", one)
        made.append({"name": one.exposed, "description": description, "parametersJsonSchema": schema})
    return [{"functionDeclarations": made}] if made else []


def findings(tools: Iterable[Offered], provider: str) -> list[tuple[str, str]]:
    """What a maker would refuse, by full name."""
    if provider not in PROVIDERS:
        raise ValueError(f"provider is one of {', '.join(PROVIDERS)}, not {provider!r}")
    return [
        (one.full, text)
        for one in tools
        for text in refusals(provider, one.exposed, one.declaration.description, one.declaration.input_schema)
    ]


def _told(provider: str, offered: Offered) -> tuple[str, dict[str, Any]]:
    declared = offered.declaration
    description, schema = declared.description or declared.title or "", dict(declared.input_schema)
    schema["type"] = "object"
    said = [f"{word}: {encode(schema.pop(word)).decode()[:_MOST_SAID]}" for word in _COMBINED if word in schema]
    schema.setdefault("properties", {})
    if RULES[provider].needs_items:
        schema = _with_items(schema, 0)
    if said:
        description = f"{description}\n\nThe arguments must also fulfil {'; '.join(said)}".strip()
    most = RULES[provider].description
    if most is not None and len(description) > most:
        description = description[: most - 1] + "…"
    return description, schema


def _with_items(schema: Any, depth: int) -> Any:
    if depth > 64:
        return schema
    if isinstance(schema, list):
        return [_with_items(one, depth + 1) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _with_items(one, depth + 1) for name, one in schema.items()}
    if made.get("type") == "array" and "items" not in made:
        made["items"] = {}
    return made


# And back.


def read_openai(call: Any) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of a call, of either interface."""
    function = _part(call, "function")
    inner = call if function is None else function
    return _name(inner), _arguments(_part(inner, "arguments"))


def read_anthropic(block: Any) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of a `tool_use` block."""
    return _name(block), _arguments(_part(block, "input"))


def read_gemini(call: Any) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of a function call, or of the part that holds one."""
    inner = _part(call, "functionCall") or _part(call, "function_call") or call
    return _name(inner), _arguments(_part(inner, "args"))


def _part(given: Any, name: str) -> Any:
    return given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)


def _name(given: Any) -> str:
    name = _part(given, "name")
    if not isinstance(name, str):
        raise ValueError("the call names no tool")
    return name


def _arguments(given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        try:
            given = json.loads(given) if given.strip() else {}
        except ValueError as exc:
            raise ValueError(f"the arguments are not JSON: {exc}") from None
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError("the arguments are not a JSON object")
    return dict(given)
