"""Write the reference into a folder: a page for each public module, with signature, docstring and options of each name.

`make docs` runs this before Sphinx builds the site: python docs/reference_pages.py FOLDER

Explanations of options come from the sources:

- The parameter of a function is explained in the docstring, in an `Args:` section with one `name: explanation` each.
- The parameter of a constructor is explained in the same way, in the docstring of the class or of `__init__`.
- The field of a class is explained in a comment, on its line or above it.

`list_unexplained_options` returns the options that have no explanation yet.
"""

import ast
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

# In this order. Names that two modules export are explained on the page of the module that comes first in HOMES.
MODULES = (
    "dovetail",
    "dovetail.types",
    "dovetail.errors",
    "dovetail.auth",
    "dovetail.host",
    "dovetail.middleware",
    "dovetail.testing",
    "dovetail.agent",
    "dovetail.extensions",
    "dovetail.cluster",
)
HOMES = ("dovetail.errors", *(module for module in MODULES if module not in ("dovetail.errors", "dovetail.types")))
PROVISIONAL = {"dovetail.agent", "dovetail.cluster", "dovetail.extensions"}
# These come first on their page. All others follow in alphabetical order.
FIRST = ("Server", "Context", "Client", "SyncClient", "Host", "Policy", "Guard", "Agent", "Extension")
# The specification explains the fields of its types, and an error explains itself.
SPECIFIED = ("dovetail.wire.", "dovetail.errors")

# Options that are the same as those of another class or function, which explains them.
EXPLAINED_BY = {
    "ClientOptions": "Client",
    "Context.debug": "Context.log",
    "Context.error": "Context.log",
    "Context.info": "Context.log",
    "Context.sample": "Sample",
    "Context.warning": "Context.log",
    "Faults.corrupt": "Faults.drop",
    "Faults.delay": "Faults.drop",
    "Faults.kill": "Faults.drop",
    "Server.from_asgi": "Server.from_openapi",
    "ServerOptions": "Server",
    "SyncClient": "Client",
    "connect_sync": "connect",
}
EXPLAINED_BY_CLASS = {"AnthropicModel": "Model", "OpenAIModel": "Model", "SyncClient": "Client"}  # method by method

MAX_LINE_CHARS = 88
RUFF_LINE_CHARS = 120
MAX_DEFAULT_CHARS = 18
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
CONTEXT_MANAGERS = {"contextmanager": "with ", "asynccontextmanager": "async with "}
SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):\s*")
EXPLANATION = re.compile(r"(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)*): (?P<text>.+)")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Definition:
    """Where a public name is defined. An overloaded function has several statements."""

    name: str
    module: str
    statements: Sequence[ast.stmt]

    @property
    def value(self) -> Any:
        return getattr(importlib.import_module(self.module), self.name)


@dataclass(frozen=True)
class Source:
    body: list[ast.stmt]
    lines: list[str]


@dataclass(frozen=True)
class Parameter:
    name: str
    annotation: str = ""
    default: str = ""
    stars: str = ""
    is_keyword: bool = False

    @property
    def is_optional(self) -> bool:
        return bool(self.default) or self.is_keyword

    def __str__(self) -> str:
        text = f"{self.stars}{self.name}"
        if self.annotation:
            return f"{text}: {self.annotation}" + (f" = {self.default}" if self.default else "")
        return f"{text}={self.default}" if self.default else text


@dataclass
class Docstring:
    prose: str = ""
    explanations: dict[str, str] = field(default_factory=dict[str, str])


# Pages


def write_pages(folder: Path) -> None:
    """Write every page of the reference into a folder."""
    for page, text in create_pages(folder).items():
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")


def create_pages(folder: Path) -> dict[Path, str]:
    """Return the text of every page of the reference."""
    pages = {folder / "reference" / f"{_page_name(module)}.md": _create_page(module) for module in MODULES}
    return {folder / "reference.md": _create_overview(), **pages}


def list_unexplained_options() -> list[str]:
    """Return every option without an explanation, as `module.Name.member(option)`."""
    return [
        f"{module}.{where}({parameter.name})"
        for module in MODULES
        for definition in _list_definitions(module)
        if _find_home(definition) == module and not definition.module.startswith(SPECIFIED)
        for where, parameters, docstring in _list_options(definition)
        for parameter in parameters
        if parameter.name not in _add_explanations(where, docstring).explanations and not parameter.stars
    ]


