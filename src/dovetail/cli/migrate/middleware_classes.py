"""Translate middleware classes of fastmcp.

The class keeps its hooks. A new `__call__` method calls the hooks in the same order as fastmcp.
"""

from collections.abc import Callable, Collection
from typing import Final

import libcst as cst
from libcst import matchers

from dovetail.cli.migrate.edits import Edits
from dovetail.cli.migrate.usage import get_code

_METHOD_BY_HOOK: Final = {
    "on_call_tool": "tools/call",
    "on_get_prompt": "prompts/get",
    "on_read_resource": "resources/read",
    "on_list_tools": "tools/list",
    "on_list_resources": "resources/list",
    "on_list_resource_templates": "resources/templates/list",
    "on_list_prompts": "prompts/list",
    "on_discover": "server/discover",
}
_GENERAL_HOOKS: Final = ("on_message", "on_request")  # in the order in which fastmcp calls them
HOOKS: Final = frozenset(("__call__", "on_initialize", "on_notification", *_GENERAL_HOOKS, *_METHOD_BY_HOOK))
_LIST_ADVICE: Final = (
    "call_next returns the encoded list as bytes, so a hook that changes the list fails. Use visible_to= of the items"
)
_GENERAL_ADVICE: Final = "it does not run for notifications, initialize and ping"
_ADVICE_BY_HOOK: Final = {
    "on_initialize": "dovetail never calls this hook, because initialize does not pass through middleware",
    "on_notification": "dovetail never calls this hook. Use @app.on_notification(method)",
}
_REQUIRED_FIELDS: Final = ("name", "uri")
_EXCHANGE_FIELDS: Final = ("message", "method", "fastmcp_context", "params", "meta", "extra", "caller", "headers")


