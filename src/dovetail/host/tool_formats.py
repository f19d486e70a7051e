"""Convert tools to the formats of model providers, and parse the tool calls of models.

A schema is passed on as declared. If a provider would reject the schema, some constraints are removed, and the
description lists them. Valid arguments stay valid, and the server checks the arguments of each call.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dovetail.host.catalog_item import CatalogEntry
from dovetail.schemas.provider_rules import PROVIDER_RULES, find_violations
from dovetail.wire.codec import encode

MODEL_PROVIDERS: Final = ("openai", "anthropic", "gemini")
_COMBINING_KEYWORDS: Final = ("anyOf", "oneOf", "allOf", "not", "enum")
_MAX_KEYWORD_CHARS: Final = 400


def to_openai_tools(tools: Iterable[CatalogEntry], api: str = "chat") -> list[dict[str, Any]]:
    """Return tools in the format of OpenAI's chat completions API or responses API."""
    if api not in ("chat", "responses"):
        raise ValueError(f'api must be "chat" or "responses", not {api!r}')
    definitions: list[dict[str, Any]] = []
    for tool in tools:
        description, schema = _adapt_tool("openai", tool)
        function = {"name": tool.model_name, "description": description, "parameters": schema}
        definitions.append(
            {"type": "function", "function": function} if api == "chat" else {"type": "function", **function}
        )
    return definitions


def to_anthropic_tools(tools: Iterable[CatalogEntry]) -> list[dict[str, Any]]:
    """Return tools in the format of Anthropic's messages API."""
    definitions: list[dict[str, Any]] = []
    for tool in tools:
        description, schema = _adapt_tool("anthropic", tool)
        definitions.append({"name": tool.model_name, "description": description, "input_schema": schema})
    return definitions


def to_gemini_tools(tools: Iterable[CatalogEntry]) -> list[dict[str, Any]]:
    """Return tools in the format of Gemini's generateContent API."""
    definitions: list[dict[str, Any]] = []
    for tool in tools:
        description, schema = _adapt_tool("gemini", tool)
        definitions.append({"name": tool.model_name, "description": description, "parametersJsonSchema": schema})
    return [{"functionDeclarations": definitions}] if definitions else []


def lint_tools(tools: Iterable[CatalogEntry], provider: str) -> list[tuple[str, str]]:
    """Find tools that a provider would reject. Return pairs of a full name and the reason."""
    if provider not in MODEL_PROVIDERS:
        raise ValueError(f"provider must be one of {', '.join(MODEL_PROVIDERS)}, not {provider!r}")
    return [
        (tool.full_name, text)
        for tool in tools
        for text in find_violations(
            provider, tool.model_name, tool.definition.description, tool.definition.input_schema
        )
    ]


def _adapt_tool(provider: str, entry: CatalogEntry) -> tuple[str, dict[str, Any]]:
    definition = entry.definition
    description, schema = definition.description or definition.title or "", dict(definition.input_schema)
    schema["type"] = "object"
    constraints = [
        f"{keyword}: {encode(schema.pop(keyword)).decode()[:_MAX_KEYWORD_CHARS]}"
        for keyword in _COMBINING_KEYWORDS
        if keyword in schema
    ]
    schema.setdefault("properties", {})
    if PROVIDER_RULES[provider].needs_items:
        schema = _add_missing_items(schema, 0)
    if constraints:
        description = f"{description}\n\nThe arguments must also fulfil {'; '.join(constraints)}".strip()
    max_chars = PROVIDER_RULES[provider].max_description_chars
    if max_chars is not None and len(description) > max_chars:
        description = description[: max_chars - 1] + "…"
    return description, schema


def _add_missing_items(schema: Any, depth: int) -> Any:
    if depth > 64:
        return schema
    if isinstance(schema, list):
        return [_add_missing_items(item, depth + 1) for item in schema]
    if not isinstance(schema, dict):
        return schema
    adapted = {name: _add_missing_items(member, depth + 1) for name, member in schema.items()}
    if adapted.get("type") == "array" and "items" not in adapted:
        adapted["items"] = {}
    return adapted


def parse_openai_call(call: Any) -> tuple[str, dict[str, Any]]:
    """Return the name and arguments of a tool call from OpenAI's chat completions API or responses API."""
    function = _get_member(call, "function")
    body = call if function is None else function
    return _parse_name(body), _parse_arguments(_get_member(body, "arguments"))


def parse_anthropic_call(block: Any) -> tuple[str, dict[str, Any]]:
    """Return the name and arguments of a `tool_use` block from Anthropic."""
    return _parse_name(block), _parse_arguments(_get_member(block, "input"))


def parse_gemini_call(call: Any) -> tuple[str, dict[str, Any]]:
    """Return the name and arguments of a Gemini function call. The call may be inside a part."""
    body = _get_member(call, "functionCall") or _get_member(call, "function_call") or call
    return _parse_name(body), _parse_arguments(_get_member(body, "args"))


def _get_member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _parse_name(call: Any) -> str:
    name = _get_member(call, "name")
    if not isinstance(name, str):
        raise ValueError("the call has no tool name")
    return name


def _parse_arguments(arguments: Any) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError as exc:
            raise ValueError(f"the arguments of the tool call are not valid JSON: {exc}") from None
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise ValueError("the arguments of the tool call must be a JSON object")
    return dict(arguments)
