"""Translate server constructors, and method calls on servers."""

import re
from collections.abc import Mapping
from typing import Final

import libcst as cst

from dovetail.cli.migrate.call_arguments import COMMA, CallArguments
from dovetail.cli.migrate.edits import Edits
from dovetail.cli.migrate.names import (
    HTTP_OPTIONS,
    HTTP_OPTIONS_OF_SERVER,
    HTTP_TRANSPORTS,
    ITEM_OPTIONS,
    SERVER_OPTIONS,
    SERVER_PARAMETERS,
)
from dovetail.cli.migrate.usage import get_code

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_ASYNC_RUN_TRANSPORTS: Final = {
    "run_async": None,
    "run_http_async": "http",
    "run_sse_async": "sse",
    "run_stdio_async": "stdio",
    "run_streamable_http_async": "http",
}
_APP_METHODS: Final = ("http_app", "sse_app", "streamable_http_app")
_SERVER_LISTS: Final = (
    "get_prompts",
    "get_resource_templates",
    "get_resources",
    "get_tools",
    "list_prompts",
    "list_resource_templates",
    "list_resources",
    "list_tools",
)
_LIST_ITEMS: Final = '''\
async def list_items(server: {any}, kind: str) -> list[{any}]:
    """Return the tools, resources, resource_templates or prompts of a server."""
    async with {client}(server) as client:
        return await getattr(client, f"list_{{kind}}")()
'''
_GET_ITEMS: Final = '''\
async def get_items(server: {any}, kind: str) -> dict[str, {any}]:
    """Return the tools, resources, resource_templates or prompts of a server by their names or URIs."""
    return {{getattr(item, "uri", None) or item.name: item for item in await list_items(server, kind)}}
'''
_PATH_WILDCARD: Final = re.compile(r"\{(\w+)\*\}")
_TYPED_PLACEHOLDER: Final = re.compile(r"\{\w+:\w+\}")
_ROUTE_ADVICE: Final = (
    "the route needs no login, as before. Functions that take or return objects of Starlette need the package starlette"
)
_ANONYMOUS_ADVICE: Final = (
    "other machines can call this server without a login, as before. Set auth=, and pass public_url= or "
    "allowed_hosts= if clients use another host name"
)


def translate_constructor(edits: Edits, call: cst.Call, class_name: str, line: int) -> cst.Call:
    """Translate the constructor call of a peer's server class to a call of `Server`."""
    arguments = CallArguments(call)
    arguments.name_positional(SERVER_PARAMETERS[class_name], 1)
    if arguments.has_starred:
        edits.report(line, get_code(call), "check that all options exist in Server(...)")
    for arg in [*arguments.args]:
        if arg.keyword is None:
            continue
        name = arg.keyword.value
        if name in HTTP_OPTIONS_OF_SERVER:
            value = arguments.pop(name)
            if value is not None:
                edits.http_options[name] = value
            continue
        if name not in SERVER_OPTIONS:
            advice = "register functions with @app.tool, @app.resource and @app.prompt"
            edits.report(line, f"{name}=", advice if name.startswith("on_") else "Server(...) has no such option")
        _apply_option(edits, arguments, name, SERVER_OPTIONS, line)
    if class_name != "Server" and arguments.get("name", 0) is None:
        arguments.insert(0, cst.SimpleString('"server"'))
    _write_version_as_text(arguments)
    return arguments.apply()


def translate_from_openapi(edits: Edits, call: cst.Call, method: str, line: int) -> cst.BaseExpression:
    """Translate `from_openapi` or `from_fastapi` to a call of `Server.from_openapi` or `Server.from_asgi`."""
    arguments = CallArguments(call)
    arguments.unname("app" if method == "from_fastapi" else "openapi_spec")
    for name in (
        "route_maps",
        "route_map_fn",
        "mcp_component_fn",
        "mcp_names",
        "tags",
        "timeout",
        "httpx_client_kwargs",
    ):
        if arguments.get(name) is not None:
            advice = "pass include= to select operations, and tool_names= to rename them"
            edits.report(line, f"{method}({name}=...)", advice)
    new_method = "from_asgi" if method == "from_fastapi" else method
    server = edits.import_expression("dovetail.Server")
    return arguments.apply(cst.Attribute(server, cst.Name(new_method)))