def _create_overview() -> str:
    introduction = """\
These pages list every public name. A name is public if one of these modules exports it.
Everything else is internal and may change at any time."""
    parts = ["# Reference", introduction]
    for module in MODULES:
        parts.append(f"## [{module}](reference/{_page_name(module)}.md)")
        parts.append(_describe_module(module))
        parts.append(" · ".join(_link(definition, "reference/") for definition in _list_definitions(module)))
    return "\n\n".join(parts) + "\n"


def _create_page(module: str) -> str:
    parts = [f"# {module}", _describe_module(module)]
    elsewhere: list[Definition] = []
    for definition in _list_definitions(module):
        if _find_home(definition) == module:
            parts += _create_entry(definition)
        else:
            elsewhere.append(definition)
    if elsewhere:
        links = "\n".join(f"- {_link(definition)}" for definition in elsewhere)
        parts.append(f"## Explained on other pages\n\n`{module}` also exports these names:\n\n{links}")
    return "\n\n".join(part for part in parts if part) + "\n"


def _describe_module(module: str) -> str:
    """Return the first sentence of the module's docstring."""
    docstring = inspect.getdoc(importlib.import_module(module)) or ""
    sentence = re.split(r"(?<=\.)\s", docstring, maxsplit=1)[0].replace("\n", " ")
    sentence = sentence.removeprefix(f"{module}: ")
    note = " This module is provisional: a minor version may change it." if module in PROVISIONAL else ""
    return sentence[:1].upper() + sentence[1:] + note


def _page_name(module: str) -> str:
    return module.rpartition(".")[2]


def _link(definition: Definition, folder: str = "") -> str:
    home = _find_home(definition)
    return f"[`{definition.name}`]({folder}{_page_name(home)}.md#{definition.name.lower()})"


# Entries


def _create_entry(definition: Definition) -> Iterator[str]:
    yield f"## {definition.name}"
    statement = definition.statements[-1]
    if isinstance(statement, ast.ClassDef):
        yield from _create_class_entry(definition)
    elif isinstance(statement, Function):
        yield from _create_function_entry(definition.name, definition.statements, definition.name)
    else:
        yield _code(_fold_alias(definition.name, _get_assigned_value(statement)))
        yield read_comment(_read_source(definition.module).lines, statement)


def _create_class_entry(definition: Definition) -> Iterator[str]:
    docstring, fields = _read_class_docstring(definition)
    is_constructed = _is_constructed(definition)
    parameters = _list_constructor_parameters(definition) if is_constructed else []
    if is_constructed:
        yield _code(_fold(f"{definition.name}(", parameters, ")"))
    if bases := _link_bases(definition.value):
        yield f"Subclass of {' and '.join(bases)}."
    yield docstring.prose
    yield _create_option_table(parameters, _add_explanations(definition.name, docstring), fields)
    for name, functions in _list_methods(definition):
        yield f"### {definition.name}.{name}"
        yield from _create_function_entry(name, functions, f"{definition.name}.{name}")


def _create_function_entry(name: str, statements: Sequence[ast.stmt], where: str) -> Iterator[str]:
    functions = [statement for statement in statements if isinstance(statement, Function)]
    signatures = [function for function in functions if _has_decorator(function, "overload")] or functions[-1:]
    yield _code("\n".join(_format_function(name, function) for function in signatures))
    parameters = _list_parameters(functions[-1])
    docstring = _add_explanations(where, _read_function_docstring(functions, parameters))
    yield docstring.prose
    yield _create_option_table(parameters, docstring, "parameter")


def _create_option_table(parameters: Sequence[Parameter], docstring: Docstring, label: str) -> str:
    """Return a table of options and explanations, or nothing if there are no explanations."""
    names = [parameter.name for parameter in parameters]
    if not any(name in docstring.explanations for name in names):
        return ""
    has_defaults = any(parameter.default for parameter in parameters)
    head = [label, *(["default"] if has_defaults else []), "description"]
    rows = [head, ["---"] * len(head)]
    for parameter in parameters:
        if parameter.stars and parameter.name not in docstring.explanations:
            continue
        default = [f"`{parameter.default}`" if parameter.default else ""] if has_defaults else []
        rows.append([f"`{parameter.stars}{parameter.name}`", *default, docstring.explanations.get(parameter.name, "")])
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def _list_options(definition: Definition) -> Iterator[tuple[str, list[Parameter], Docstring]]:
    """Yield the options of a name and of its methods, with the docstring that explains them."""
    statement = definition.statements[-1]
    if isinstance(statement, ast.ClassDef):
        if _is_constructed(definition) or _is_error(definition):
            yield definition.name, _list_constructor_parameters(definition), _read_class_docstring(definition)[0]
        for name, functions in _list_methods(definition):
            parameters = _list_parameters(functions[-1])
            optional = [parameter for parameter in parameters if parameter.is_optional]
            yield f"{definition.name}.{name}", optional, _read_function_docstring(functions, parameters)
    elif isinstance(statement, Function):
        parameters = _list_parameters(statement)
        functions = [function for function in definition.statements if isinstance(function, Function)]
        yield definition.name, parameters, _read_function_docstring(functions, parameters)


