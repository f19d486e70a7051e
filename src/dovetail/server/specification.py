"""An OpenAPI document as operations with flat schemas. Pure: nothing is fetched, and no reference is followed twice.

Schemas are written out in full where they are small; what refers to itself, or would grow beyond measure, stays a
reference to a definition beside it.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, cast
from urllib.parse import urljoin, urlsplit

from dovetail.wire.codec import decode, encode
from dovetail.wire.shape import Struct

Place = Literal["path", "query", "header", "cookie", "body"]

METHODS: Final = ("get", "put", "post", "delete", "patch", "head", "options")
MAX_DOCUMENT: Final = 20 * 1024 * 1024
MAX_OPERATIONS: Final = 1000
_NODES: Final = 2000  # schemas written out for one operation; the rest stays referred to
_DEPTH: Final = 60
_FILE: Final = {"type": "string", "contentEncoding": "base64"}
_DROPPED: Final = frozenset(
    {"discriminator", "xml", "externalDocs", "example", "examples", "deprecated", "nullable", "title"}
)
_NAMES_ONE: Final = re.compile(rb"https?://\S+|[^\n{]*\.(?:json|ya?ml)")
_NOT_NAME: Final = re.compile(r"[^A-Za-z0-9]+")
_OWN_HEADERS: Final = frozenset({"accept", "content-type", "authorization"})  # never parameters, says OpenAPI
_OF_HTTP: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "te", "trailer", "upgrade"})


class Parameter(Struct, frozen=True, kw_only=True):
    """Where one argument goes, and how it is written there."""

    argument: str
    name: str
    place: Place
    explode: bool = True
    style: str = "form"
    file: bool = False  # bytes, which arrive as base64


class Operation(Struct, frozen=True, kw_only=True):
    """One method of one path."""

    name: str
    method: str
    path: str
    description: str
    schema: dict[str, Any]
    parameters: tuple[Parameter, ...]
    body: str | None = None  # its media type
    whole: str | None = None  # the argument that is the whole body
    tags: tuple[str, ...] = ()
    output: dict[str, Any] | None = None  # what every success is, where the document is clear about it


def read(document: Mapping[str, Any] | str | bytes) -> dict[str, Any]:
    """The document as a dict; ValueError if it is none of OpenAPI 3."""
    if isinstance(document, str | bytes):
        data = document.encode() if isinstance(document, str) else document
        if len(data) > MAX_DOCUMENT:
            raise ValueError(f"an OpenAPI document may have at most {MAX_DOCUMENT} bytes")
        if _NAMES_ONE.fullmatch(data):
            raise ValueError(f"{document!r} names a document: read it first, and pass the text or the dict")
        if not data.lstrip().startswith(b"{"):
            raise ValueError("an OpenAPI document is JSON here; load YAML yourself and pass the dict")
        document = decode(data)
    if not isinstance(document, Mapping):
        raise TypeError(f"an OpenAPI document is a dict, or JSON, not {type(document).__name__}")
    found = dict(document)
    if not str(found.get("openapi", "")).startswith("3."):
        raise ValueError("this is no OpenAPI 3 document: it has no `openapi: 3.…`")
    return found


def base_url(document: Mapping[str, Any], home: str | None = None) -> str | None:
    """The first server the document names, if it says where that is; with a home, only a path there is heeded."""
    for server in document.get("servers") or ():
        url = str(server.get("url", ""))
        for name, variable in (server.get("variables") or {}).items():
            url = url.replace("{" + name + "}", str(variable.get("default", "")))
        if url.startswith(("http://", "https://")):
            return (home or url).rstrip("/")
        if home is not None and url.strip("/") and not any(urlsplit(url)[:2]):  # a path, without scheme or host
            return urljoin(home.rstrip("/") + "/", url).rstrip("/")
    return home


def operations(document: Mapping[str, Any], fixed: Iterable[str] = ()) -> Iterator[Operation]:
    """Every operation of the document, without the headers that are fixed; ValueError if there are too many."""
    kept = _OWN_HEADERS | _OF_HTTP | {name.lower() for name in fixed}
    schemas = _Schemas(document)
    taken: set[str] = set()
    count = 0
    for path, item in (document.get("paths") or {}).items():
        item = schemas.found(item)
        for method in METHODS:
            if isinstance(item.get(method), Mapping):
                count += 1
                if count > MAX_OPERATIONS:
                    raise ValueError(f"the document has more than {MAX_OPERATIONS} operations")
                yield _operation(schemas, path, method, item, taken, kept)


def _operation(
    schemas: "_Schemas", path: str, method: str, item: Mapping[str, Any], taken: set[str], kept: Collection[str]
) -> Operation:
    told: Mapping[str, Any] = item[method]
    schemas.begin()
    given = _parameters(schemas, item, told, kept)
    properties: dict[str, Any] = {}
    required: list[str] = []
    parameters: list[Parameter] = []
    for one in given:
        argument = _free(one["name"], f"{one['name']}_{one['in']}", properties)
        schema = schemas.shown(
            one.get("schema") or next(iter((one.get("content") or {}).values()), {}).get("schema") or {}
        )
        properties[argument] = _described(schema, one.get("description"))
        if one.get("required") or one["in"] == "path":
            required.append(argument)
        style = one.get("style") or ("form" if one["in"] in ("query", "cookie") else "simple")
        parameters.append(
            Parameter(
                argument=argument,
                name=one["name"],
                place=one["in"],
                style=style,
                explode=bool(one.get("explode", style == "form")),
            )
        )
    media, whole = _body(schemas, told, properties, required, parameters)
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    schema |= {"required": required} if required else {}
    schema |= {"$defs": schemas.definitions()} if schemas.definitions() else {}
    name = _name(told.get("operationId") or f"{method}_{path}", taken)
    words = [str(told[part]).strip() for part in ("summary", "description") if told.get(part)]
    return Operation(
        name=name,
        method=method.upper(),
        path=path,
        description="\n\n".join(dict.fromkeys(words))[:2000] or f"{method.upper()} {path}",
        schema=schema,
        parameters=tuple(parameters),
        body=media,
        whole=whole,
        tags=tuple(str(tag) for tag in told.get("tags") or ()),
        output=_output(schemas, told),
    )


def _output(schemas: "_Schemas", told: Mapping[str, Any]) -> dict[str, Any] | None:
    """What every success is; None unless there is one kind of it, which is JSON and says everything that is sent."""
    responses: Mapping[Any, Any] = told.get("responses") or {}
    good = [schemas.found(one) for code, one in responses.items() if str(code).startswith("2")]
    content: Mapping[str, Any] = (good[0].get("content") or {}) if len(good) == 1 else {}
    kinds = [schemas.found(one).get("schema") for kind, one in content.items() if "json" in kind]
    if len(kinds) != 1 or len(content) != 1 or not kinds[0]:
        return None
    schemas.begin()
    shown = schemas.shown(kinds[0])
    shown |= {"$defs": schemas.definitions()} if schemas.definitions() else {}
    # What is only written is required all the same, and never there to be read.
    return None if not shown or b'"writeOnly":true' in encode(shown) else shown


def _parameters(
    schemas: "_Schemas", item: Mapping[str, Any], told: Mapping[str, Any], kept: Collection[str]
) -> list[Mapping[str, Any]]:
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for one in [*(item.get("parameters") or ()), *(told.get("parameters") or ())]:
        one = schemas.found(one)
        if one.get("in") not in ("path", "query", "header", "cookie") or not isinstance(one.get("name"), str):
            continue
        name = one["name"].lower() if one["in"] == "header" else one["name"]
        if one["in"] != "header" or name not in kept:
            found[one["in"], name] = one
    return list(found.values())


def _body(
    schemas: "_Schemas",
    told: Mapping[str, Any],
    properties: dict[str, Any],
    required: list[str],
    parameters: list[Parameter],
) -> tuple[str | None, str | None]:
    """The body's media type, and the argument that is all of it, where its members are not arguments of their own."""
    request = schemas.found(told.get("requestBody") or {})
    content: Mapping[str, Any] = request.get("content") or {}
    if not content:
        return None, None
    media = next((kind for kind in content if "json" in kind), next(iter(content)))
    schema = schemas.shown(content[media].get("schema") or {})
    inner: dict[str, Any] = schema.get("properties") or {}
    plain = bool(inner) and not {"oneOf", "anyOf", "allOf", "$ref"} & schema.keys()
    if not plain or "text/" in media:
        argument = _free("body", "body_whole", properties)
        properties[argument] = _described(schema, request.get("description"))
        if request.get("required"):
            required.append(argument)
        return media, argument
    for name, rule in inner.items():
        if isinstance(rule, Mapping) and rule.get("readOnly"):
            continue
        argument = _free(name, f"{name}_body", properties)
        is_file = media.startswith("multipart/") and _is_file(rule)
        properties[argument] = _FILE | {"description": rule.get("description") or "In base64."} if is_file else rule
        parameters.append(Parameter(argument=argument, name=name, place="body", file=is_file))
        if request.get("required") and name in (schema.get("required") or ()):
            required.append(argument)
    return media, None


