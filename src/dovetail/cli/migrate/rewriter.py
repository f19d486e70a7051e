"""The libcst transformer that translates a file. It finds the constructs, and other modules translate them."""

import re
from collections.abc import Collection
from typing import Any, ClassVar, Final

import libcst as cst
from libcst import matchers, metadata

from dovetail import Client, Context, Server
from dovetail.cli.migrate.call_arguments import CallArguments
from dovetail.cli.migrate.client_blocks import translate_client_block
from dovetail.cli.migrate.context_calls import (
    ANSWER_CLASS,
    is_notice,
    is_request_state,
    translate_context_call,
    translate_session_call,
)
from dovetail.cli.migrate.edits import Edits
from dovetail.cli.migrate.low_level import build_registration
from dovetail.cli.migrate.middleware_classes import HOOKS, get_context_name, translate_middleware_class
from dovetail.cli.migrate.names import (
    ERROR_CODES,
    FIELD_NAMES,
    HIGH_LEVEL_SERVERS,
    NO_EQUIVALENT,
    PEER_PACKAGES,
    get_attribute_hint,
    get_hint,
    resolve_name,
)
from dovetail.cli.migrate.server_calls import translate_constructor, translate_from_openapi, translate_server_call
from dovetail.cli.migrate.usage import (
    LOW_LEVEL_DECORATORS,
    Usage,
    classify_server,
    get_code,
    get_line,
    get_module_name,
    get_object_code,
    get_peer_name,
    is_middleware_context,
    strip_await,
)
from dovetail.cli.migrate.value_calls import translate_value_call

_ANSWER_ACTIONS: Final = {
    "AcceptedElicitation": "accept",
    "CancelledElicitation": "cancel",
    "DeclinedElicitation": "decline",
}
_LIST_FIELDS: Final = ("tools", "resources", "prompts", "resource_templates", "resourceTemplates")
_REQUEST_CONTEXT_FIELDS: Final = {"lifespan_context": "lifespan", "meta": "meta", "request_id": "request_id"}
_CLASS_BY_KIND: Final[dict[str, type]] = {"server": Server, "context": Context, "client": Client}
_IDENTIFIER: Final = re.compile(r"[A-Za-z_]\w*")
_MAX_CONSTRUCT_LENGTH: Final = 80
PLACEHOLDER: Final = "__dovetail_imports__"


