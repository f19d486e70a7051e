"""Translate calls that create values: content, results, errors, messages, media and middleware."""

from collections.abc import Callable
from typing import Final

import libcst as cst

from dovetail.cli.migrate.call_arguments import CallArguments, create_arg
from dovetail.cli.migrate.edits import Edits
from dovetail.cli.migrate.names import ERROR_CLASS_BY_CODE, FIELD_NAMES, READY_MIDDLEWARE, TYPE_NAMES
from dovetail.cli.migrate.usage import get_code

_URL_CLASSES: Final = ("AnyUrl", "FileUrl", "AnyHttpUrl", "HttpUrl")
_MESSAGE_ROLES: Final = {"UserMessage": "user", "AssistantMessage": "assistant", "Message": "user"}
_MEDIA: Final = {"Image": "image", "Audio": "audio", "File": "application"}
_TYPES_WITH_FIELDS: Final = TYPE_NAMES | {"BlobResourceContents", "TextResourceContents"}


def translate_value_call(edits: Edits, call: cst.Call, qualified_name: str, line: int) -> cst.BaseExpression | None:
    """Return the new expression for a call of a peer's class or function. Return None if the call needs no change.

    The caller has already replaced the function name in `call`.
    """
    name = qualified_name.rpartition(".")[2]
    if name in ("McpError", "MCPError"):
        return _translate_error(edits, call, line)
    if name in _MESSAGE_ROLES and not qualified_name.startswith("email"):
        return _translate_message(edits, call, name)
    if name in _MEDIA:
        return _translate_media(call, name)
    if name in READY_MIDDLEWARE:
        return _create_middleware(edits, READY_MIDDLEWARE[name])
    if name in _TYPES_WITH_FIELDS:
        return rename_fields(call)
    translate = _FUNCTIONS.get(name)
    return None if translate is None else translate(edits, call, line)


def rename_fields(call: cst.Call) -> cst.Call:
    """Translate the arguments of a protocol type: use snake_case, remove `type=`, and pass URIs as strings."""
    arguments = CallArguments(call)
    arguments.pop("type")
    for old, new in FIELD_NAMES.items():
        arguments.rename(old, new)
    uri = arguments.get("uri")
    if uri is not None:
        arguments.set("uri", unwrap_url(uri))
    return arguments.apply()


