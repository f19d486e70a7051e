"""Translate method calls on a context, such as `ctx.info(...)`."""

from typing import Final

import libcst as cst

from dovetail.cli.migrate.call_arguments import CallArguments
from dovetail.cli.migrate.edits import Edits
from dovetail.cli.migrate.usage import get_code, is_middleware_context

ANSWER_CLASS: Final = "ElicitationAnswer"
_ASK_FUNCTION: Final = "ask_user"
_ASK_HELPERS: Final = {
    ANSWER_CLASS: f'''\
@dataclass
class {ANSWER_CLASS}:
    """The answer of the user. The action is "accept", "decline" or "cancel"."""

    action: str
    data: Any = None
''',
    _ASK_FUNCTION: f'''\
async def {_ASK_FUNCTION}(ctx: Context, message: str, form: Any) -> {ANSWER_CLASS}:
    """Ask the user, and return the answer instead of raising an exception if the user declines."""
    try:
        return {ANSWER_CLASS}("accept", await ctx.elicit(message, form))
    except ElicitationDeclined:
        return {ANSWER_CLASS}("decline")
    except ElicitationCancelled:
        return {ANSWER_CLASS}("cancel")
''',
}
_LEVELS: Final = ("debug", "info", "warning", "error")
_LIST_NOTICES: Final = {
    "send_prompt_list_changed": "notify_prompts_changed",
    "send_resource_list_changed": "notify_resources_changed",
    "send_tool_list_changed": "notify_tools_changed",
    "notify_prompts_changed": "notify_prompts_changed",
    "notify_resources_changed": "notify_resources_changed",
    "notify_tools_changed": "notify_tools_changed",
}
_RESOURCE_NOTICES: Final = ("send_resource_updated", "notify_resource_updated")


def translate_context_call(
    edits: Edits, call: cst.Call, context: cst.BaseExpression, method: str, line: int, *, is_awaited: bool
) -> cst.BaseExpression | None:
    """Return the new expression for a method call on a context. Return None if the call needs no change."""
    arguments = CallArguments(call)
    match method:
        case "report_progress":
            return arguments.apply(cst.Attribute(context, cst.Name("progress")))
        case "elicit":
            return _translate_elicit(edits, arguments, context, line)
        case "elicit_url":
            advice = "it returns nothing, and raises ElicitationDeclined or ElicitationCancelled"
            edits.report(line, "ctx.elicit_url", advice)
            return None
        case "log":
            return _translate_log(edits, arguments, context)
        case "sample":
            arguments.unname("messages")
            return arguments.apply()
        case "set_state" | "get_state" | "delete_state":
            return _translate_state(edits, arguments, context, method, line, is_awaited=is_awaited)
        case _ if method in _LEVELS:
            return _translate_message(edits, arguments, context, method)
        case _:
            return _translate_notice(edits, arguments, method)


def translate_session_call(
    edits: Edits, call: cst.Call, context: cst.BaseExpression, method: str
) -> cst.BaseExpression | None:
    """Return the new expression for a call such as `ctx.session.create_message(...)`."""
    arguments = CallArguments(call)
    match method:
        case "create_message":
            arguments.unname("messages")
            arguments.pop("related_request_id")
            return arguments.apply(cst.Attribute(context, cst.Name("sample")))
        case "send_log_message":
            arguments.pop("related_request_id")
            arguments.name_positional(("level", "data", "logger"))
            return arguments.apply(cst.Attribute(context, cst.Name("log")))
        case "send_progress_notification":
            arguments.pop("progress_token", 0)
            arguments.pop("related_request_id")
            return arguments.apply(cst.Attribute(context, cst.Name("progress")))
        case _:
            return _translate_notice(edits, arguments, method)


def _get_attribute(context: cst.BaseExpression, *names: str) -> cst.BaseExpression:
    expression = context
    for name in names:
        expression = cst.Attribute(expression, cst.Name(name))
    return expression


def _translate_state(
    edits: Edits, arguments: CallArguments, context: cst.BaseExpression, method: str, line: int, *, is_awaited: bool
) -> cst.BaseExpression | None:
    """Translate session state to `session_state`, and request state to `extra`."""
    key, value = arguments.get("key", 0), arguments.get("value", 1)
    if key is None or (method == "set_state" and value is None):
        edits.report(line, f"ctx.{method}", "use ctx.user_state, or ctx.extra for the values of one request")
        return None
    serializable = arguments.pop("serializable")
    is_in_middleware = is_middleware_context(context)
    comes_from_middleware = is_in_middleware or get_code(key) in edits.usage.request_state_keys
    lasts_for_one_request = not is_awaited or (serializable is not None and get_code(serializable) == "False")
    if lasts_for_one_request:
        advice = None
    elif comes_from_middleware:
        advice = "the value now lasts for one request, and not for the session"
    else:
        advice = "it fails for stateless clients, which have no session. Use ctx.user_state, or ctx.extra for one call"
    if advice is not None:
        edits.report(line, f"ctx.{method}({get_code(key)})", advice, "check")
    if not lasts_for_one_request and not comes_from_middleware:
        return arguments.apply(_get_attribute(context, "session_state", method.removesuffix("_state")))
    if is_in_middleware:
        assert isinstance(context, cst.Attribute)
        context = context.value
    if method == "set_state":
        assert value is not None
        return cst.Call(_get_attribute(context, "extra", "update"), [cst.Arg(cst.Dict([cst.DictElement(key, value)]))])
    if method == "get_state":
        return cst.Call(_get_attribute(context, "extra", "get"), [cst.Arg(key)])
    return cst.Call(_get_attribute(context, "extra", "pop"), [cst.Arg(key), cst.Arg(cst.Name("None"))])