def _add_explanations(where: str, docstring: Docstring) -> Docstring:
    """Add the explanations of the class or function that has the same options."""
    name, _, member = where.partition(".")
    other = EXPLAINED_BY.get(where) or (f"{EXPLAINED_BY_CLASS[name]}.{member}" if name in EXPLAINED_BY_CLASS else "")
    return Docstring(docstring.prose, {**_explain_options().get(other, {}), **docstring.explanations})


@functools.cache
def _explain_options() -> dict[str, dict[str, str]]:
    """Return the explanations of all options, by class, function or method."""
    return {
        where: docstring.explanations
        for module in MODULES
        for definition in _list_definitions(module)
        if _find_home(definition) == module
        for where, _, docstring in _list_options(definition)
    }


# Definitions


@functools.cache
def _list_definitions(module: str) -> tuple[Definition, ...]:
    names = _list_public_names(importlib.import_module(module))
    rank = {name: index for index, name in enumerate(FIRST)}
    names.sort(key=lambda name: (rank.get(name, len(FIRST)), name.lower()))
    return tuple(_find_definition(module, name) for name in names)


def _list_public_names(module: ModuleType) -> list[str]:
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and isinstance(value, type) and value.__module__ == module.__name__
    ]


@functools.cache
def _find_home(definition: Definition) -> str:
    """Return the public module whose page explains a name."""
    for module in (*HOMES, "dovetail.types"):
        if definition in _list_definitions(module):
            return module
    raise LookupError(f"{definition.name} is not public")


@functools.cache
def _find_definition(module: str, name: str) -> Definition:
    """Follow imports to the module that defines a name."""
    lazy_names: dict[str, str] = getattr(importlib.import_module(module), "_MODULE_BY_NAME", {})
    if name in lazy_names:
        return _find_definition(lazy_names[name], name)
    statements = [statement for statement in _read_source(module).body if name in _list_bound_names(statement)]
    if not statements:
        raise LookupError(f"{module} does not define {name}")
    if isinstance(statements[0], ast.ImportFrom):
        original = next(alias.name for alias in statements[0].names if name in (alias.name, alias.asname))
        return _find_definition(str(statements[0].module), original)
    return Definition(name, module, tuple(statements))