def unwrap_url(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return the string inside `AnyUrl(...)`, because dovetail uses plain strings for URLs."""
    if isinstance(node, cst.Call) and get_code(node.func).rpartition(".")[2] in _URL_CLASSES and len(node.args) == 1:
        return node.args[0].value
    return node


def is_text(node: cst.BaseExpression) -> bool:
    """Return whether an expression is certainly a string."""
    if isinstance(node, cst.BinaryOperation):
        return is_text(node.left) or is_text(node.right)
    if isinstance(node, cst.Call):
        return get_code(node.func) in ("str", "json.dumps") or get_code(node.func).endswith((".format", ".join"))
    return isinstance(node, cst.SimpleString | cst.FormattedString | cst.ConcatenatedString)


def _translate_error(edits: Edits, call: cst.Call, line: int) -> cst.BaseExpression | None:
    arguments = CallArguments(call)
    data = arguments.get("error", 0)
    if isinstance(data, cst.Call) and get_code(data.func).rpartition(".")[2] == "ErrorData":
        arguments = CallArguments(data)
    code, message, details = (
        arguments.get(name, position) for position, name in enumerate(("code", "message", "data"))
    )
    if message is None:
        return None
    code_name = "" if code is None else get_code(code).rpartition(".")[2]
    class_name = ERROR_CLASS_BY_CODE.get(code_name)
    if class_name is None:
        edits.report(line, get_code(call), "define a subclass of dovetail.ProtocolError with this `code`", "check")
    function = edits.import_expression(class_name or "dovetail.ProtocolError")
    values = [message] if details is None else [message, details]
    return cst.Call(function, [cst.Arg(value) for value in values])


def _translate_message(edits: Edits, call: cst.Call, name: str) -> cst.BaseExpression | None:
    arguments = CallArguments(call)
    content = arguments.get("content", 0)
    role = arguments.get("role", 1) or cst.SimpleString(f'"{_MESSAGE_ROLES[name]}"')
    if content is None:
        return None
    if is_text(content):
        text = edits.import_expression("dovetail.TextContent")
        content = cst.Call(text, [create_arg(keyword="text", value=content)])
    elif not isinstance(content, cst.Call):
        return cst.Tuple([cst.Element(role), cst.Element(content)])
    message = edits.import_expression("dovetail.PromptMessage")
    return cst.Call(message, [create_arg(keyword="role", value=role), create_arg(keyword="content", value=content)])


def _translate_media(call: cst.Call, name: str) -> cst.BaseExpression:
    arguments = CallArguments(call)
    path, data = arguments.pop("path"), arguments.pop("data")
    source = path if data is None else data
    if source is not None:
        arguments.insert(0, source)
    media_format = arguments.pop("format")
    if isinstance(media_format, cst.SimpleString):
        arguments.append(cst.SimpleString(f'"{_MEDIA[name]}/{media_format.evaluated_value}"'), "mime_type")
    elif media_format is not None:
        arguments.append(cst.parse_expression(f'f"{_MEDIA[name]}/{{{get_code(media_format)}}}"'), "mime_type")
    return arguments.apply()


def _translate_tool_result(edits: Edits, call: cst.Call, line: int) -> cst.BaseExpression:
    arguments = CallArguments(call)
    content = arguments.pop("content", 0)
    text = edits.import_name("dovetail.TextContent")
    if content is None:
        new_content: cst.BaseExpression = cst.List([])
    elif isinstance(content, cst.List):
        new_content = content
    elif is_text(content):
        new_content = cst.List([cst.Element(cst.Call(cst.Name(text), [create_arg(keyword="text", value=content)]))])
    else:
        code = get_code(content)
        new_content = content
        edits.report(line, get_code(call), f"content= must be a list of content blocks. Check {code}", "check")
    arguments.insert(0, new_content, "content")
    return arguments.apply()


def _translate_prompt_result(_edits: Edits, call: cst.Call, _line: int) -> cst.BaseExpression:
    arguments = CallArguments(call)
    arguments.name_positional(("messages",))
    return arguments.apply()


def _translate_headers(edits: Edits, _call: cst.Call, _line: int) -> cst.BaseExpression:
    return cst.Attribute(cst.Call(edits.import_expression("dovetail.get_context")), cst.Name("headers"))


def _translate_logger(edits: Edits, call: cst.Call, _line: int) -> cst.BaseExpression:
    edits.modules.add("logging")
    return call.with_changes(func=cst.parse_expression("logging.getLogger"))


def _translate_rate_limit(edits: Edits, call: cst.Call, _line: int) -> cst.BaseExpression:
    arguments = CallArguments(call)
    rate = arguments.get("max_requests_per_second", 0) or cst.Integer("10")
    burst = arguments.get("burst_capacity", 1)
    values = [cst.Arg(rate), create_arg(keyword="per", value=cst.Integer("1"))]
    if burst is not None:
        values.append(create_arg(keyword="burst", value=burst))
    return cst.Call(edits.import_expression("dovetail.middleware.RateLimit"), values)


def _translate_retry(edits: Edits, call: cst.Call, _line: int) -> cst.BaseExpression:
    arguments = CallArguments(call)
    max_retries = arguments.get("max_retries", 0)
    values = [] if max_retries is None else [create_arg(keyword="max_retries", value=max_retries)]
    return cst.Call(edits.import_expression("dovetail.middleware.Retry"), values)


def _translate_command(edits: Edits, call: cst.Call, line: int) -> cst.BaseExpression:
    """Translate `StdioServerParameters(command=..., args=..., env=...)` to a target for `Client`."""
    arguments = CallArguments(call)
    if arguments.has_starred:
        edits.report(line, get_code(call), "pass the command and its arguments as one list")
        return call
    command, args = arguments.pop("command"), arguments.pop("args")
    for name in ("encoding", "encoding_error_handler"):
        arguments.pop(name)
    parts = ["" if command is None else get_code(command)]
    if isinstance(args, cst.List):
        parts += [get_code(element).rstrip(", \n") for element in args.elements]
    elif args is not None:
        parts.append(f"*{get_code(args)}")
    arguments.insert(0, cst.parse_expression(f"[{', '.join(parts)}]"))
    return arguments.apply(edits.import_expression("dovetail.CommandTarget"))


def _create_middleware(edits: Edits, code: str) -> cst.BaseExpression:
    edits.import_name(f"dovetail.middleware.{code.partition('(')[0]}")
    return cst.parse_expression(code)


_FUNCTIONS: Final[dict[str, Callable[[Edits, cst.Call, int], cst.BaseExpression]]] = {
    "PromptResult": _translate_prompt_result,
    "RateLimitingMiddleware": _translate_rate_limit,
    "RetryMiddleware": _translate_retry,
    "StdioServerParameters": _translate_command,
    "ToolResult": _translate_tool_result,
    "get_http_headers": _translate_headers,
    "get_logger": _translate_logger,
}