def is_request_state(call: cst.BaseExpression) -> bool:
    """Return whether a call reads or changes `extra`. Code must not await the call, because `extra` is a dict."""
    return (
        isinstance(call, cst.Call)
        and isinstance(call.func, cst.Attribute)
        and call.func.attr.value in ("get", "pop", "update")
        and isinstance(call.func.value, cst.Attribute)
        and call.func.value.attr.value == "extra"
    )


def _translate_elicit(
    edits: Edits, arguments: CallArguments, context: cst.BaseExpression, line: int
) -> cst.BaseExpression | None:
    message = arguments.get("message", 0)
    form = arguments.get("schema") or arguments.get("response_type", 1)
    if message is None:
        return None
    if form is None or get_code(form) == "None":
        form = cst.Name("bool")
        edits.report(line, "ctx.elicit without a form", "the user now answers yes or no. Choose another form", "check")
    if isinstance(form, cst.List):
        edits.import_name("typing.Literal")
        elements = ", ".join(get_code(element.value) for element in form.elements)
        form = cst.parse_expression(f"Literal[{elements}]")
    elif isinstance(form, cst.Dict):
        edits.report(line, get_code(form), "write the choices as Literal[...], or pass a JSON Schema")
    edits.helpers |= _ASK_HELPERS
    edits.import_name("dataclasses.dataclass")
    edits.import_name("typing.Any")
    for name in ("Context", "ElicitationCancelled", "ElicitationDeclined"):
        edits.import_name(f"dovetail.{name}")
    for name in ("schema", "response_type"):
        arguments.rename(name, "form")
    arguments.pop("form", 1)
    arguments.append(form, "form" if arguments.get("message") is not None else None)
    arguments.insert(0, context)
    return arguments.apply(cst.Name(_ASK_FUNCTION))


def _translate_message(
    edits: Edits, arguments: CallArguments, context: cst.BaseExpression, method: str
) -> cst.BaseExpression:
    message = arguments.pop("message", 0)
    extra = arguments.pop("extra")
    arguments.rename("logger_name", "logger")
    if message is not None:
        arguments.insert(0, _add_extra(edits, context, message, extra))
    return arguments.apply(cst.Attribute(context, cst.Name(method)))


def _translate_log(edits: Edits, arguments: CallArguments, context: cst.BaseExpression) -> cst.BaseExpression:
    # In mcp, the first argument is the level. In fastmcp, the first argument is the message.
    is_mcp = edits.usage.packages.get(get_code(context)) == "mcp"
    names = ("level", "message") if is_mcp else ("message", "level")
    level = arguments.pop("level", names.index("level")) or cst.SimpleString('"info"')
    message = arguments.pop("message", 0)
    arguments.rename("logger_name", "logger")
    extra = arguments.pop("extra")
    arguments.insert(0, level)
    if message is not None:
        arguments.insert(1, _add_extra(edits, context, message, extra))
    return arguments.apply()


def _add_extra(
    edits: Edits, context: cst.BaseExpression, message: cst.BaseExpression, extra: cst.BaseExpression | None
) -> cst.BaseExpression:
    """Return the data of a log message. Combine message and `extra` in the same way as mcp or fastmcp does."""
    if extra is None or get_code(extra) == "None":
        return message
    if edits.usage.packages.get(get_code(context)) == "mcp":
        return cst.parse_expression(f'{{"message": {get_code(message)}, **{get_code(extra)}}}')
    return cst.parse_expression(f'{{"msg": {get_code(message)}, "extra": {get_code(extra)}}}')


def _translate_notice(edits: Edits, arguments: CallArguments, method: str) -> cst.BaseExpression | None:
    """Translate a change notice to a call on the server, because a dovetail context does not send change notices."""
    if len(edits.usage.servers) != 1:
        return None
    server = cst.parse_expression(edits.usage.servers[0])
    if method in _LIST_NOTICES:
        return cst.Call(cst.Attribute(server, cst.Name(_LIST_NOTICES[method])))
    if method in _RESOURCE_NOTICES:
        uri = arguments.get("uri", 0)
        if uri is None:
            return None
        text = uri if isinstance(uri, cst.SimpleString | cst.FormattedString) else _to_text(uri)
        return cst.Call(cst.Attribute(server, cst.Name("notify_resource_updated")), [cst.Arg(text)])
    return None


def _to_text(uri: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(uri, cst.Call) and get_code(uri.func) == "AnyUrl" and len(uri.args) == 1:
        return uri.args[0].value
    return cst.Call(cst.Name("str"), [cst.Arg(uri)])


def is_notice(call: cst.BaseExpression) -> bool:
    """Return whether a call uses `mount` or sends a change notice. These methods of `Server` are not coroutines."""
    return (
        isinstance(call, cst.Call)
        and isinstance(call.func, cst.Attribute)
        and call.func.attr.value in ("mount", "notify_resource_updated", *_LIST_NOTICES.values())
    )
