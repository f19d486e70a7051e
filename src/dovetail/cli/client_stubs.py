"""Write the source code of a typed client for a server.

The server is untrusted. This module turns the names of a server into identifiers, and all other text into string
literals or escaped docstrings. So no text of the server becomes code.
"""

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Final

from dovetail.cli.schema_types import BUILTIN_TYPES, TypeWriter, make_class_name, make_identifier, quote
from dovetail.protocol.safe_text import escape_text
from dovetail.schemas.reader import Schema, as_object, get_mapping, get_required, resolve_schema
from dovetail.wire.prompts import Prompt
from dovetail.wire.resources import ResourceTemplate
from dovetail.wire.tools import Tool

_MAX_DESCRIPTION_LENGTH: Final = 2000
_DOCSTRING_WIDTH: Final = 100
_IMPORTED_NAMES: Final = (
    "Any",
    "Client",
    "GetPromptResult",
    "Literal",
    "NotRequired",
    "ToolError",
    "TypedDict",
    "annotations",
    "quote",
)
_QUOTES: Final = re.compile(r'"{2,}|"$')
_TEMPLATE_PART: Final = re.compile(r"\{([+]?)(\w+)\}")


def write_client(
    server_name: str, tools: Sequence[Tool], prompts: Sequence[Prompt], templates: Sequence[ResourceTemplate]
) -> str:
    """Return the source code of a class with a method for each tool, prompt and resource template."""
    types = TypeWriter(_IMPORTED_NAMES)
    class_name = make_class_name(server_name, "Server", _IMPORTED_NAMES)
    types.reserve(class_name)
    # A method with the name of a type would hide the type.
    used_names = {"client", *BUILTIN_TYPES, *(name for name in _IMPORTED_NAMES if name[0].isupper())}
    imports = {"dovetail.Client"}
    methods = [_write_tool(tool, _claim_name(tool.name, "tool", used_names), types, imports) for tool in tools]
    for prompt in prompts:
        name = _claim_name(f"get_{prompt.name}_prompt", "prompt", used_names)
        methods.append(_write_prompt(prompt, name, imports))
    for template in templates:
        if _is_simple(template.uri_template):
            name = _claim_name(f"read_{template.name}", "resource", used_names)
            methods.append(_write_template(template, name, imports))
    intro = f"Calls a server. Pass a connected client: `{class_name}(client)`."
    header = [
        f'"""A typed client for the MCP server {_escape(server_name)}. Created by `dovetail stubs`."""',
        _write_imports(imports, types),
    ]
    body = [
        f"class {class_name}:",
        f'    """{intro}"""',
        "",
        "    def __init__(self, client: Client) -> None:",
        "        self.client = client",
    ]
    for method in methods:
        body += ["", method]
    return "\n\n".join(header) + "\n\n\n" + "\n\n\n".join([*types.definitions, "\n".join(body)]) + "\n"


def _claim_name(text: str, default: str, used_names: set[str]) -> str:
    name = make_identifier(text, default, used_names)
    used_names.add(name)
    return name


def _write_imports(imports: Iterable[str], types: TypeWriter) -> str:
    lines = ["from __future__ import annotations", ""]
    typing_lines = [f"from typing import {', '.join(sorted(types.typing_names))}"] if types.typing_names else []
    if "urllib.parse.quote" in imports:
        typing_lines.append("from urllib.parse import quote")
    if typing_lines:
        lines += [*typing_lines, ""]
    dovetail_names = sorted(name.rpartition(".")[2] for name in imports if name.count(".") == 1)
    lines.append(f"from dovetail import {', '.join(dovetail_names)}")
    type_names = sorted(name.rpartition(".")[2] for name in imports if name.startswith("dovetail.types."))
    if type_names:
        lines.append(f"from dovetail.types import {', '.join(type_names)}")
    return "\n".join(lines)


def _write_tool(tool: Tool, name: str, types: TypeWriter, imports: set[str]) -> str:
    schema = resolve_schema(tool.input_schema, tool.input_schema)
    required = get_required(schema)
    properties = get_mapping(schema)
    parameters: list[_Parameter] = []
    used_names = {"self", "arguments", "result"}
    # Required parameters come first, because optional parameters have a default.
    for field in sorted(properties, key=lambda field: field not in required):
        identifier = _claim_name(field, "argument", used_names)
        field_schema = properties[field]
        code = types.write_type(field_schema, f"{name} {field}", tool.input_schema)
        parameters.append(_Parameter(field, identifier, code, field in required, as_object(field_schema)))
    result_type = (
        types.write_type(_get_result_schema(tool), f"{name} result") if tool.output_schema else types.use("Any")
    )
    lines = [_write_signature(name, parameters, result_type), *_write_docstring(tool.description, parameters)]
    types.use("Any")
    lines += _write_arguments(parameters)
    if any(parameter.field == "into" for parameter in parameters):
        # `Client.call` has its own option `into`, so the generated code uses `call_tool`.
        imports.add("dovetail.ToolError")
        lines += [
            f"result = await self.client.call_tool({quote(tool.name)}, arguments)",
            "if result.is_error:",
            "    raise ToolError(result.text)",
            "return result.data",
        ]
    else:
        lines.append(f"return await self.client.call({quote(tool.name)}, **arguments)")
    return _indent(lines)


def _get_result_schema(tool: Tool) -> Schema:
    """Return the schema of the value that `Client.call` returns for a tool.

    Servers wrap a result that is not an object in `{"result": ...}`, and `Client.call` returns the inner value. Some
    servers do not mark the schema of a wrapped result, so this function looks for the single property `result`.
    """
    schema: dict[str, Any] = tool.output_schema or {}
    if [*get_mapping(schema)] != ["result"]:
        return schema
    inner = as_object(get_mapping(schema)["result"])
    return {**inner, "$defs": get_mapping(schema, "$defs")}