def translate_server_call(edits: Edits, call: cst.Call, method: str, line: int) -> cst.BaseExpression | None:
    """Return the new expression for a method call on a server. Return None if the call needs no change."""
    assert isinstance(call.func, cst.Attribute)
    if method in ("tool", "resource", "prompt"):
        return _translate_decorator(edits, call, method, line)
    if method in ("add_tool", "add_prompt"):
        return _translate_add(call)
    if method == "add_resource":
        return _translate_add_resource(edits, call, line)
    if method == "run" or method in _ASYNC_RUN_TRANSPORTS:
        return _translate_run(edits, call, method, line)
    if method in _APP_METHODS:
        return _translate_app(edits, call, method, line)
    if method in ("mount", "import_server"):
        return _translate_mount(call)
    if method == "custom_route":
        return _translate_route(edits, call, line)
    if method == "add_middleware":
        return call.with_changes(func=call.func.with_changes(attr=cst.Name("middleware")))
    if method == "get_context":
        return cst.Call(edits.import_expression("dovetail.get_context"))
    if method in _SERVER_LISTS:
        return _translate_list(edits, call.func.value, method)
    return None


def _translate_list(edits: Edits, server: cst.BaseExpression, method: str) -> cst.Call:
    """Return a call of a helper function, because `Server` has no methods that list its items."""
    verb, _, kind = method.partition("_")
    client, any_type = edits.import_name("dovetail.Client"), edits.import_name("typing.Any")
    edits.helpers["list_items"] = _LIST_ITEMS.format(client=client, any=any_type)
    if verb == "get":
        edits.helpers["get_items"] = _GET_ITEMS.format(any=any_type)
    return cst.Call(cst.Name(f"{verb}_items"), [cst.Arg(server, comma=COMMA), cst.Arg(cst.SimpleString(f'"{kind}"'))])


def _apply_option(edits: Edits, arguments: CallArguments, name: str, rules: Mapping[str, str], line: int) -> None:
    """Rename an option, remove it, or report it.

    A reported option stays in the call. Otherwise the server could start without its authentication, for example.
    """
    rule = rules.get(name)
    if rule is None:
        return
    if rule.endswith("="):
        arguments.rename(name, rule[:-1])
        return
    value = arguments.get(name)
    if rule and value is not None and get_code(value) not in ("None", "False"):
        edits.report(line, f"{name}={get_code(value)}", rule)
    else:
        arguments.pop(name)


def _write_version_as_text(arguments: CallArguments) -> None:
    version = arguments.get("version")
    if isinstance(version, cst.Integer | cst.Float):
        arguments.set("version", cst.SimpleString(f'"{version.value}"'))


def _translate_decorator(edits: Edits, call: cst.Call, method: str, line: int) -> cst.Call:
    arguments = CallArguments(call)
    if method == "resource":
        arguments.unname("uri")
        uri = arguments.get("uri", 0)
        if isinstance(uri, cst.SimpleString) and "*}" in uri.value:
            new_uri = uri.with_changes(value=_PATH_WILDCARD.sub(r"{+\1}", uri.value))
            arguments.pop("uri", 0)
            arguments.insert(0, new_uri)
    for arg in [*arguments.args]:
        if arg.keyword is not None:
            _apply_option(edits, arguments, arg.keyword.value, ITEM_OPTIONS, line)
    _write_version_as_text(arguments)
    return arguments.apply()


