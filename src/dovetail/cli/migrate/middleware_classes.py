"""Translate middleware classes of fastmcp. Their hooks stay, and a new `__call__` selects the hook."""

from typing import Final

import libcst as cst

from dovetail.cli.migrate.edits import Edits
from dovetail.cli.migrate.usage import get_code

_METHOD_BY_HOOK: Final = {
    "on_call_tool": "tools/call",
    "on_get_prompt": "prompts/get",
    "on_read_resource": "resources/read",
}
_LIST_HOOKS: Final = ("on_list_tools", "on_list_resources", "on_list_resource_templates", "on_list_prompts")
_GENERAL_HOOKS: Final = ("on_request", "on_message", "__call__")


def translate_middleware_class(edits: Edits, node: cst.ClassDef, line: int) -> cst.ClassDef:
    """Return the class without its base class, and with a `__call__` that calls its hooks."""
    body = node.body
    assert isinstance(body, cst.IndentedBlock)
    methods = [statement for statement in body.body if isinstance(statement, cst.FunctionDef)]
    names = [method.name.value for method in methods]
    for name in names:
        if name in _LIST_HOOKS or name in ("on_notification", "on_initialize"):
            advice = "dovetail's middleware gets the whole result, such as ListToolsResult"
            edits.report(line, f"{node.name.value}.{name}", advice)
    statements = [
        statement.visit(_ContextRenamer(edits)) if statement in methods else statement for statement in body.body
    ]
    if "__call__" not in names:
        statements.append(_build_call_method(edits, names))
    return node.with_changes(
        bases=[],
        lpar=cst.MaybeSentinel.DEFAULT,
        rpar=cst.MaybeSentinel.DEFAULT,
        body=body.with_changes(body=statements),
    )


def _build_call_method(edits: Edits, names: list[str]) -> cst.BaseStatement:
    exchange = edits.import_name("dovetail.middleware.Exchange")
    call_next = edits.import_name("dovetail.middleware.CallNext")
    any_type = edits.import_name("typing.Any")
    lines = [f"async def __call__(self, exchange: {exchange}, call_next: {call_next}) -> {any_type}:"]
    for hook, method in _METHOD_BY_HOOK.items():
        if hook in names:
            lines += [
                f'    if exchange.method == "{method}":',
                f"        return await self.{hook}(exchange, call_next)",
            ]
    general = next((hook for hook in _GENERAL_HOOKS if hook in names), None)
    result = "call_next(exchange)" if general is None else f"self.{general}(exchange, call_next)"
    lines.append(f"    return await {result}")
    statement = cst.parse_statement("\n".join(lines))
    assert isinstance(statement, cst.FunctionDef)
    return statement.with_changes(leading_lines=[cst.EmptyLine(indent=False)])


class _ContextRenamer(cst.CSTTransformer):
    """Renames the attributes of fastmcp's MiddlewareContext to those of an exchange, whose params are a dict."""

    def __init__(self, edits: Edits) -> None:
        super().__init__()
        self._edits = edits

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        name, code = original_node.attr.value, get_code(original_node.value)
        if code == "context.message":
            return cst.parse_expression(f'context.params["{name}"]')
        if code == "context" and name == "message":
            return updated_node.with_changes(attr=cst.Name("params"))
        if code == "context" and name == "fastmcp_context":
            return cst.Call(self._edits.import_expression("dovetail.get_context"))
        return updated_node
