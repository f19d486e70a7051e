"""Translate low-level servers of mcp 1.

The new code calls the list handlers before the server runs, and registers the listed tools, resources and prompts.
"""

from typing import Final

import libcst as cst

from dovetail.cli.migrate.edits import Edits
from dovetail.cli.migrate.usage import get_code

_ADD_TOOLS: Final = """\
for tool in await {list_tools}():
    {server}.add_tool(
        functools.partial({call_tool}, tool.name),
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=tool.annotations,
        expose_errors=Exception,
    )
"""
_ADD_RESOURCES: Final = """\
for resource in await {list_resources}():
    {server}.add_resource(
        functools.partial({read_resource}, {uri}),
        resource.uri,
        name=resource.name,
        title=resource.title,
        description=resource.description,
        mime_type=resource.mime_type,
        expose_errors=Exception,
    )
"""
_ADD_PROMPTS: Final = """\
for prompt in await {list_prompts}():
    {server}.add_prompt(
        create_prompt({get_prompt}, prompt), name=prompt.name, title=prompt.title, description=prompt.description
    )
"""
_CREATE_PROMPT: Final = '''\
def create_prompt(get_prompt: Any, prompt: Prompt) -> Any:
    """Return a function with the arguments of a prompt as its parameters."""

    async def get(**arguments: str | None) -> Any:
        return await get_prompt(prompt.name, {name: value for name, value in arguments.items() if value is not None})

    arguments = prompt.arguments or []
    get.__annotations__ = {
        argument.name: Annotated[str if argument.required else str | None, argument.description or ""]
        for argument in arguments
    }
    get.__signature__ = inspect.Signature(
        inspect.Parameter(
            argument.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if argument.required else None,
            annotation=get.__annotations__[argument.name],
        )
        for argument in arguments
    )
    return get
'''


def build_registration(edits: Edits, server: str, line: int) -> list[cst.BaseStatement]:
    """Return the statements that register all items that the list handlers of a low-level server return."""
    handlers = edits.usage.low_level_handlers
    names = {method: function.name.value for method, function in handlers.items()}
    code = ""
    if "list_tools" in names and "call_tool" in names:
        edits.modules.add("functools")
        code += _ADD_TOOLS.format(server=server, **names)
    if "list_resources" in names and "read_resource" in names:
        edits.modules.add("functools")
        uri = "AnyUrl(resource.uri)" if _takes_url(handlers["read_resource"]) else "resource.uri"
        code += _ADD_RESOURCES.format(server=server, uri=uri, **names)
    if "list_prompts" in names and "get_prompt" in names:
        edits.modules.add("inspect")
        edits.import_name("typing.Annotated")
        edits.import_name("typing.Any")
        edits.import_name("dovetail.types.Prompt")
        edits.helpers["create_prompt"] = _CREATE_PROMPT
        code += _ADD_PROMPTS.format(server=server, **names)
    if "list_resource_templates" in names:
        edits.report(line, names["list_resource_templates"], "register a function with @app.resource(template)")
    return [*cst.parse_module(code).body]


def _takes_url(function: cst.FunctionDef) -> bool:
    parameters = function.params.params
    annotation = parameters[0].annotation if parameters else None
    return annotation is not None and "AnyUrl" in get_code(annotation.annotation)