def _translate_route(edits: Edits, call: cst.Call, line: int) -> cst.Call:
    """Make the route public. In fastmcp and mcp, `auth=` does not protect custom routes."""
    assert isinstance(call.func, cst.Attribute)
    arguments = CallArguments(call)
    arguments.unname("path")
    arguments.name_positional(("methods",), 1)
    for name in ("name", "include_in_schema"):
        arguments.pop(name)
    path = arguments.get("path", 0)
    if isinstance(path, cst.SimpleString) and _TYPED_PLACEHOLDER.search(path.value):
        edits.report(
            line, get_code(call), "a placeholder of a route has no type. Write {name}, for one part of the path"
        )
    arguments.append(cst.Name("True"), "allow_anonymous")
    edits.report(line, get_code(call), _ROUTE_ADVICE, "check")
    return arguments.apply(call.func.with_changes(attr=cst.Name("route")))


def _translate_add(call: cst.Call) -> cst.Call:
    """Pass the function itself: `add_tool(Tool.from_function(f, name="x"))` becomes `add_tool(f, name="x")`."""
    arguments = CallArguments(call)
    created = arguments.get("tool", 0) or arguments.get("prompt", 0)
    if isinstance(created, cst.Call) and get_code(created.func).endswith(".from_function"):
        inner = CallArguments(created)
        inner.unname("fn")
        return inner.apply(call.func)
    for name in ("fn", "tool", "prompt"):
        arguments.unname(name)
    return arguments.apply()


def _translate_add_resource(edits: Edits, call: cst.Call, line: int) -> cst.Call:
    created = CallArguments(call).get("resource", 0)
    class_name = get_code(created.func).rpartition(".")[2] if isinstance(created, cst.Call) else ""
    source_by_class = {
        "TextResource": "text",
        "FunctionResource": "fn",
        "BinaryResource": "data",
        "FileResource": "path",
    }
    if not isinstance(created, cst.Call) or class_name not in source_by_class:
        edits.report(line, get_code(call), "use app.add_resource(function, uri)")
        return call
    arguments = CallArguments(created)
    source = arguments.pop(source_by_class[class_name])
    uri = arguments.pop("uri")
    if source is None or uri is None:
        edits.report(line, get_code(call), "use app.add_resource(function, uri)")
        return call
    is_binary = arguments.pop("is_binary")
    if class_name == "FileResource":
        reader = "read_bytes" if is_binary is not None and get_code(is_binary) == "True" else "read_text"
        edits.import_name("pathlib.Path")
        source = cst.parse_expression(f"lambda: Path({get_code(source)}).{reader}()")
    elif class_name != "FunctionResource":
        source = cst.Lambda(cst.Parameters(), source)
    arguments.insert(0, source)
    arguments.insert(1, uri.args[0].value if isinstance(uri, cst.Call) and uri.args else uri)
    return arguments.apply(call.func)


def _translate_mount(call: cst.Call) -> cst.Call:
    assert isinstance(call.func, cst.Attribute)
    arguments = CallArguments(call)
    arguments.pop("as_proxy")
    for name in ("tool_separator", "resource_separator", "prompt_separator"):
        arguments.pop(name)
    first = arguments.get("server", 0)
    if isinstance(first, cst.SimpleString) and len(arguments.positional) == 2:
        arguments.pop("server", 0)  # In fastmcp 2, the prefix is the first argument.
        arguments.append(first)
    for name in ("namespace", "prefix"):
        arguments.rename(name, "prefix")
    arguments.unname("server")
    return arguments.apply(call.func.with_changes(attr=cst.Name("mount")))


