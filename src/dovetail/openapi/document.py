"""Parse an OpenAPI document into operations with flat schemas. This module makes no requests.

References to small schemas are replaced by the schemas. References to recursive or very large schemas are kept.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, cast
from urllib.parse import urljoin, urlsplit

from dovetail.wire.base import Struct
from dovetail.wire.codec import decode, encode

ParameterLocation = Literal["path", "query", "header", "cookie", "body"]

HTTP_METHODS: Final = ("get", "put", "post", "delete", "patch", "head", "options")
MAX_DOCUMENT_BYTES: Final = 20 * 1024 * 1024
MAX_OPERATIONS: Final = 1000
# If the schemas of an operation have more nodes than this, no more references are expanded.
_MAX_SCHEMA_NODES: Final = 2000
_MAX_DEPTH: Final = 60
_FILE_SCHEMA: Final = {"type": "string", "contentEncoding": "base64"}
_DROPPED_KEYWORDS: Final = frozenset(
    {"discriminator", "xml", "externalDocs", "example", "examples", "deprecated", "nullable", "title"}
)
_DOCUMENT_NAME_PATTERN: Final = re.compile(rb"https?://\S+|[^\n{]*\.(?:json|ya?ml)")
_NON_NAME_PATTERN: Final = re.compile(r"[^A-Za-z0-9]+")
# OpenAPI ignores parameters with these header names.
_IGNORED_HEADERS: Final = frozenset({"accept", "content-type", "authorization"})
_CONNECTION_HEADERS: Final = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "te", "trailer", "upgrade"}
)


class Parameter(Struct, frozen=True, kw_only=True):
    """Where and how an argument of an operation is sent."""

    argument: str
    name: str
    location: ParameterLocation
    explode: bool = True
    style: str = "form"
    is_file: bool = False  # True if the value is a file in base64


class OpenAPIOperation(Struct, frozen=True, kw_only=True):
    """An operation of an OpenAPI document."""

    name: str  # The name of the tool.
    method: str  # The HTTP method in capital letters.
    path: str  # The URL path, with parameters in braces.
    description: str  # The description of the tool.
    input_schema: dict[str, Any]  # The JSON Schema of the tool's arguments.
    parameters: tuple[Parameter, ...]  # The parameters in the path, query and headers.
    body_media_type: str | None = None  # The media type of the request body, or None.
    # The argument that contains the whole body. It is None if each property of the body is an argument.
    body_argument: str | None = None
    tags: tuple[str, ...] = ()  # The tags of the operation.
    output_schema: dict[str, Any] | None = None  # The JSON Schema of a successful response, or None.


def parse_document(document: Mapping[str, Any] | str | bytes) -> dict[str, Any]:
    """Return an OpenAPI document as a dict. Raise ValueError if it is not OpenAPI 3."""
    if isinstance(document, str | bytes):
        data = document.encode() if isinstance(document, str) else document
        if len(data) > MAX_DOCUMENT_BYTES:
            raise ValueError(f"the OpenAPI document is larger than {MAX_DOCUMENT_BYTES} bytes")
        if _DOCUMENT_NAME_PATTERN.fullmatch(data):
            raise ValueError(f"{document!r} looks like a file name. Read the file first, and pass its text or a dict")
        if not data.lstrip().startswith(b"{"):
            raise ValueError("the OpenAPI document must be JSON. Parse YAML first and pass the dict")
        document = decode(data)
    if not isinstance(document, Mapping):
        raise TypeError(f"the OpenAPI document must be a dict or JSON, not {type(document).__name__}")
    parsed = dict(document)
    if not str(parsed.get("openapi", "")).startswith("3."):
        raise ValueError("not an OpenAPI 3 document. Its `openapi` field must start with '3.'")
    return parsed


def resolve_base_url(document: Mapping[str, Any], client_base_url: str | None = None) -> str | None:
    """Return the URL of the first server in the document.

    If the client has a base URL, only the path comes from the document.
    """
    for server in document.get("servers") or ():
        url = str(server.get("url", ""))
        for name, variable in (server.get("variables") or {}).items():
            url = url.replace("{" + name + "}", str(variable.get("default", "")))
        if url.startswith(("http://", "https://")):
            return (client_base_url or url).rstrip("/")
        # The URL is only a path, without a scheme and a host.
        if client_base_url is not None and url.strip("/") and not any(urlsplit(url)[:2]):
            return urljoin(client_base_url.rstrip("/") + "/", url).rstrip("/")
    return client_base_url


def iter_operations(document: Mapping[str, Any], fixed_headers: Iterable[str] = ()) -> Iterator[OpenAPIOperation]:
    """Yield all operations of a document. Raise ValueError if it has too many."""
    excluded_headers = _IGNORED_HEADERS | _CONNECTION_HEADERS | {name.lower() for name in fixed_headers}
    schemas = _SchemaResolver(document)
    used_names: set[str] = set()
    count = 0
    for path, path_item in (document.get("paths") or {}).items():
        path_item = schemas.resolve(path_item)
        for method in HTTP_METHODS:
            if isinstance(path_item.get(method), Mapping):
                count += 1
                if count > MAX_OPERATIONS:
                    raise ValueError(f"the OpenAPI document has more than {MAX_OPERATIONS} operations")
                yield _build_operation(schemas, path, method, path_item, used_names, excluded_headers)


def _build_operation(
    schemas: "_SchemaResolver",
    path: str,
    method: str,
    path_item: Mapping[str, Any],
    used_names: set[str],
    excluded_headers: Collection[str],
) -> OpenAPIOperation:
    definition: Mapping[str, Any] = path_item[method]
    schemas.reset()
    raw_parameters = _collect_parameters(schemas, path_item, definition, excluded_headers)
    properties: dict[str, Any] = {}
    required: list[str] = []
    parameters: list[Parameter] = []
    for raw_parameter in raw_parameters:
        argument = _choose_argument_name(
            raw_parameter["name"], f"{raw_parameter['name']}_{raw_parameter['in']}", properties
        )
        schema = schemas.expand_schema(
            raw_parameter.get("schema")
            or next(iter((raw_parameter.get("content") or {}).values()), {}).get("schema")
            or {}
        )
        properties[argument] = _add_description(schema, raw_parameter.get("description"))
        if raw_parameter.get("required") or raw_parameter["in"] == "path":
            required.append(argument)
        style = raw_parameter.get("style") or ("form" if raw_parameter["in"] in ("query", "cookie") else "simple")
        parameters.append(
            Parameter(
                argument=argument,
                name=raw_parameter["name"],
                location=raw_parameter["in"],
                style=style,
                explode=bool(raw_parameter.get("explode", style == "form")),
            )
        )
    media_type, body_argument = _add_body(schemas, definition, properties, required, parameters)
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    schema |= {"required": required} if required else {}
    schema |= {"$defs": schemas.definitions()} if schemas.definitions() else {}
    name = _make_unique_name(definition.get("operationId") or f"{method}_{path}", used_names)
    texts = [str(definition[part]).strip() for part in ("summary", "description") if definition.get(part)]
    return OpenAPIOperation(
        name=name,
        method=method.upper(),
        path=path,
        description="\n\n".join(dict.fromkeys(texts))[:2000] or f"{method.upper()} {path}",
        input_schema=schema,
        parameters=tuple(parameters),
        body_media_type=media_type,
        body_argument=body_argument,
        tags=tuple(str(tag) for tag in definition.get("tags") or ()),
        output_schema=_build_output_schema(schemas, definition),
    )


def _build_output_schema(schemas: "_SchemaResolver", definition: Mapping[str, Any]) -> dict[str, Any] | None:
    responses: Mapping[Any, Any] = definition.get("responses") or {}
    successes = [schemas.resolve(response) for code, response in responses.items() if str(code).startswith("2")]
    content: Mapping[str, Any] = (successes[0].get("content") or {}) if len(successes) == 1 else {}
    json_schemas = [
        schemas.resolve(media).get("schema") for media_type, media in content.items() if "json" in media_type
    ]
    if len(json_schemas) != 1 or len(content) != 1 or not json_schemas[0]:
        return None
    schemas.reset()
    schema = schemas.expand_schema(json_schemas[0])
    schema |= {"$defs": schemas.definitions()} if schemas.definitions() else {}
    # Responses never contain writeOnly properties, so a schema with such properties is not used.
    return None if not schema or b'"writeOnly":true' in encode(schema) else schema


def _collect_parameters(
    schemas: "_SchemaResolver",
    path_item: Mapping[str, Any],
    definition: Mapping[str, Any],
    excluded_headers: Collection[str],
) -> list[Mapping[str, Any]]:
    parameters: dict[tuple[str, str], Mapping[str, Any]] = {}
    for parameter in [*(path_item.get("parameters") or ()), *(definition.get("parameters") or ())]:
        parameter = schemas.resolve(parameter)
        if parameter.get("in") not in ("path", "query", "header", "cookie") or not isinstance(
            parameter.get("name"), str
        ):
            continue
        name = parameter["name"].lower() if parameter["in"] == "header" else parameter["name"]
        if parameter["in"] != "header" or name not in excluded_headers:
            parameters[parameter["in"], name] = parameter
    return list(parameters.values())


def _add_body(
    schemas: "_SchemaResolver",
    definition: Mapping[str, Any],
    properties: dict[str, Any],
    required: list[str],
    parameters: list[Parameter],
) -> tuple[str | None, str | None]:
    """Add the arguments for the request body. Return the media type and the name of the body argument.

    The name is None if each property of the body is a separate argument.
    """
    request = schemas.resolve(definition.get("requestBody") or {})
    content: Mapping[str, Any] = request.get("content") or {}
    if not content:
        return None, None
    media_type = _choose_media_type(content)
    schema = schemas.expand_schema(content[media_type].get("schema") or {})
    members: dict[str, Any] = schema.get("properties") or {}
    is_flat_object = bool(members) and not {"oneOf", "anyOf", "allOf", "$ref"} & schema.keys()
    if not is_flat_object or "text/" in media_type:
        argument = _choose_argument_name("body", "body_whole", properties)
        properties[argument] = _add_description(schema, request.get("description"))
        if request.get("required"):
            required.append(argument)
        return media_type, argument
    required_names: Collection[str] = (schema.get("required") or ()) if request.get("required") else ()
    for name, member_schema in members.items():
        if isinstance(member_schema, Mapping) and member_schema.get("readOnly"):
            continue
        argument = _choose_argument_name(name, f"{name}_body", properties)
        is_file = media_type.startswith("multipart/") and _is_file(member_schema)
        properties[argument] = (
            _FILE_SCHEMA | {"description": member_schema.get("description") or "In base64."}
            if is_file
            else member_schema
        )
        parameters.append(Parameter(argument=argument, name=name, location="body", is_file=is_file))
        if name in required_names:
            required.append(argument)
    return media_type, None


def _choose_media_type(content: Mapping[str, Any]) -> str:
    return next((media_type for media_type in content if "json" in media_type), next(iter(content)))


def _is_file(node: Any) -> bool:
    schema = cast("Mapping[str, Any]", node) if isinstance(node, Mapping) else {}
    return schema.get("type") == "string" and (schema.get("format") == "binary" or "contentMediaType" in schema)


def _choose_argument_name(name: str, fallback: str, used_names: Mapping[str, Any]) -> str:
    return fallback if name in used_names else name


def _add_description(schema: dict[str, Any], description: Any) -> dict[str, Any]:
    return schema | {"description": str(description)[:1000]} if description else schema


def _make_unique_name(proposed: str, used_names: set[str]) -> str:
    """Return a unique tool name that is short enough for all model providers."""
    name = base = (_NON_NAME_PATTERN.sub("_", proposed).strip("_") or "operation")[:60]
    number = 2
    while name in used_names:
        name, number = f"{base[:56]}_{number}", number + 1
    used_names.add(name)
    return name


class _SchemaResolver:
    """Resolves references to schemas in a document. Collects the definitions that an operation needs."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self.reset()

    def reset(self) -> None:
        self._definitions: dict[str, Any] = {}
        self._name_by_ref: dict[str, str] = {}
        self._used_names: set[str] = set()
        self._remaining_nodes = _MAX_SCHEMA_NODES

    def definitions(self) -> dict[str, Any]:
        return self._definitions

    def resolve(self, node: Any) -> Mapping[str, Any]:
        """Return a node, or its target if the node is a reference.

        References to other documents return an empty node.
        """
        for _ in range(_MAX_DEPTH):
            if not isinstance(node, Mapping):
                return {}
            ref = node.get("$ref")
            if not isinstance(ref, str):
                return node
            node = self._lookup(ref)
        return {}

    def _lookup(self, ref: str) -> Any:
        if not ref.startswith("#/"):
            return {}  # References to other documents are not fetched.
        node: Any = self._document
        for step in ref[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            node = node.get(name) if isinstance(node, Mapping) else None
        return node

    def expand_schema(self, node: Any, ref_path: tuple[str, ...] = ()) -> dict[str, Any]:
        """Replace references in a schema with their targets. Convert OpenAPI keywords to JSON Schema."""
        if not isinstance(node, Mapping):
            return {}
        self._remaining_nodes -= 1
        ref = node.get("$ref")
        if isinstance(ref, str):
            return self._expand_reference(ref, ref_path)
        keywords = {
            name: self._expand_keyword(name, value, ref_path)
            for name, value in node.items()
            if name not in _DROPPED_KEYWORDS
        }
        return _convert_openapi_keywords(keywords, node)

    def _expand_reference(self, ref: str, ref_path: tuple[str, ...]) -> dict[str, Any]:
        if ref not in ref_path and self._remaining_nodes > 0 and len(ref_path) < _MAX_DEPTH:
            return self.expand_schema(self._lookup(ref), (*ref_path, ref))
        name = self._name_by_ref.get(ref) or _make_unique_name(ref.rsplit("/", 1)[-1], self._used_names)
        if ref not in self._name_by_ref:
            self._name_by_ref[ref] = name
            self._definitions[name] = {}
            if len(self._definitions) <= _MAX_SCHEMA_NODES:
                self._definitions[name] = self.expand_schema(self._lookup(ref), (*ref_path, ref))
        return {"$ref": f"#/$defs/{name}"}

    def _expand_keyword(self, keyword: str, value: Any, ref_path: tuple[str, ...]) -> Any:
        if keyword in ("properties", "patternProperties") and isinstance(value, Mapping):
            return {key: self.expand_schema(subschema, ref_path) for key, subschema in value.items()}
        if keyword in ("items", "additionalProperties", "not", "contains") and isinstance(value, Mapping):
            return self.expand_schema(value, ref_path)
        if keyword in ("oneOf", "anyOf", "allOf", "prefixItems") and isinstance(value, list):
            return [self.expand_schema(subschema, ref_path) for subschema in value]
        return value


def _convert_openapi_keywords(schema: dict[str, Any], original: Mapping[str, Any]) -> dict[str, Any]:
    if original.get("nullable") and isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]
    elif original.get("nullable") and not isinstance(schema.get("type"), list):
        schema = {"anyOf": [schema, {"type": "null"}]} if schema else schema
    for name, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(name), bool) and schema.pop(name) and bound in schema:
            schema[name] = schema.pop(bound)
    return schema