class Rewriter(cst.CSTTransformer):
    """Translates one file. It adds a finding to `edits` for each construct that it cannot translate."""

    METADATA_DEPENDENCIES: ClassVar[Collection[metadata.ProviderT]] = (
        metadata.QualifiedNameProvider,
        metadata.PositionProvider,
    )

    def __init__(self, usage: Usage) -> None:
        super().__init__()
        self.usage = usage
        self.edits = Edits(usage)
        # Attributes without an equivalent, by node. If a method call is translated, its attribute is removed from here.
        self._unknown_attributes: dict[cst.CSTNode, tuple[int, str, str]] = {}
        self._awaited: set[cst.CSTNode] = set()
        self._depth = 0
        self._extra_statements: list[str] = []
        self._assigned_names: dict[cst.CSTNode, str] = {}  # the name of the variable, by assigned value
        self._middleware_hooks: dict[str, frozenset[str]] = {}  # the hooks of each middleware class in the file

    # Lookup

    def _get_peer_name(self, node: cst.CSTNode) -> str | None:
        return get_peer_name(self.get_metadata(metadata.QualifiedNameProvider, node, set[metadata.QualifiedName]()))

    def _get_line(self, node: cst.CSTNode) -> int:
        return get_line(self, node)

    def _is_context(self, node: cst.BaseExpression) -> bool:
        if self.usage.is_kind(get_code(node), "context"):
            return True
        if isinstance(node, cst.Call) and (self._get_peer_name(node.func) or "").endswith("get_context"):
            return True
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            is_method = node.func.attr.value == "get_context"
            return is_method and self.usage.is_kind(get_code(node.func.value), "server")
        return is_middleware_context(node) or _is_request_context(self.usage, node)

    def _report(self, node: cst.CSTNode, construct: cst.CSTNode, advice: str, kind: Any = "edit") -> None:
        self.edits.report(self._get_line(node), _shorten(construct), advice, kind)

    def finish(self) -> None:
        """Report the attributes that no translation has handled."""
        for line, construct, advice in self._unknown_attributes.values():
            self.edits.report(line, construct, advice)

    # Imports

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
        self._depth += 1

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.BaseSuite:
        self._depth -= 1
        return updated_node

    # Statements

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        if len(original_node.body) != 1:
            return updated_node
        original, statement = original_node.body[0], updated_node.body[0]
        if isinstance(original, cst.Import | cst.ImportFrom) and _is_peer_import(original):
            return self._replace_import(original_node, original)
        if isinstance(original, cst.Expr):
            call = strip_await(original.value)
            if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute):
                owner, method = get_code(call.func.value), call.func.attr.value
                if method == "run" and self.usage.is_kind(owner, "low-level server") and len(call.args) >= 2:
                    return self._replace_low_level_run(original_node, updated_node, owner)
                managed = _get_managed_server(call.args[0].value) if len(call.args) == 1 else None
                if method == "enter_async_context" and managed is not None:
                    self._forget_attributes("session_manager")
                    code = f"await {managed}.start()\n{owner}.push_async_callback({managed}.stop)\n"
                    return cst.FlattenSentinel([*cst.parse_module(code).body])
                if method == "initialize" and self.usage.is_kind(owner, "session"):
                    return cst.RemoveFromParent()
        if isinstance(original, cst.Assign) and isinstance(statement, cst.Assign):
            return self._replace_assignment(original, updated_node, statement)
        return self._append_statements(updated_node)

    def _replace_import(self, line: cst.SimpleStatementLine, node: cst.Import | cst.ImportFrom) -> Any:
        if self._depth == 0:
            placeholder = cst.Expr(cst.Name(PLACEHOLDER))
            return line.with_changes(body=[placeholder])
        names = [] if isinstance(node.names, cst.ImportStar) else [*node.names]
        for alias in names:
            local_name = alias.evaluated_alias or alias.evaluated_name.split(".", 1)[0]
            imported = self.usage.imports.get(local_name)
            if imported is not None and resolve_name(imported.qualified_name) is None:
                return line
        return cst.RemoveFromParent()

    def _replace_low_level_run(
        self, original: cst.SimpleStatementLine, line: cst.SimpleStatementLine, server: str
    ) -> Any:
        statements = build_registration(self.edits, server, self._get_line(original))
        serve = cst.parse_statement(f"await {server}.serve()")
        for name in ("create_initialization_options", "get_capabilities"):
            self._forget_attributes(name)
        return cst.FlattenSentinel([*statements, serve])

    def _replace_assignment(self, original: cst.Assign, line: cst.SimpleStatementLine, statement: cst.Assign) -> Any:
        target, value = original.targets[0].target, original.value
        code = get_code(value)
        if code.endswith(".create_initialization_options()"):
            self._forget_attributes("create_initialization_options")
            return cst.RemoveFromParent()
        if isinstance(target, cst.Attribute) and isinstance(target.value, cst.Attribute):
            owner, name = get_code(target.value.value), target.attr.value
            if target.value.attr.value == "settings" and self.usage.is_kind(owner, "server"):
                self._forget_attributes("settings")
                self.edits.http_options[name] = statement.value
                if not self._extra_statements and name == "log_level":
                    self.edits.http_options.pop(name)
                return cst.RemoveFromParent()
        call = value if isinstance(value, cst.Call) else None
        name = None if call is None else self._get_peer_name(call.func)
        if call is not None and name is not None and name.rpartition(".")[2] in ("create_proxy", "as_proxy"):
            return _replace_proxy(self.edits, target, line, statement)
        return self._append_statements(line)

    def _append_statements(self, line: cst.SimpleStatementLine) -> Any:
        if not self._extra_statements:
            return line
        statements = [cst.parse_statement(code) for code in self._extra_statements]
        self._extra_statements = []
        return cst.FlattenSentinel([line, *statements])

    def _forget_attributes(self, name: str) -> None:
        self._unknown_attributes = {
            node: value
            for node, value in self._unknown_attributes.items()
            if not (isinstance(node, cst.Attribute) and node.attr.value == name)
        }

    def leave_With(self, original_node: cst.With, updated_node: cst.With) -> Any:
        first = original_node.items[0].item
        if len(original_node.items) == 1 and (server := _get_managed_server(first)) is not None:
            self._forget_attributes("session_manager")
            block = cst.parse_statement(f"try:\n    pass\nfinally:\n    await {server}.stop()\n")
            assert isinstance(block, cst.Try)
            start = cst.parse_statement(f"await {server}.start()")
            return cst.FlattenSentinel([start, block.with_changes(body=updated_node.body)])
        line = self._get_line(original_node)
        return translate_client_block(self.edits, original_node, updated_node, self._get_peer_name, line)

    # Definitions

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        decorators: list[cst.Decorator] = []
        for original, decorator in zip(original_node.decorators, updated_node.decorators, strict=True):
            expression = original.decorator
            function = expression.func if isinstance(expression, cst.Call) else expression
            if isinstance(function, cst.Attribute):
                owner, method = get_code(function.value), function.attr.value
                if self.usage.is_kind(owner, "low-level server") and method in LOW_LEVEL_DECORATORS:
                    self._unknown_attributes.pop(function, None)
                    continue
                if self.usage.is_kind(owner, "server") and method == "tool":
                    decorator = self._expose_errors(original_node, decorator)
                    self._check_result(original_node)
            name = self._get_peer_name(function) or ""
            if name.endswith(".lifespan.lifespan") or name == "fastmcp.server.lifespan":
                manager = self.edits.import_expression("contextlib.asynccontextmanager")
                decorator = decorator.with_changes(decorator=manager)
            decorators.append(decorator)
        if len(decorators) < len(updated_node.decorators):
            lines = updated_node.decorators[0].leading_lines
            if not decorators and lines:
                updated_node = updated_node.with_changes(lines_after_decorators=lines)
        return updated_node.with_changes(decorators=decorators)

    def _check_result(self, function: cst.FunctionDef) -> None:
        annotation = "" if function.returns is None else get_code(function.returns.annotation).strip("\"'")
        if annotation in self.usage.plain_classes:
            advice = f"dovetail needs fields. Make {annotation} a dataclass, or remove the annotation"
            self.edits.report(self._get_line(function), f"{function.name.value} -> {annotation}", advice)

    def _expose_errors(self, function: cst.FunctionDef, decorator: cst.Decorator) -> cst.Decorator:
        """List the exceptions of a function in its decorator, because dovetail hides the text of all others."""
        finder = _RaiseFinder()
        function.body.visit(finder)
        names = sorted(name for name, node in finder.raised.items() if self._get_peer_name(node) is None)
        if not names:
            return decorator
        expression = decorator.decorator
        call = expression if isinstance(expression, cst.Call) else cst.Call(expression)
        arguments = CallArguments(call)
        if arguments.get("expose_errors") is None:
            code = names[0] if len(names) == 1 else f"({', '.join(names)})"
            arguments.append(cst.parse_expression(code), "expose_errors")
        return decorator.with_changes(decorator=arguments.apply())

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        base_names = [get_code(base.value) for base in original_node.bases]
        inherited = [self._middleware_hooks[name] for name in base_names if name in self._middleware_hooks]
        if not inherited and not any(map(self._is_middleware_base, original_node.bases)):
            self._report_foreign_middleware(original_node)
            return updated_node
        updated_node, hooks = translate_middleware_class(
            self.edits,
            original_node,
            updated_node,
            self._get_line,
            self._is_middleware_base,
            frozenset[str]().union(*inherited),
        )
        self._middleware_hooks[original_node.name.value] = hooks
        for method in matchers.findall(original_node.body, matchers.FunctionDef()):
            assert isinstance(method, cst.FunctionDef)
            context = get_context_name(method)
            if context is not None:
                # The same variable name may be used for the exchange of a hook and for the context of a tool.
                for attribute in matchers.findall(method, matchers.Attribute(matchers.Name(context))):
                    self._unknown_attributes.pop(attribute, None)
        return updated_node

    def _is_middleware_base(self, base: cst.Arg) -> bool:
        return (self._get_peer_name(base.value) or "").endswith(".Middleware")

    def _report_foreign_middleware(self, node: cst.ClassDef) -> None:
        """Report the hooks of a class with a base class in another file. The inherited `__call__` may not call them."""
        if not node.bases or not isinstance(node.body, cst.IndentedBlock):
            return
        for method in node.body.body:
            if isinstance(method, cst.FunctionDef) and method.name.value in HOOKS - {"__call__"}:
                advice = "migrate does not know the base class. Check that its `__call__` calls this hook"
                self.edits.report(self._get_line(method), f"{node.name.value}.{method.name.value}", advice)

    def leave_Param(self, original_node: cst.Param, updated_node: cst.Param) -> cst.Param:
        default = original_node.default
        name = self._get_peer_name(default.func) if isinstance(default, cst.Call) else None
        if name is not None and name.endswith("CurrentContext"):
            return updated_node.with_changes(default=cst.Name("None"))
        return updated_node.with_changes(name=original_node.name)

    def leave_Annotation(self, original_node: cst.Annotation, updated_node: cst.Annotation) -> cst.Annotation:
        annotation = updated_node.annotation
        if not isinstance(annotation, cst.SimpleString):
            return updated_node

        def rename(match: re.Match[str]) -> str:
            imported = self.usage.imports.get(match[0])
            return match[0] if imported is None else self._rename(match[0], imported.qualified_name)

        value = _IDENTIFIER.sub(rename, annotation.value)
        return updated_node.with_changes(annotation=annotation.with_changes(value=value))

    # Expressions

    def _rename(self, local_name: str, qualified_name: str) -> str:
        return self.edits.translate_name(local_name, qualified_name) or local_name

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        name = self._get_peer_name(original_node)
        imported = self.usage.imports.get(original_node.value)
        if name is None or imported is None or imported.qualified_name != name:
            return updated_node
        last_name = name.rpartition(".")[2]
        if last_name in ERROR_CODES:
            return cst.parse_expression(ERROR_CODES[last_name])
        return updated_node.with_changes(value=self._rename(original_node.value, name))

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        updated_node = updated_node.with_changes(attr=original_node.attr)
        name = self._get_peer_name(original_node)
        if name is not None and classify_server(name) is None:
            return self._translate_module_attribute(original_node, updated_node, name)
        if name is not None:
            return self.edits.translate_attribute(updated_node, name) or updated_node
        return self._translate_object_attribute(original_node, updated_node)

    def _translate_module_attribute(
        self, original: cst.Attribute, updated: cst.Attribute, name: str
    ) -> cst.BaseExpression:
        last_name = name.rpartition(".")[2]
        if last_name in ERROR_CODES:
            return cst.parse_expression(ERROR_CODES[last_name])
        translated = self.edits.translate_attribute(updated, name)
        if translated is not None:
            return translated
        alias = get_code(original.value)
        is_module = alias in self.usage.imports and self.usage.imports[alias].qualified_name in (
            "mcp.types",
            "mcp_types",
        )
        if is_module and last_name != "ErrorData":
            self._report(original, original, get_hint(name))
        return updated

    def _translate_object_attribute(self, original: cst.Attribute, updated: cst.Attribute) -> cst.BaseExpression:
        owner, attribute = get_object_code(original.value), original.attr.value
        if _is_request_context(self.usage, original):
            return cst.Call(self.edits.import_expression("dovetail.get_context"))
        translated = self._translate_value_attribute(original, updated)
        if translated is not None:
            return translated
        if self._is_context(original.value):
            return self._translate_context_attribute(original, updated)
        inner = original.value
        if isinstance(inner, cst.Attribute) and self._is_context(inner.value):
            translated = self._translate_request_attribute(inner, updated, attribute)
            if translated is not None:
                return translated
            if inner.attr.value in ("fastmcp", "mcp_server") and not hasattr(Server, attribute):
                self._note_attribute(original, "server", attribute)
        if attribute in FIELD_NAMES and attribute != "_meta":
            return updated.with_changes(attr=cst.Name(FIELD_NAMES[attribute]))
        kind = self.usage.objects.get(owner)
        if kind == "low-level server":
            kind = "server"
        if kind in ("server", "client") and not hasattr(_CLASS_BY_KIND[kind], attribute):
            self._note_attribute(original, kind, attribute)
        if kind == "server" and attribute == "completion":
            self._note_attribute(original, kind, "completion_handler")
        return updated

    def _translate_value_attribute(self, original: cst.Attribute, updated: cst.Attribute) -> cst.BaseExpression | None:
        """Translate an attribute of an item or a result. Return None for all other attributes."""
        owner, attribute = get_object_code(original.value), original.attr.value
        if attribute == "fn" and owner in self.usage.item_functions:
            return updated.value
        # fastmcp 2 and mcp use `result[0].content`. Later versions of fastmcp use `result.contents[0].content`.
        items = original.value.value if isinstance(original.value, cst.Subscript) else None
        is_resource = items is not None and get_code(items).removesuffix(".contents") in self.usage.resources
        if attribute == "content" and is_resource:
            return updated.with_changes(attr=cst.Name("text"))
        if attribute == "text" and owner in self.usage.samples:
            content = cst.Attribute(updated.value, cst.Name("content"))
            return cst.Attribute(content, cst.Name("text"))
        if attribute in _LIST_FIELDS and (owner in self.usage.lists or self._is_list_call(original.value)):
            return updated.value
        return None

    def _is_list_call(self, node: cst.BaseExpression) -> bool:
        call = strip_await(node)
        if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
            return False
        owner = get_code(call.func.value)
        is_mcp = self.usage.is_kind(owner, "session") or (
            self.usage.is_kind(owner, "client") and self.usage.packages[owner] == "mcp"
        )
        return is_mcp and call.func.attr.value.startswith("list_")

    def _translate_context_attribute(self, original: cst.Attribute, updated: cst.Attribute) -> cst.BaseExpression:
        attribute = original.attr.value
        if attribute == "lifespan_context":
            return updated.with_changes(attr=cst.Name("lifespan"))
        if attribute in ("fastmcp", "mcp_server") and len(self.usage.servers) == 1:
            return cst.parse_expression(self.usage.servers[0])
        if not hasattr(Context, attribute):
            self._note_attribute(original, "context", attribute)
        return updated

    def _translate_request_attribute(
        self, inner: cst.Attribute, updated: cst.Attribute, attribute: str
    ) -> cst.BaseExpression | None:
        """Translate an attribute of the request context, for example `ctx.request_context.lifespan_context`."""
        if inner.attr.value != "request_context" or attribute not in _REQUEST_CONTEXT_FIELDS:
            return None
        self._unknown_attributes.pop(inner, None)
        assert isinstance(updated.value, cst.Attribute)
        return cst.Attribute(updated.value.value, cst.Name(_REQUEST_CONTEXT_FIELDS[attribute]))

    def _note_attribute(self, node: cst.Attribute, kind: str, attribute: str) -> None:
        advice = get_attribute_hint(kind, attribute) or NO_EQUIVALENT
        self._unknown_attributes[node] = (self._get_line(node), _shorten(node), advice)

    def visit_Assign(self, node: cst.Assign) -> None:
        self._assigned_names[node.value] = get_code(node.targets[0].target)

    def visit_Await(self, node: cst.Await) -> None:
        self._awaited.add(node.expression)

    def leave_Await(self, original_node: cst.Await, updated_node: cst.Await) -> cst.BaseExpression:
        if is_notice(updated_node.expression) and isinstance(original_node.expression, cst.Call):
            return updated_node.expression
        if is_request_state(updated_node.expression):
            return updated_node.expression.with_changes(lpar=updated_node.lpar, rpar=updated_node.rpar)
        call = original_node.expression
        if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute):
            owner = get_code(call.func.value)
            is_fastmcp_client = self.usage.is_kind(owner, "client") and self.usage.packages[owner] == "fastmcp"
            if call.func.attr.value == "read_resource" and (is_fastmcp_client or self._is_context(call.func.value)):
                self._report(original_node, call, "each of the contents has `text` or `blob`", "check")
                names = {get_code(original_node), self._assigned_names.get(original_node)}
                if names & self.usage.contents_owners:
                    return updated_node  # fastmcp 3 and later return an object with `contents`, like dovetail.
                awaited = updated_node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
                return cst.Attribute(awaited, cst.Name("contents"))
        return updated_node

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> cst.BaseExpression:
        name = self._get_peer_name(original_node.value)
        if name is None:
            return updated_node
        if classify_server(name):
            return updated_node.value
        if name.endswith((".ServerRequestContext", ".ServerMiddleware")):
            return updated_node.value
        if name.endswith(".Context"):
            elements = updated_node.slice
            index = 1 if name.startswith("mcp.server.fastmcp") else 0
            code = get_code(elements[index].slice) if len(elements) > index else "Any"
            if code in ("Any", "None", "object") or "Session" in code:
                return updated_node.value
            element = cst.SubscriptElement(elements[index].slice)
            return updated_node.with_changes(slice=[element])
        return updated_node

    def leave_MatchClass(self, original_node: cst.MatchClass, updated_node: cst.MatchClass) -> cst.MatchClass:
        name = (self._get_peer_name(original_node.cls) or "").rpartition(".")[2]
        if name not in _ANSWER_ACTIONS:
            return updated_node
        action = cst.MatchKeywordElement(
            cst.Name("action"), cst.MatchValue(cst.SimpleString(f'"{_ANSWER_ACTIONS[name]}"'))
        )
        return updated_node.with_changes(cls=cst.Name(ANSWER_CLASS), kwds=[action, *updated_node.kwds])

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        line = self._get_line(original_node)
        name = self._get_peer_name(original_node.func)
        if name is not None:
            return self._translate_peer_call(original_node, updated_node, name, line)
        function = original_node.func
        if get_code(function) == "isinstance" and len(original_node.args) == 2:
            return self._translate_isinstance(original_node, updated_node)
        if not isinstance(function, cst.Attribute) or not isinstance(updated_node.func, cst.Attribute):
            return updated_node
        translated = self._translate_method_call(function, original_node, updated_node, line)
        if translated is None:
            return updated_node
        self._unknown_attributes.pop(function, None)
        if isinstance(function.value, cst.Attribute):
            self._unknown_attributes.pop(function.value, None)
        return translated

    def _translate_method_call(
        self, function: cst.Attribute, original: cst.Call, updated: cst.Call, line: int
    ) -> cst.BaseExpression | None:
        assert isinstance(updated.func, cst.Attribute)
        owner, method = function.value, function.attr.value
        kind = self.usage.objects.get(get_object_code(owner))
        if self._is_context(owner):
            is_awaited = original in self._awaited
            context = updated.func.value
            return translate_context_call(self.edits, updated, context, method, line, is_awaited=is_awaited)
        if isinstance(owner, cst.Attribute) and owner.attr.value == "session" and self._is_context(owner.value):
            assert isinstance(updated.func.value, cst.Attribute)
            return translate_session_call(self.edits, updated, updated.func.value.value, method)
        if kind == "server":
            return translate_server_call(self.edits, updated, method, line)
        if (
            method == "append"
            and isinstance(owner, cst.Attribute)
            and owner.attr.value == "middleware"
            and self.usage.is_kind(get_code(owner.value), "server")
        ):
            return updated.with_changes(func=updated.func.value)
        if kind == "client" and method == "call_tool":
            arguments = CallArguments(updated)
            arguments.pop("raise_on_error")
            return arguments.apply()
        return None

    def _translate_peer_call(self, original: cst.Call, updated: cst.Call, name: str, line: int) -> cst.BaseExpression:
        owner_name, _, last_name = name.rpartition(".")
        if last_name in ("from_openapi", "from_fastapi") and classify_server(owner_name):
            return translate_from_openapi(self.edits, updated, last_name, line)
        if last_name in HIGH_LEVEL_SERVERS or classify_server(name) == "low-level server":
            return self._translate_constructor(updated, last_name, line)
        return translate_value_call(self.edits, updated, name, line) or updated

    def _translate_constructor(self, updated: cst.Call, class_name: str, line: int) -> cst.Call:
        arguments = CallArguments(updated)
        tools = arguments.get("tools")
        if isinstance(tools, cst.List) and self.usage.servers:
            arguments.pop("tools")
            server = self.usage.servers[0]
            self._extra_statements += [f"{server}.add_tool({get_code(tool.value)})" for tool in tools.elements]
        return translate_constructor(self.edits, arguments.apply(), class_name, line)

    def _translate_isinstance(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        name = (self._get_peer_name(original.args[1].value) or "").rpartition(".")[2]
        if name not in _ANSWER_ACTIONS:
            return updated
        return cst.parse_expression(f'{get_code(updated.args[0].value)}.action == "{_ANSWER_ACTIONS[name]}"')


class _RaiseFinder(cst.CSTVisitor):
    """Finds the exceptions in the `raise` statements of a function. It ignores nested functions and classes."""

    def __init__(self) -> None:
        super().__init__()
        self.raised: dict[str, cst.BaseExpression] = {}

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        return False

    def visit_Raise(self, node: cst.Raise) -> None:
        if isinstance(node.exc, cst.Call) and (name := get_code(node.exc.func)).rpartition(".")[2][:1].isupper():
            self.raised[name] = node.exc.func


def _is_request_context(usage: Usage, node: cst.BaseExpression) -> bool:
    """Return whether an expression is `server.request_context` of a low-level server."""
    return (
        isinstance(node, cst.Attribute)
        and node.attr.value == "request_context"
        and usage.is_kind(get_code(node.value), "low-level server")
    )


def _get_managed_server(node: cst.BaseExpression) -> str | None:
    """Return the server in an expression such as `mcp.session_manager.run()`."""
    code = get_code(node)
    return code.removesuffix(".session_manager.run()") if code.endswith(".session_manager.run()") else None


def _replace_proxy(
    edits: Edits, target: cst.BaseExpression, line: cst.SimpleStatementLine, statement: cst.Assign
) -> Any:
    assert isinstance(statement.value, cst.Call)
    arguments = CallArguments(statement.value)
    backend = arguments.pop("backend", 0) or arguments.pop("target", 0)
    name = arguments.get("name") or cst.SimpleString('"proxy"')
    if backend is None:
        return line
    server = edits.import_expression("dovetail.Server")
    code = get_code(target)
    backend_code = get_code(backend)
    if not edits.usage.is_kind(backend_code, "server", "client"):
        client = edits.import_name("dovetail.Client")
        backend_code = f"{client}({backend_code})"
    assignment = statement.with_changes(value=cst.Call(server, [cst.Arg(name)]))
    mount = cst.parse_statement(f"{code}.mount({backend_code})")
    return cst.FlattenSentinel([line.with_changes(body=[assignment]), mount])


def _is_peer_import(node: cst.Import | cst.ImportFrom) -> bool:
    if isinstance(node, cst.ImportFrom):
        return not node.relative and get_module_name(node.module).split(".", 1)[0] in PEER_PACKAGES
    return all(alias.evaluated_name.split(".", 1)[0] in PEER_PACKAGES for alias in node.names)


def _shorten(node: cst.CSTNode) -> str:
    code = " ".join(get_code(node).split())
    return code if len(code) <= _MAX_CONSTRUCT_LENGTH else f"{code[: _MAX_CONSTRUCT_LENGTH - 1]}…"
