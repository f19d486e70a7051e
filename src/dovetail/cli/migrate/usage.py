"""Find the imports, servers, contexts, clients and handlers of mcp and fastmcp in a file."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

import libcst as cst
from libcst import metadata

from dovetail.cli.migrate.names import HIGH_LEVEL_SERVERS, LOW_LEVEL_SERVER_MODULES, PEER_PACKAGES

ObjectKind = Literal["server", "low-level server", "context", "client", "session"]

_CLIENT_SESSIONS: Final = ("ClientSession",)
_CONTEXT_FUNCTIONS: Final = ("get_context", "CurrentContext")
_ITEM_DECORATORS: Final = ("tool", "resource", "prompt")
LOW_LEVEL_DECORATORS: Final = (
    "list_tools",
    "call_tool",
    "list_resources",
    "list_resource_templates",
    "read_resource",
    "list_prompts",
    "get_prompt",
)


@dataclass
class PeerImport:
    """A name that the file imports from mcp or fastmcp."""

    local_name: str
    qualified_name: str
    line: int


@dataclass
class Usage:
    """The objects of mcp and fastmcp in a file. Each key is the code of an expression, such as `self.server`."""

    imports: dict[str, PeerImport] = field(default_factory=dict[str, PeerImport])
    objects: dict[str, ObjectKind] = field(default_factory=dict[str, ObjectKind])
    packages: dict[str, str] = field(default_factory=dict[str, str])  # the package of each object
    item_functions: set[str] = field(default_factory=set[str])
    # The handlers of low-level servers, by the name of their decorator.
    low_level_handlers: dict[str, cst.FunctionDef] = field(default_factory=dict[str, cst.FunctionDef])
    elicitations: set[str] = field(default_factory=set[str])  # the variables that contain the answer to an elicitation
    samples: set[str] = field(default_factory=set[str])  # the variables that contain a result of ctx.sample
    # The variables that contain a result of a list method of an mcp client.
    lists: set[str] = field(default_factory=set[str])
    # The code of each state key that middleware sets. Middleware sets these keys again in each request.
    request_state_keys: set[str] = field(default_factory=set[str])
    resources: set[str] = field(default_factory=set[str])  # the variables that contain a result of ctx.read_resource
    # The code of each expression whose `.contents` is read.
    contents_owners: set[str] = field(default_factory=set[str])
    plain_classes: set[str] = field(default_factory=set[str])  # classes that have no base class and no decorator
    bound_names: set[str] = field(default_factory=set[str])  # the names that the file itself defines or imports
    servers: list[str] = field(default_factory=list[str])  # the names of the variables with servers

    @property
    def is_peer_file(self) -> bool:
        return bool(self.imports)

    def is_kind(self, code: str, *kinds: ObjectKind) -> bool:
        return self.objects.get(code) in kinds


def get_peer_name(names: Collection[metadata.QualifiedName]) -> str | None:
    """Return the qualified name if one of the names belongs to a peer. Otherwise return None."""
    for qualified in names:
        is_import = qualified.source == metadata.QualifiedNameSource.IMPORT
        if is_import and qualified.name.split(".", 1)[0] in PEER_PACKAGES:
            return qualified.name
    return None


def get_code(node: cst.CSTNode) -> str:
    """Return the source code of a node."""
    return cst.Module([]).code_for_node(node)


def is_middleware_context(node: cst.CSTNode) -> bool:
    """Return whether an expression is the context of a middleware, such as `context.fastmcp_context`."""
    return isinstance(node, cst.Attribute) and node.attr.value == "fastmcp_context"


def get_object_code(node: cst.CSTNode) -> str:
    """Return the code that identifies an object. If a call returns the object, ignore the arguments of the call."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name):
        return f"{node.func.value}()"
    return get_code(node)


def get_module_name(node: cst.BaseExpression | None) -> str:
    """Return the name of an imported module."""
    return "" if node is None else get_code(node).replace(" ", "")


def get_line(visitor: cst.MetadataDependent, node: cst.CSTNode) -> int:
    """Return the line of a node in the original file."""
    position = visitor.get_metadata(metadata.PositionProvider, node)
    assert isinstance(position, metadata.CodeRange)
    return position.start.line