def _translate_run(edits: Edits, call: cst.Call, method: str, line: int) -> cst.BaseExpression:
    assert isinstance(call.func, cst.Attribute)
    new_method = "run" if method == "run" else "serve"
    function = call.func.with_changes(attr=cst.Name(new_method))
    arguments = CallArguments(call)
    transport = arguments.pop("transport", 0)
    fixed = _ASYNC_RUN_TRANSPORTS.get(method)
    if fixed is not None:
        transport = cst.SimpleString(f'"{fixed}"')
    if transport is None and arguments.has_starred:
        edits.report(line, get_code(call), f'pass the transport as {new_method}("http") and check the options')
        return arguments.apply(function)
    if transport is None or get_code(transport) == "None":
        return cst.Call(function)
    if isinstance(transport, cst.SimpleString):
        name = str(transport.evaluated_value)
        if name not in HTTP_TRANSPORTS:
            return cst.Call(function)
        return _serve_http(edits, arguments, function, name, line)
    code = get_code(transport)
    transport_code = f"({code})" if not isinstance(transport, cst.Name | cst.Attribute | cst.Call) else code
    http_call = _serve_http(edits, arguments, function, "http", line)
    if len(http_call.args) == 1:
        choice = cst.parse_expression(f'"stdio" if {transport_code} == "stdio" else "http"')
        return cst.Call(function, [cst.Arg(choice)])
    http_code = get_code(http_call)
    return cst.parse_expression(
        f'({get_code(function)}() if {transport_code} == "stdio" else {http_code})',
    )


def _serve_http(
    edits: Edits, arguments: CallArguments, function: cst.BaseExpression, transport: str, line: int
) -> cst.Call:
    _translate_http_options(edits, arguments, transport, line)
    host = arguments.get("host")
    is_loopback = isinstance(host, cst.SimpleString) and host.evaluated_value in _LOOPBACK
    if host is not None and not is_loopback:
        arguments.append(cst.Name("True"), "allow_anonymous")
        edits.report(line, f"host={get_code(host)}", _ANONYMOUS_ADVICE, "check")
    arguments.insert(0, cst.SimpleString('"http"'))
    return arguments.apply(function)


def _translate_app(edits: Edits, call: cst.Call, method: str, line: int) -> cst.Call:
    assert isinstance(call.func, cst.Attribute)
    arguments = CallArguments(call)
    if method != "http_app":
        arguments.name_positional(("mount_path",) if method == "sse_app" else ())
    else:
        arguments.name_positional(("path",))
    transport = arguments.pop("transport")
    is_sse = method == "sse_app" or (transport is not None and get_code(transport).strip("'\"") == "sse")
    _translate_http_options(edits, arguments, "sse" if is_sse else "http", line)
    for name in ("host", "port"):
        arguments.pop(name)
    return arguments.apply(call.func.with_changes(attr=cst.Name("asgi")))


def _translate_http_options(edits: Edits, arguments: CallArguments, transport: str, line: int) -> None:
    given = {arg.keyword.value for arg in arguments.args if arg.keyword is not None}
    for name, value in edits.http_options.items():
        if name not in given:
            arguments.append(value, name)
    if transport == "sse" and (sse_path := arguments.pop("sse_path")) is not None:
        arguments.set("path", sse_path)
    elif transport == "sse" and arguments.get("path") is None:
        arguments.append(cst.SimpleString('"/sse"'), "path")
    if transport == "sse":
        arguments.pop("streamable_http_path")
    for arg in [*arguments.args]:
        if arg.keyword is not None:
            _apply_option(edits, arguments, arg.keyword.value, HTTP_OPTIONS, line)
    _replace_flag(arguments, "response_mode", {"True": '"json"'}, '"json" if {} else "auto"')
    _replace_flag(arguments, "sessions", {"True": "False"}, "not {}")


def _replace_flag(arguments: CallArguments, name: str, values: dict[str, str], otherwise: str) -> None:
    """Translate a boolean option. Remove it if its value is False or None, which is the default."""
    value = arguments.get(name)
    if value is None:
        return
    code = get_code(value)
    if code in ("False", "None"):
        arguments.pop(name)
    elif code in values:
        arguments.set(name, cst.parse_expression(values[code]))
    else:
        arguments.set(name, cst.parse_expression(otherwise.format(code)))