def _list_bound_names(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.ImportFrom(names=aliases):
            return [alias.asname or alias.name for alias in aliases]
        case _:
            return []


@functools.cache
def _read_source(module: str) -> Source:
    loaded = importlib.import_module(module)
    text = Path(str(loaded.__file__)).read_text(encoding="utf-8")
    return Source(_InlineDefaults(vars(loaded)).visit(ast.parse(text)).body, text.splitlines())


class _InlineDefaults(ast.NodeTransformer):
    """Replaces constants in defaults of parameters and fields by their values, if these are short."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        node.defaults = [self._inline(default) for default in node.defaults]
        node.kw_defaults = [default and self._inline(default) for default in node.kw_defaults]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = node.value and self._inline(node.value)
        return node

    def _inline(self, default: ast.expr) -> ast.expr:
        if not isinstance(default, ast.Name) or not default.id.lstrip("_").isupper():
            return default
        value = self._namespace.get(default.id)
        is_short = isinstance(value, int | float | str | tuple) and len(repr(value)) <= MAX_DEFAULT_CHARS
        return ast.parse(repr(value), mode="eval").body if is_short else default


def _list_classes(definition: Definition) -> Iterator[tuple[Source, ast.ClassDef]]:
    """Yield the source of a class and of its base classes in dovetail, in the order of the lookup."""
    for kind in _get_mro(definition.value):
        if kind.__module__.startswith("dovetail"):
            source = _read_source(kind.__module__)
            for node in source.body:
                if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
                    yield source, node


def _get_mro(kind: type) -> list[type]:
    """Return the classes that a class inherits from. The bases of a TypedDict are not in its __mro__."""
    if dict not in kind.__mro__ or not kind.__module__.startswith("dovetail"):
        return [*kind.__mro__]
    module = importlib.import_module(kind.__module__)
    nodes = [node for node in _read_source(kind.__module__).body if kind.__name__ in _list_bound_names(node)]
    bases = [vars(module)[ast.unparse(base)] for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases]
    return [kind, *(parent for base in bases if isinstance(base, type) for parent in _get_mro(base))]


def _is_error(definition: Definition) -> bool:
    return isinstance(definition.value, type) and issubclass(definition.value, BaseException)


def _link_bases(kind: type) -> list[str]:
    """Return links to the public bases of a class. An internal base is replaced by its own bases."""
    links: list[str] = []
    for base in kind.__bases__:
        if issubclass(base, BaseException) and base.__module__ == "builtins":
            links.append(f"`{base.__name__}`")
        elif (definition := _find_public_definition(base)) is not None:
            links.append(_link(definition))
        elif base.__module__.startswith("dovetail"):
            links += _link_bases(base)
    return list(dict.fromkeys(links))


def _find_public_definition(kind: type) -> Definition | None:
    for module in MODULES:
        for definition in _list_definitions(module):
            if (definition.module, definition.name) == (kind.__module__, kind.__name__):
                return definition
    return None


# Members


def _list_methods(definition: Definition) -> Iterator[tuple[str, list[Function]]]:
    """Yield the public methods and properties of a class, with those it inherits from internal classes.

    An overloaded method has several functions.
    """
    seen: set[str] = set()
    inherited = [kind for kind in _get_mro(definition.value)[1:] if _find_public_definition(kind) is not None]
    explained = [node for kind in inherited for _, node in _list_classes(_find_public_definition(kind))]
    for _, node in _list_classes(definition):
        if node in explained:
            continue
        methods: dict[str, list[Function]] = {}
        for member in node.body:
            if isinstance(member, Function) and member.name not in seen and not _is_hidden(member):
                methods.setdefault(member.name, []).append(member)
        seen.update(methods)
        yield from methods.items()


def _is_hidden(function: Function) -> bool:
    return function.name.startswith("_") or any(
        ast.unparse(decorator).endswith(".setter") for decorator in function.decorator_list
    )


def _is_constructed(definition: Definition) -> bool:
    """Return whether users create objects of a class: not of a protocol, nor if a required parameter is internal."""
    if _is_error(definition) or getattr(definition.value, "_is_protocol", False):
        return False
    if dict in definition.value.__mro__:
        return True
    parameters = inspect.signature(definition.value).parameters.values()
    return not any(
        parameter.name.startswith("_") and parameter.default is parameter.empty and parameter.kind in _POSITIONAL
        for parameter in parameters
    )


def _list_constructor_parameters(definition: Definition) -> list[Parameter]:
    for _, node in _list_classes(definition):
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and member.name in ("__init__", "__new__"):
                return _list_parameters(member)
    return _list_fields(definition)


def _list_fields(definition: Definition) -> list[Parameter]:
    """Return the fields of a struct, a dataclass or a TypedDict as parameters."""
    fields: dict[str, Parameter] = {}
    for _, node in reversed([*_list_classes(definition)]):
        for member in node.body:
            if isinstance(member, ast.AnnAssign) and "ClassVar" not in ast.unparse(member.annotation):
                name = ast.unparse(member.target)
                if name.startswith("_"):
                    continue
                default = _format_default(member.value) if member.value is not None else ""
                fields[name] = Parameter(name, _format_annotation(member.annotation), default, is_keyword=True)
    if hasattr(definition.value, "__struct_fields__") or hasattr(definition.value, "__dataclass_fields__"):
        signature = inspect.signature(definition.value).parameters.values()
        parameters = [
            _mark_keyword(fields[parameter.name], parameter.kind is parameter.KEYWORD_ONLY)
            for parameter in signature
            if parameter.name in fields
        ]
        return sorted(
            parameters, key=lambda parameter: (parameter.is_keyword, parameter.is_keyword and bool(parameter.default))
        )
    is_typed_dict = dict in getattr(definition.value, "__mro__", ())
    return [*fields.values()] if is_typed_dict else []


def _mark_keyword(parameter: Parameter, is_keyword: bool) -> Parameter:
    return Parameter(parameter.name, parameter.annotation, parameter.default, is_keyword=is_keyword)


def _list_parameters(function: Function) -> list[Parameter]:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + [*arguments.defaults]
    parameters = [_create_parameter(arg, default) for arg, default in zip(positional, defaults, strict=True)]
    if parameters and parameters[0].name in ("self", "cls"):
        del parameters[0]
    if arguments.vararg is not None and not arguments.vararg.arg.startswith("_"):
        parameters.append(_create_parameter(arguments.vararg, None, "*"))
    for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters.append(_mark_keyword(_create_parameter(arg, default), is_keyword=True))
    if arguments.kwarg is not None:
        parameters.append(_create_parameter(arguments.kwarg, None, "**"))
    return [parameter for parameter in parameters if not parameter.name.startswith("_")]


def _create_parameter(arg: ast.arg, default: ast.expr | None, stars: str = "") -> Parameter:
    annotation = _format_annotation(arg.annotation) if arg.annotation is not None else ""
    return Parameter(arg.arg, annotation, "" if default is None else _format_default(default), stars)


# Text of signatures


def _format_function(name: str, function: Function) -> str:
    returns = _format_annotation(function.returns) if function.returns is not None else ""
    if _has_decorator(function, "property") or _has_decorator(function, "cached_property"):
        return f"{name}: {returns}" if returns else name
    is_generator = any(isinstance(node, ast.Yield) for node in ast.walk(function))
    prefix = "await " if isinstance(function, ast.AsyncFunctionDef) and not is_generator else ""
    for decorator, keyword in CONTEXT_MANAGERS.items():
        if _has_decorator(function, decorator):
            prefix = keyword
            returns = re.sub(r"^\w*(?:Generator|Iterator)\[(.+?)(?:, None)*\]$", r"\1", returns)
    return _fold(f"{prefix}{name}(", _list_parameters(function), f") -> {returns}" if returns else ")")


def _fold(before: str, parameters: Sequence[Parameter], after: str) -> str:
    """Return a call on one line, or with one parameter on each line if that is too long."""
    texts = [str(parameter) for parameter in parameters]
    keywords = [index for index, parameter in enumerate(parameters) if parameter.is_keyword]
    if keywords and not any(parameter.stars == "*" for parameter in parameters):
        texts.insert(keywords[0], "*")
    line = f"{before}{', '.join(texts)}{after}"
    if len(line) <= MAX_LINE_CHARS:
        return line
    return before + "".join(f"\n    {parameter}," for parameter in texts) + f"\n{after}"


def _format_default(value: ast.expr) -> str:
    """Return the source of a default. Private names and constants are not shown."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "field":
        value = next(keyword.value for keyword in value.keywords if keyword.arg in ("default", "default_factory"))
        empty = {"dict": "{}", "list": "[]", "tuple": "()", "set": "set()"}
        return empty.get(ast.unparse(value).partition("[")[0], ast.unparse(value))
    text = ast.unparse(value).replace("* 1024 * 1024", "* MiB").replace("* 1024", "* KiB")
    text = re.sub(r"(\d+) \* ([KM]iB)", r"\1 \2", text)
    if re.fullmatch(r"[\d.]+ \* [\d.]+", text):
        return str(ast.literal_eval(text.partition(" * ")[0]) * ast.literal_eval(text.partition(" * ")[2]))
    return "..." if re.search(r"(?<![\w.\"'])(_\w|[A-Z][A-Z_]+\b)", text) else text.replace("'", '"')


def _format_annotation(annotation: ast.expr) -> str:
    return ast.unparse(_Unquote().visit(ast.parse(ast.unparse(annotation), mode="eval"))).replace("'", '"')


class _Unquote(ast.NodeTransformer):
    """Removes quotes from annotations, and modules from the names of types."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        return node if ast.unparse(node.value).rpartition(".")[2] == "Literal" else self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return ast.Name(node.attr)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return self.visit(ast.parse(node.value, mode="eval").body) if isinstance(node.value, str) else node


def _has_decorator(function: Function, name: str) -> bool:
    return any(
        ast.unparse(decorator).partition("(")[0].rpartition(".")[2] == name for decorator in function.decorator_list
    )


def _get_assigned_value(statement: ast.stmt) -> ast.expr:
    assert isinstance(statement, ast.Assign | ast.AnnAssign)
    assert statement.value is not None
    return statement.value


def _fold_alias(name: str, value: ast.expr) -> str:
    """Return the definition of a type alias, formatted as ruff does it."""
    text = f"{name} = {_format_annotation(value)}"
    if len(text) <= MAX_LINE_CHARS:
        return text
    if (
        isinstance(value, ast.Subscript)
        and isinstance(value.slice, ast.Tuple)
        and ast.unparse(value.value) == "Literal"
    ):
        lines = [f"    {ast.unparse(member)},".replace("'", '"') for member in value.slice.elts]
        return "\n".join([f"{name} = Literal[", *lines, "]"])
    if isinstance(value, ast.BinOp) and len(text) > RUFF_LINE_CHARS:
        first, *others = _format_annotation(value).split(" | ")
        return "\n".join([f"{name} = (", f"    {first}", *(f"    | {other}" for other in others), ")"])
    return text


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


# Docstrings and comments


def _read_class_docstring(definition: Definition) -> tuple[Docstring, str]:
    """Return the docstring with explanations of all parameters, and the label of its table of parameters."""
    names = {parameter.name for parameter in _list_constructor_parameters(definition)}
    docstring, label = Docstring(), "parameter"
    for source, node in reversed([*_list_classes(definition)]):
        parsed = parse_docstring(ast.get_docstring(node) or "", names)
        docstring.prose = parsed.prose or docstring.prose
        docstring.explanations |= parsed.explanations
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                docstring.explanations |= parse_docstring(ast.get_docstring(member) or "", names).explanations
            if isinstance(member, ast.AnnAssign) and ast.unparse(member.target) in names:
                label = "field"
                if comment := read_comment(source.lines, member):
                    docstring.explanations[ast.unparse(member.target)] = comment
    return docstring, label


def _read_function_docstring(functions: Sequence[Function], parameters: Sequence[Parameter]) -> Docstring:
    texts = [text for function in functions if (text := ast.get_docstring(function))]
    return parse_docstring(texts[-1] if texts else "", {parameter.name for parameter in parameters})


def read_comment(lines: Sequence[str], statement: ast.stmt) -> str:
    """Return the comment above a statement and on its last line."""
    above = statement.lineno - 1
    while above > 0 and lines[above - 1].strip().startswith("# "):
        above -= 1
    comments = [line.strip().removeprefix("# ") for line in lines[above : statement.lineno - 1]]
    beside = lines[int(statement.end_lineno or statement.lineno) - 1].partition("  # ")[2]
    return " ".join([*comments, *([beside] if beside and not beside.startswith(("noqa", "pyright", "type:")) else [])])


def parse_docstring(text: str, parameters: set[str]) -> Docstring:
    """Split a docstring into prose (Markdown) and the explanations of parameters.

    A line `name: explanation` explains a parameter outside an `Args:` section, too.
    """
    prose: list[str] = []
    explanations: dict[str, str] = {}
    section, current = "", list[str]()
    for line in text.splitlines():
        stripped = line.partition(" spec: ")[0].strip()
        if match := SECTION.fullmatch(line):
            section, current = match[1], []
            if section not in ("Args", "Attributes"):
                prose += ["", f"{section}:", ""]
        elif not stripped:
            current = []
            if section and section not in ("Args", "Attributes"):
                section = ""
            prose.append("")
        elif section in ("Raises", "Returns", "Yields") and line.startswith("    "):
            prose.append(_format_section_line(section, line))
        elif (match := EXPLANATION.fullmatch(stripped)) and _names_parameters(match["names"], parameters):
            current = [name.lstrip("*") for name in match["names"].split(", ")]
            explanations |= dict.fromkeys(current, match["text"])
        elif current:
            explanations |= {name: f"{explanations[name]} {stripped}" for name in current}
        else:
            section = section if line.startswith(" ") else ""
            prose.append(stripped if not line.startswith("    ") else line)
    return Docstring(re.sub(r"\n{3,}", "\n\n", "\n".join(prose)).strip(), explanations)


def _names_parameters(names: str, parameters: set[str]) -> bool:
    return {name.lstrip("*") for name in names.split(", ")} <= parameters


def _format_section_line(section: str, line: str) -> str:
    if section == "Raises" and not line.startswith("     "):
        name, colon, reason = line.strip().partition(": ")
        return f"- `{name}`{colon}{reason}"
    return ("  " if section == "Raises" else "") + line.strip()


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