def strip_await(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.expression if isinstance(node, cst.Await) else node


def classify_server(qualified_name: str) -> ObjectKind | None:
    """Return the kind of server that a call of `qualified_name` creates, or None."""
    parts = qualified_name.split(".")
    if any(part in HIGH_LEVEL_SERVERS for part in parts[-2:]) or parts[-1] == "create_proxy":
        return "server"
    module, _, name = qualified_name.rpartition(".")
    return "low-level server" if name == "Server" and module in LOW_LEVEL_SERVER_MODULES else None


class UsageCollector(cst.CSTVisitor):
    """Collects the `Usage` of a file. `known_servers` contains the names of servers in the other migrated files."""

    METADATA_DEPENDENCIES: ClassVar[Collection[metadata.ProviderT]] = (
        metadata.QualifiedNameProvider,
        metadata.PositionProvider,
    )

    def __init__(self, known_servers: Collection[str] = ()) -> None:
        super().__init__()
        self.usage = Usage()
        self._known_servers = known_servers
        self._middleware_contexts: list[tuple[list[str], str]] = []  # the context variables of each function
        self._functions: list[str] = []  # the functions around the current node, from the outermost to the innermost

    def get_peer_name(self, node: cst.CSTNode) -> str | None:
        return get_peer_name(self.get_metadata(metadata.QualifiedNameProvider, node, set[metadata.QualifiedName]()))

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        module = get_module_name(node.module)
        is_peer = not node.relative and module.split(".", 1)[0] in PEER_PACKAGES
        if isinstance(node.names, cst.ImportStar):
            return False
        for alias in node.names:
            local_name = alias.evaluated_alias or alias.evaluated_name
            if is_peer:
                self._add_import(node, local_name, f"{module}.{alias.evaluated_name}")
            else:
                self.usage.bound_names.add(local_name)
                # In `from . import server`, the name `server` is a module and not a server object.
                if node.module is not None and alias.evaluated_name in self._known_servers:
                    self._add_object(local_name, "server", "fastmcp")
        return False

    def visit_Import(self, node: cst.Import) -> bool:
        for alias in node.names:
            name = alias.evaluated_name
            local_name = alias.evaluated_alias or name.split(".", 1)[0]
            if name.split(".", 1)[0] in PEER_PACKAGES:
                self._add_import(node, local_name, name if alias.evaluated_alias else local_name)
            else:
                self.usage.bound_names.add(local_name)
        return False

    def _add_import(self, node: cst.CSTNode, local_name: str, qualified_name: str) -> None:
        line = get_line(self, node)
        self.usage.imports.setdefault(local_name, PeerImport(local_name, qualified_name, line))

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            self._add_value(target.target, node.value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            self._add_value(node.target, node.value)
        self._add_annotated(get_code(node.target), node.annotation)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        self._add_value(node.target, node.value)

    def visit_WithItem(self, node: cst.WithItem) -> None:
        if node.asname is not None:
            self._add_value(node.asname.name, node.item)

    def visit_Call(self, node: cst.Call) -> None:
        function = node.func
        if not isinstance(function, cst.Attribute) or function.attr.value != "set_state" or not node.args:
            return
        is_alias = (self._functions[-1:], get_code(function.value)) in self._middleware_contexts
        if is_middleware_context(function.value) or is_alias:
            self.usage.request_state_keys.add(get_code(node.args[0].value))

    def visit_Attribute(self, node: cst.Attribute) -> None:
        if node.attr.value == "contents":
            self.usage.contents_owners.add(get_code(node.value))

    def visit_Param(self, node: cst.Param) -> None:
        self._add_annotated(node.name.value, node.annotation)

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self.usage.bound_names.add(node.name.value)
        if not node.bases and not node.decorators:
            self.usage.plain_classes.add(node.name.value)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._functions.pop()

    def visit_Return(self, node: cst.Return) -> None:
        code = "" if node.value is None else get_code(node.value)
        if self._functions and self.usage.is_kind(code, "server"):
            self._add_object(f"{self._functions[-1]}()", "server", self.usage.packages[code])

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._functions.append(node.name.value)
        self.usage.bound_names.add(node.name.value)
        self._add_annotated(f"{node.name.value}()", node.returns)
        for decorator in node.decorators:
            expression = decorator.decorator
            call = expression.func if isinstance(expression, cst.Call) else expression
            if not isinstance(call, cst.Attribute):
                continue
            owner, method = get_code(call.value), call.attr.value
            if self.usage.is_kind(owner, "server") and method in _ITEM_DECORATORS:
                self.usage.item_functions.add(node.name.value)
            if self.usage.is_kind(owner, "low-level server") and method in LOW_LEVEL_DECORATORS:
                self.usage.low_level_handlers[method] = node

    def _add_value(self, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
        code = get_code(target)
        if isinstance(target, cst.Name):
            self.usage.bound_names.add(code)
        call = strip_await(value)
        if isinstance(call, cst.Name | cst.Attribute) and (kind := self.usage.objects.get(get_code(call))):
            self._add_object(code, kind, self.usage.packages[get_code(call)])
        if is_middleware_context(call):
            self._middleware_contexts.append((self._functions[-1:], code))
            self._add_object(code, "context", "fastmcp")
        if isinstance(call, cst.Attribute) and call.attr.value == "request_context":
            self._add_object(code, "context", "mcp")
        if not isinstance(call, cst.Call):
            return
        name = self.get_peer_name(call.func)
        if name is not None:
            self._add_created(code, name)
            return
        created = get_object_code(call)
        if self.usage.is_kind(created, "server", "low-level server"):
            self._add_object(code, self.usage.objects[created], self.usage.packages[created])
        if isinstance(call.func, cst.Attribute):
            self._add_result(code, get_code(call.func.value), call.func.attr.value)

    def _add_created(self, code: str, name: str) -> None:
        package, last_name = name.split(".", 1)[0], name.rpartition(".")[2]
        if kind := classify_server(name):
            self._add_object(code, kind, package)
        elif last_name in _CLIENT_SESSIONS:
            self._add_object(code, "session", package)
        elif last_name == "Client":
            self._add_object(code, "client", package)
        elif last_name in _CONTEXT_FUNCTIONS:
            self._add_object(code, "context", package)

    def _add_result(self, code: str, owner: str, method: str) -> None:
        kind = self.usage.objects.get(owner)
        if kind == "server" and method == "get_context":
            self._add_object(code, "context", self.usage.packages[owner])
        if kind == "context" and method == "elicit":
            self.usage.elicitations.add(code)
        if kind == "context" and method == "read_resource":
            self.usage.resources.add(code)
        if kind == "context" and method == "sample":
            self.usage.samples.add(code)
        is_mcp_client = kind == "session" or (kind == "client" and self.usage.packages[owner] == "mcp")
        if is_mcp_client and method.startswith("list_"):
            self.usage.lists.add(code)

    def _add_annotated(self, code: str, annotation: cst.Annotation | None) -> None:
        name = None if annotation is None else self._find_annotated_name(annotation.annotation)
        if name is None:
            return
        package, last_name = name.split(".", 1)[0], name.rpartition(".")[2]
        if kind := classify_server(name):
            self._add_object(code, kind, package)
        elif last_name == "Context":
            self._add_object(code, "context", package)
        elif last_name in ("Client", *_CLIENT_SESSIONS):
            self._add_object(code, "client" if last_name == "Client" else "session", package)

    def _find_annotated_name(self, annotation: cst.BaseExpression) -> str | None:
        """Return the name of the class in an annotation such as `Context`, `Context | None` or `"Context[A, B]"`."""
        if isinstance(annotation, cst.SimpleString):
            text = str(annotation.evaluated_value).split("[", 1)[0].split("|", 1)[0].strip()
            return self.usage.imports[text].qualified_name if text in self.usage.imports else None
        if isinstance(annotation, cst.BinaryOperation):
            return self._find_annotated_name(annotation.left) or self._find_annotated_name(annotation.right)
        if isinstance(annotation, cst.Subscript):
            name = self.get_peer_name(annotation.value)
            if name is not None:
                return name
            for element in annotation.slice:
                if isinstance(element.slice, cst.Index) and (name := self._find_annotated_name(element.slice.value)):
                    return name
            return None
        return self.get_peer_name(annotation)

    def _add_object(self, code: str, kind: ObjectKind, package: str) -> None:
        self.usage.objects[code] = kind
        self.usage.packages[code] = package
        if kind in ("server", "low-level server") and code not in self.usage.servers and not code.endswith("()"):
            self.usage.servers.append(code)