class _Parameter:
    def __init__(self, field: str, identifier: str, code: str, is_required: bool, schema: Schema) -> None:
        self.field = field
        self.identifier = identifier
        self.code = code
        self.is_required = is_required
        self.schema = schema

    def write(self) -> str:
        if self.is_required:
            return f"{self.identifier}: {self.code}"
        is_nullable = self.code in ("Any", "None") or self.code.endswith("| None")
        return f"{self.identifier}: {self.code if is_nullable else f'{self.code} | None'} = None"

    def describe(self) -> str:
        """Return the description of this parameter for the docstring."""
        description = self.schema.get("description")
        parts = [description] if isinstance(description, str) and description.strip() else []
        if not self.is_required and self.schema.get("default") is not None:
            if parts and parts[0].rstrip()[-1] not in ".!?:":
                parts[0] = f"{parts[0].rstrip()}."
            parts.append(f"Defaults to {self.schema['default']!r}.")
        return " ".join(" ".join(parts).split())


def _write_signature(name: str, parameters: Sequence[_Parameter], result_type: str) -> str:
    names = ["self", *(["*"] if parameters else []), *(parameter.write() for parameter in parameters)]
    return f"async def {name}({', '.join(names)}) -> {result_type}:"


def _write_arguments(parameters: Sequence[_Parameter]) -> list[str]:
    required = ", ".join(f"{quote(each.field)}: {each.identifier}" for each in parameters if each.is_required)
    lines = [f"arguments: dict[str, Any] = {{{required}}}"]
    for parameter in parameters:
        if not parameter.is_required:
            lines += [
                f"if {parameter.identifier} is not None:",
                f"    arguments[{quote(parameter.field)}] = {parameter.identifier}",
            ]
    return lines


def _write_prompt(prompt: Prompt, name: str, imports: set[str]) -> str:
    imports.add("dovetail.types.GetPromptResult")
    used_names = {"self", "arguments"}
    parameters = [
        _Parameter(
            argument.name,
            _claim_name(argument.name, "argument", used_names),
            "str",
            bool(argument.required),
            {"description": argument.description or ""},
        )
        for argument in sorted(prompt.arguments or (), key=lambda argument: not argument.required)
    ]
    lines = [_write_signature(name, parameters, "GetPromptResult"), *_write_docstring(prompt.description, parameters)]
    lines += [line.replace("dict[str, Any]", "dict[str, str]") for line in _write_arguments(parameters)[:1]]
    lines += _write_arguments(parameters)[1:]
    lines.append(f"return await self.client.get_prompt({quote(prompt.name)}, arguments)")
    return _indent(lines)


def _is_simple(uri_template: str) -> bool:
    """Return whether all expressions in a template have the form `{name}` or `{+path}`."""
    rest = _TEMPLATE_PART.sub("", uri_template)
    return rest != uri_template and "{" not in rest and "}" not in rest


def _write_template(template: ResourceTemplate, name: str, imports: set[str]) -> str:
    imports.add("urllib.parse.quote")
    used_names = {"self", "quote"}
    parameters: dict[str, _Parameter] = {}
    parts: list[str] = []
    position = 0
    for match in _TEMPLATE_PART.finditer(template.uri_template):
        if match.start() > position:
            parts.append(quote(template.uri_template[position : match.start()]))
        variable = match[2]
        if variable not in parameters:
            identifier = _claim_name(variable, "variable", used_names)
            parameters[variable] = _Parameter(variable, identifier, "str", True, {})
        safe = "/" if match[1] else ""
        parts.append(f'quote({parameters[variable].identifier}, safe="{safe}")')
        position = match.end()
    if position < len(template.uri_template):
        parts.append(quote(template.uri_template[position:]))
    values = [*parameters.values()]
    return _indent(
        [
            _write_signature(name, values, "str | bytes | list[str | bytes]"),
            *_write_docstring(template.description, values),
            f"return await self.client.read({' + '.join(parts)})",
        ]
    )


def _write_docstring(description: str | None, parameters: Sequence[_Parameter]) -> list[str]:
    paragraphs = textwrap.dedent((description or "").strip())[:_MAX_DESCRIPTION_LENGTH].splitlines()
    lines = [line.rstrip() for line in paragraphs]
    notes = [(parameter.identifier, note) for parameter in parameters if (note := parameter.describe())]
    if notes:
        lines += ["", "Args:"] if lines else ["Args:"]
        for identifier, note in notes:
            text = f"{identifier}: {note[:_MAX_DESCRIPTION_LENGTH]}"
            lines += textwrap.wrap(text, _DOCSTRING_WIDTH, initial_indent="    ", subsequent_indent="        ")
    if not lines:
        return []
    escaped_lines = [_escape(line) for line in lines]
    if len(lines) == 1:
        return [f'"""{escaped_lines[0]}"""']
    return [f'"""{escaped_lines[0]}', *escaped_lines[1:], '"""']


def _escape(line: str) -> str:
    """Escape a line for a docstring, so that the line cannot end the docstring or contain invisible characters."""
    escaped = escape_text(line.replace("\\", "\\\\"))
    # `escape_text` escapes invisible characters, but not the quotes.
    return _QUOTES.sub(lambda match: match[0].replace('"', '\\"'), escaped)


def _indent(lines: Sequence[str]) -> str:
    first, *rest = lines
    return "\n".join([f"    {first}", *(f"        {line}" if line else "" for line in rest)])