def translate_middleware_class(
    edits: Edits,
    original: cst.ClassDef,
    updated: cst.ClassDef,
    get_line: Callable[[cst.CSTNode], int],
    is_middleware_base: Callable[[cst.Arg], bool],
    inherited_hooks: Collection[str],
) -> tuple[cst.ClassDef, frozenset[str]]:
    """Add a `__call__` method that calls the hooks of a class. Return the new class and the names of its hooks.

    The new class does not inherit from the fastmcp base class. `inherited_hooks` names the hooks of base classes in
    the same file.
    """
    body, original_body = updated.body, original.body
    if not isinstance(body, cst.IndentedBlock) or not isinstance(original_body, cst.IndentedBlock):
        return updated, frozenset(inherited_hooks)
    own_hooks: set[str] = set()
    contexts: dict[str, str] = {}  # the name of the context parameter of each method
    for method in original_body.body:
        if not isinstance(method, cst.FunctionDef) or (context := get_context_name(method)) is None:
            continue
        contexts[method.name.value] = context
        if method.name.value in HOOKS:
            own_hooks.add(method.name.value)
            _report_hook(edits, original.name.value, method, get_line)
        _report_body(edits, f"{original.name.value}.{method.name.value}", method, context, get_line)
    statements: list[cst.BaseStatement] = [
        statement.visit(_ContextRenamer(edits, contexts[statement.name.value]))  # pyright: ignore[reportAssignmentType]
        if isinstance(statement, cst.FunctionDef) and statement.name.value in contexts
        else statement
        for statement in body.body
    ]
    hooks = frozenset((*own_hooks, *inherited_hooks))
    if "__call__" not in hooks:
        statements.append(_build_call_method(edits, hooks))
    bases = [new for old, new in zip(original.bases, updated.bases, strict=True) if not is_middleware_base(old)]
    changes = {} if bases else {"lpar": cst.MaybeSentinel.DEFAULT, "rpar": cst.MaybeSentinel.DEFAULT}
    if bases:
        bases[-1] = bases[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return updated.with_changes(bases=bases, body=body.with_changes(body=statements), **changes), hooks


def get_context_name(method: cst.FunctionDef) -> str | None:
    """Return the name of the context parameter.

    In a hook, it is the parameter after `self`. In other methods, its annotation or its usual name identifies it.
    """
    parameters = [*method.params.posonly_params, *method.params.params, *method.params.kwonly_params]
    if method.name.value in HOOKS:
        return parameters[1].name.value if len(parameters) > 1 else "context"
    for parameter in parameters:
        annotation = "" if parameter.annotation is None else get_code(parameter.annotation.annotation)
        if "MiddlewareContext" in annotation or (not annotation and parameter.name.value == "context"):
            return parameter.name.value
    return None


def _report_hook(
    edits: Edits, class_name: str, method: cst.FunctionDef, get_line: Callable[[cst.CSTNode], int]
) -> None:
    name = method.name.value
    construct = f"{class_name}.{name}"
    if name in _ADVICE_BY_HOOK:
        edits.report(get_line(method), construct, _ADVICE_BY_HOOK[name])
    elif name.startswith("on_list_"):
        edits.report(get_line(method), construct, _LIST_ADVICE)
    elif name in (*_GENERAL_HOOKS, "__call__"):
        edits.report(get_line(method), construct, _GENERAL_ADVICE, "check")


def _report_body(
    edits: Edits, construct: str, method: cst.FunctionDef, context: str, get_line: Callable[[cst.CSTNode], int]
) -> None:
    super_call = matchers.Attribute(matchers.Call(matchers.Name("super")), matchers.Name())
    for node in matchers.findall(method, super_call):
        assert isinstance(node, cst.Attribute)
        if node.attr.value in HOOKS:
            edits.report(get_line(node), get_code(node), "dovetail has no base class. Call `await call_next(...)`")
    for node in matchers.findall(method, matchers.Attribute(matchers.Name(context), matchers.Name())):
        assert isinstance(node, cst.Attribute)
        if node.attr.value not in _EXCHANGE_FIELDS:
            edits.report(get_line(node), get_code(node), "an Exchange does not have it")
    message = matchers.Attribute(matchers.Name(context), matchers.Name("message"))
    translated = matchers.findall(
        method,
        matchers.Attribute(value=message)
        | matchers.Assign(value=message)
        | matchers.Call(matchers.Name("getattr") | matchers.Name("hasattr")),
    )
    known = {id(child) for node in translated for child in matchers.findall(node, message)}
    for node in matchers.findall(method, message):
        if id(node) not in known:
            edits.report(get_line(node), get_code(node), "it is now a dict, and not an object", "check")
    for node in matchers.findall(method, matchers.Try()):
        assert isinstance(node, cst.Try)
        if matchers.findall(node.body, matchers.Call(matchers.Name("call_next"))):
            advice = "call_next returns the error of a tool as a result with is_error, and sets exchange.exception"
            edits.report(get_line(node), f"try in {construct}", advice, "check")


def _build_call_method(edits: Edits, hooks: Collection[str]) -> cst.BaseStatement:
    exchange = edits.import_name("dovetail.middleware.Exchange")
    call_next = edits.import_name("dovetail.middleware.CallNext")
    any_type = edits.import_name("typing.Any")
    lines = [f"async def __call__(self, exchange: {exchange}, call_next: {call_next}) -> {any_type}:"]
    general = [hook for hook in _GENERAL_HOOKS if hook in hooks]
    for hook, method in _METHOD_BY_HOOK.items():
        if hook in hooks:
            lines.append(f'    if exchange.method == "{method}":')
            if general:
                lines.append(f"        call_next = {_nest(edits, hook)}")
            else:
                lines.append(f"        return await self.{hook}(exchange, call_next)")
    lines += [f"    call_next = {_nest(edits, hook)}" for hook in reversed(general[1:])]
    lines.append(f"    return await {f'self.{general[0]}(exchange, call_next)' if general else 'call_next(exchange)'}")
    statement = cst.parse_statement("\n".join(lines))
    assert isinstance(statement, cst.FunctionDef)
    return statement.with_changes(leading_lines=[cst.EmptyLine(indent=False)])


def _nest(edits: Edits, hook: str) -> str:
    return f"{edits.import_name('functools.partial')}(self.{hook}, call_next=call_next)"


class _ContextRenamer(cst.CSTTransformer):
    """Replaces the attributes of fastmcp's MiddlewareContext with the attributes of a dovetail exchange."""

    def __init__(self, edits: Edits, context: str) -> None:
        super().__init__()
        self._edits = edits
        self._context = context
        self._messages = {f"{context}.message"}  # the code that refers to the message

    def visit_Assign(self, node: cst.Assign) -> None:
        if get_code(node.value) in self._messages:
            self._messages |= {get_code(target.target) for target in node.targets}

    def leave_AssignTarget(self, original_node: cst.AssignTarget, updated_node: cst.AssignTarget) -> cst.AssignTarget:
        return updated_node.with_changes(target=_make_assignable(updated_node.target))

    def leave_AugAssign(self, original_node: cst.AugAssign, updated_node: cst.AugAssign) -> cst.AugAssign:
        return updated_node.with_changes(target=_make_assignable(updated_node.target))

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Translate `getattr` and `hasattr` on `context.message`, because the params of an exchange are a dict."""
        function, args = get_code(original_node.func), [get_code(arg.value) for arg in original_node.args]
        if function not in ("getattr", "hasattr") or len(args) < 2 or args[0] not in self._messages:
            return updated_node
        params = get_code(updated_node.args[0].value)
        if function == "hasattr":
            return cst.parse_expression(f"({args[1]} in {params})")
        default = f", {get_code(updated_node.args[2].value)}" if len(args) > 2 else ""
        return cst.parse_expression(f"{params}.get({args[1]}{default})")

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        name, code = original_node.attr.value, get_code(original_node.value)
        if code in self._messages:
            if name == "meta":
                return cst.parse_expression(f"{self._context}.meta")
            params = get_code(updated_node.value)
            field = f'["{name}"]' if name in _REQUIRED_FIELDS else f'.get("{name}")'
            return cst.parse_expression(f"{params}{field}")
        if code == self._context and name == "message":
            return updated_node.with_changes(attr=cst.Name("params"))
        if code == self._context and name == "fastmcp_context":
            return cst.Call(self._edits.import_expression("dovetail.get_context"))
        return updated_node


def _make_assignable(target: cst.BaseExpression) -> cst.BaseExpression:
    """Turn `params.get("arguments")` into `params["arguments"]`, because code cannot assign to a call."""
    if isinstance(target, cst.Call) and isinstance(target.func, cst.Attribute):
        return cst.parse_expression(f"{get_code(target.func.value)}[{get_code(target.args[0].value)}]")
    return target