def _is_file(rule: Any) -> bool:
    told = cast("Mapping[str, Any]", rule) if isinstance(rule, Mapping) else {}
    return told.get("type") == "string" and (told.get("format") == "binary" or "contentMediaType" in told)


def _free(name: str, otherwise: str, taken: Mapping[str, Any]) -> str:
    return otherwise if name in taken else name


def _described(schema: dict[str, Any], description: Any) -> dict[str, Any]:
    return schema | {"description": str(description)[:1000]} if description else schema


def _name(wanted: str, taken: set[str]) -> str:
    """A tool's name: short enough for every model, and its own."""
    name = start = (_NOT_NAME.sub("_", wanted).strip("_") or "operation")[:60]
    number = 2
    while name in taken:
        name, number = f"{start[:56]}_{number}", number + 1
    taken.add(name)
    return name


class _Schemas:
    """The schemas of one document, and those one operation refers to."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self.begin()

    def begin(self) -> None:
        """Another operation."""
        self._kept: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()
        self._room = _NODES

    def definitions(self) -> dict[str, Any]:
        """What stayed referred to, by name."""
        return self._kept

    def found(self, node: Any) -> Mapping[str, Any]:
        """A node, or what it refers to; nothing if that is elsewhere."""
        for _ in range(_DEPTH):
            if not isinstance(node, Mapping):
                return {}
            ref = node.get("$ref")
            if not isinstance(ref, str):
                return node
            node = self._at(ref)
        return {}

    def _at(self, ref: str) -> Any:
        if not ref.startswith("#/"):
            return {}  # another document: nothing is fetched
        node: Any = self._document
        for step in ref[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            node = node.get(name) if isinstance(node, Mapping) else None
        return node

    def shown(self, node: Any, within: tuple[str, ...] = ()) -> dict[str, Any]:
        """A schema as a model is shown it."""
        if not isinstance(node, Mapping):
            return {}
        self._room -= 1
        ref = node.get("$ref")
        if isinstance(ref, str):
            return self._referred(ref, within)
        kept = {name: self._part(name, value, within) for name, value in node.items() if name not in _DROPPED}
        return _modern(kept, node)

    def _referred(self, ref: str, within: tuple[str, ...]) -> dict[str, Any]:
        if ref not in within and self._room > 0 and len(within) < _DEPTH:
            return self.shown(self._at(ref), (*within, ref))
        name = self._names.get(ref) or _name(ref.rsplit("/", 1)[-1], self._taken)
        if ref not in self._names:
            self._names[ref] = name
            self._kept[name] = {}
            if len(self._kept) <= _NODES:
                self._kept[name] = self.shown(self._at(ref), (*within, ref))
        return {"$ref": f"#/$defs/{name}"}

    def _part(self, name: str, value: Any, within: tuple[str, ...]) -> Any:
        if name in ("properties", "patternProperties") and isinstance(value, Mapping):
            return {key: self.shown(one, within) for key, one in value.items()}
        if name in ("items", "additionalProperties", "not", "contains") and isinstance(value, Mapping):
            return self.shown(value, within)
        if name in ("oneOf", "anyOf", "allOf", "prefixItems") and isinstance(value, list):
            return [self.shown(one, within) for one in value]
        return value


def _modern(schema: dict[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """What OpenAPI 3.0 says in words of its own, in those of JSON Schema."""
    if told.get("nullable") and isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]
    elif told.get("nullable") and not isinstance(schema.get("type"), list):
        schema = {"anyOf": [schema, {"type": "null"}]} if schema else schema
    for name, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(name), bool) and schema.pop(name) and limit in schema:
            schema[name] = schema.pop(limit)
    return schema
