"""Analyze an untrusted JSON Schema: its keywords, its references and the cost of its subschemas.

`read_schema` keeps only the keywords that affect validation, and replaces every reference with a pointer within the new
schema. The validator therefore compiles exactly the analysed schema. This module never fetches a document.
"""

from typing import Any, Final, cast
from urllib.parse import unquote, urldefrag, urljoin

from dovetail.error_context import clip
from dovetail.protocol.limits import KiB
from dovetail.schemas.regex_cost import count_concurrent_states
from dovetail.wire.base import Struct, field
from dovetail.wire.codec import encode

# These keywords contain subschemas for the value itself, for its members or for its items.
_SAME_VALUE_KEYWORDS: Final = {
    "not",
    "if",
    "then",
    "else",
    "allOf",
    "anyOf",
    "oneOf",
    "dependentSchemas",
    "dependencies",
}
_CHILD_KEYWORDS: Final = {
    "properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames",
    "prefixItems", "items", "additionalItems", "unevaluatedItems", "contains",
}  # fmt: skip
_MAP_KEYWORDS: Final = {"properties", "patternProperties", "dependentSchemas", "dependencies"}
_LIST_KEYWORDS: Final = {"allOf", "anyOf", "oneOf", "prefixItems"}
_DEFINITION_KEYWORDS: Final = {"$defs", "definitions"}
_ASSERTION_KEYWORDS: Final = {
    "type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum",
    "maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "maxContains", "minContains",
    "maxProperties", "minProperties", "required", "dependentRequired",
}  # fmt: skip
_MAX_ID_CHARS: Final = 1024
# The targets of these references are known only during the validation of a value.
_DYNAMIC_REFERENCES: Final = {"$dynamicRef", "$recursiveRef"}
_BRANCHING_KEYWORDS: Final = {"anyOf", "oneOf", "not", "if", "contains", "propertyNames"}

DRAFT_7: Final = "http://json-schema.org/draft-07/schema"
DRAFT_2019: Final = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020: Final = "https://json-schema.org/draft/2020-12/schema"

# Costs are in units of ten nanoseconds. docs/decisions/hostile-schemas.md has the measurements.
_KEYWORD_COST: Final = 2
_NAME_COST: Final = 2  # Cost of one required name.
_ENUM_VALUE_COST: Final = 20  # Cost of comparing a value with one enum value.
_NUMBER_COST: Final = 250  # Cost of comparing or dividing numbers that are not small integers.
_FLOAT_COST: Final = 10  # Cost of comparing a small integer with another number.
_LARGE_DIVISION_COST: Final = 100
_EXTREME_COST: Final = 3000  # Cost of a number with many zeros.
_UNEVALUATED_FACTOR: Final = 3  # `unevaluatedItems` and `unevaluatedProperties` check other keywords a second time.


class UnusableSchema(ValueError):
    """Raised if a schema is not safe to use, either for all values or for a particular value.

    The message contains the reason.
    """


class SchemaLimits(Struct, frozen=True, kw_only=True):
    """Limits for schemas and values from untrusted servers."""

    max_bytes: int = 256 * KiB  # Maximum size of the schema as JSON.
    max_depth: int = 64  # Maximum nesting of the schema and of the value.
    max_schemas: int = 2000
    max_values: int = 10_000  # Maximum number of values in `enum` and `const`.
    max_patterns: int = 32
    max_pattern_chars: int = 1000  # Maximum length of one pattern.
    max_cost: int = 2_000_000  # Maximum cost of one validation, in units of ten nanoseconds.


class Subschema(Struct):
    """A subschema: its keywords, its nested subschemas, and the cost of applying it once."""

    rank: int = -1  # A subschema has a higher rank than the subschemas that refer to it.
    assertions: dict[str, Any] = field(default_factory=dict[str, Any])
    # Maps each keyword to the index of its subschema, or to a list or dict of indexes.
    children: dict[str, Any] = field(default_factory=dict[str, Any])
    same_value: list[int] = field(default_factory=list[int])  # Subschemas that apply to the same value.
    # Maps the name of a member to the subschema that applies to it.
    named_members: dict[str, int] = field(default_factory=dict[str, int])
    # The first subschema applies to the first item, the second to the second item, and so on.
    positional_items: list[int] = field(default_factory=list[int])
    every_member: list[int] = field(default_factory=list[int])  # Subschemas that apply to every member.
    every_item: list[int] = field(default_factory=list[int])
    # Subschemas that apply to members that are not in `named_members`.
    other_members: list[int] = field(default_factory=list[int])
    other_items: list[int] = field(default_factory=list[int])
    member_names: list[int] = field(default_factory=list[int])  # Subschemas that apply to the names of members.
    value_cost: int = _KEYWORD_COST
    integer_cost: int = 0  # Cost for a small integer.
    number_cost: int = 0  # Cost for a number that is not a small integer.
    object_cost: int = 0
    char_cost: int = 0  # Cost per character of a string.
    name_char_cost: int = 0
    unique_count: int = 0


class SchemaPlan(Struct, frozen=True):
    """A schema that is safe to compile. `parts` lists the schema itself and then its subschemas."""

    dialect: str
    schema: dict[str, Any]
    parts: list[Subschema]
    repeat_factor: int
    has_branches: bool


def read_schema(schema: Any, limits: SchemaLimits) -> SchemaPlan:
    """Analyze a schema. Raise UnusableSchema if the schema is not safe to use."""
    if not isinstance(schema, dict):
        raise UnusableSchema("invalid schema: the schema must be an object")
    _check_size(schema, limits)
    return _SchemaReader(cast("dict[str, Any]", schema), limits).read()


def _check_size(schema: Any, limits: SchemaLimits) -> None:
    level: list[Any] = [schema]
    for _ in range(limits.max_depth):
        level = [child for container in level for child in _list_children(container) if type(child) in (dict, list)]
        if not level:
            break
    else:
        raise UnusableSchema(f"nested deeper than {limits.max_depth}")
    try:
        size = len(encode(schema))
    except (TypeError, ValueError):
        raise UnusableSchema("invalid schema: not valid JSON") from None
    if size > limits.max_bytes:
        raise UnusableSchema(f"the schema has {size} bytes, more than the limit of {limits.max_bytes}")


def _list_children(value: Any) -> Any:
    return value.values() if type(value) is dict else value


class _SchemaReader:
    """Reads one schema. It first collects all IDs and anchors, and then the subschemas that are used."""

    def __init__(self, schema: dict[str, Any], limits: SchemaLimits) -> None:
        self._root = schema
        self._limits = limits
        self._dialect = _read_dialect(schema)
        # In draft 7, keywords next to a `$ref` are ignored.
        self._allows_ref_siblings = self._dialect != DRAFT_7
        self._documents: dict[str, dict[str, Any]] = {"": schema}
        self._anchors: dict[tuple[str, str], dict[str, Any]] = {}
        self._parts: list[Subschema] = []
        self._indexes: dict[tuple[int, str], int] = {}
        self._pending: list[tuple[int, Any, str]] = []
        self._referenced: set[int] = {0}
        self._schema_count = 0
        self._value_count = 0
        self._pattern_count = 0
        self._seen_keywords: set[str] = set()

    def read(self) -> SchemaPlan:
        self._collect_names(self._root, "")
        self._get_index(self._root, "")
        while self._pending:
            index, schema, base = self._pending.pop()
            self._fill_part(self._parts[index], schema, base)
        repeat_factor = (
            _UNEVALUATED_FACTOR if self._seen_keywords & {"unevaluatedProperties", "unevaluatedItems"} else 1
        )
        _rank_parts(self._parts, repeat_factor, self._limits.max_cost)
        definitions_key = "definitions" if self._dialect == DRAFT_7 else "$defs"
        definitions = {str(index): self._render(index, definitions_key) for index in sorted(self._referenced)}
        return SchemaPlan(
            dialect=self._dialect,
            schema={
                "$schema": self._dialect,
                "allOf": [{"$ref": f"#/{definitions_key}/0"}],
                definitions_key: definitions,
            },
            parts=self._parts,
            repeat_factor=repeat_factor,
            has_branches=bool(self._seen_keywords & _BRANCHING_KEYWORDS),
        )

    # The following methods resolve `$id` and `$anchor`.

    def _collect_names(self, schema: Any, base: str) -> None:
        if not isinstance(schema, dict):
            return
        self._schema_count += 1
        if self._schema_count > self._limits.max_schemas:
            raise UnusableSchema(f"the schema has more than {self._limits.max_schemas} subschemas")
        base = self._resolve_base(schema, base)
        if isinstance(schema.get("$id"), str) and not schema["$id"].startswith("#"):
            self._documents.setdefault(base, schema)
        for anchor in (schema.get("$anchor"), schema.get("$dynamicAnchor"), _read_draft7_anchor(schema)):
            if isinstance(anchor, str):
                self._anchors.setdefault((base, anchor), schema)
        for keyword, value in schema.items():
            if keyword in _SAME_VALUE_KEYWORDS or keyword in _CHILD_KEYWORDS or keyword in _DEFINITION_KEYWORDS:
                for subschema in _list_subschemas(keyword, value):
                    self._collect_names(subschema, base)

    def _resolve_base(self, schema: dict[str, Any], base: str) -> str:
        schema_id = schema.get("$id")
        if (
            not isinstance(schema_id, str)
            or schema_id.startswith("#")
            or (not self._allows_ref_siblings and "$ref" in schema)
        ):
            return base
        if len(schema_id) > _MAX_ID_CHARS:
            raise UnusableSchema(f"an $id in the schema has more than {_MAX_ID_CHARS} characters")
        return _join_reference(base, schema_id)[0]

    def _resolve_reference(self, ref: str, base: str) -> tuple[Any, str]:
        document, fragment = _join_reference(base, ref)
        document_root = self._documents.get(document)
        if document_root is None:
            raise UnusableSchema(f"the schema refers to another document: {clip(ref)}")
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            target: Any = self._anchors.get((document, fragment))
            return self._check_target(target, ref), document
        target = document_root
        for segment in fragment.split("/")[1:]:
            if isinstance(target, dict):
                document = self._resolve_base(cast("dict[str, Any]", target), document)
            target = _get_member(target, segment.replace("~1", "/").replace("~0", "~"))
            if target is None:
                break
        return self._check_target(target, ref), document

    def _check_target(self, target: Any, ref: str) -> Any:
        if not isinstance(target, dict | bool):
            raise UnusableSchema(f"invalid schema: it refers to a definition that does not exist: {clip(ref)}")
        return target

    def _get_index(self, schema: Any, base: str) -> int:
        if not isinstance(schema, dict | bool):
            raise UnusableSchema("invalid schema: a subschema must be an object, true or false")
        key = (id(schema), base)
        index = self._indexes.get(key)
        if index is None:
            index = self._indexes[key] = len(self._parts)
            if index >= self._limits.max_schemas:
                raise UnusableSchema(f"the schema has more than {self._limits.max_schemas} subschemas")
            self._parts.append(Subschema())
            self._pending.append((index, schema, base))
        return index

    def _fill_part(self, part: Subschema, schema: Any, base: str) -> None:
        if isinstance(schema, bool):
            part.assertions = {"": schema}
            return
        base = self._resolve_base(schema, base)
        ref = schema.get("$ref")
        if ref is not None:
            self._add_reference(part, ref, base)
            if not self._allows_ref_siblings:
                return
        for keyword, value in schema.items():
            if keyword in _ASSERTION_KEYWORDS:
                self._add_assertion(part, keyword, value)
            elif keyword in _SAME_VALUE_KEYWORDS or keyword in _CHILD_KEYWORDS:
                self._add_children(part, keyword, value, base)
            elif keyword in _DYNAMIC_REFERENCES:
                raise UnusableSchema(f"the schema has the keyword {keyword}, which is not supported")

    def _add_reference(self, part: Subschema, ref: Any, base: str) -> None:
        if not isinstance(ref, str):
            raise UnusableSchema("invalid schema: $ref must be a string")
        index = self._get_index(*self._resolve_reference(ref, base))
        self._referenced.add(index)
        part.children["$ref"] = index
        part.same_value.append(index)

    def _add_children(self, part: Subschema, keyword: str, value: Any, base: str) -> None:
        part.value_cost += _KEYWORD_COST
        self._seen_keywords.add(keyword)
        if keyword == "dependencies" and isinstance(value, dict):
            name_lists = {name: child for name, child in value.items() if isinstance(child, list)}
            part.object_cost += _NAME_COST * sum(_count_texts(keyword, child) for child in name_lists.values())
            part.assertions[keyword] = name_lists
            value = {name: child for name, child in value.items() if name not in name_lists}
        children = part.children[keyword] = self._index_children(keyword, value, base)
        self._add_child_indexes(part, keyword, children)

    def _index_children(self, keyword: str, value: Any, base: str) -> dict[str, int] | list[int] | int:
        if keyword in _MAP_KEYWORDS:
            if not isinstance(value, dict):
                raise UnusableSchema(f"invalid schema: {keyword} must be an object")
            return {name: self._get_index(child, base) for name, child in value.items()}
        if keyword in _LIST_KEYWORDS or (keyword == "items" and isinstance(value, list)):
            if not isinstance(value, list):
                raise UnusableSchema(f"invalid schema: {keyword} must be an array")
            return [self._get_index(child, base) for child in value]
        return self._get_index(value, base)

    def _add_child_indexes(self, part: Subschema, keyword: str, children: Any) -> None:
        """Store to which members or items of a value the subschemas of a keyword apply."""
        indexes = list(children.values()) if isinstance(children, dict) else children
        if isinstance(indexes, int):
            indexes = [indexes]
        match keyword:
            case "properties":
                part.named_members = children
            case "prefixItems":
                part.positional_items = indexes
            case "items" if isinstance(children, list):
                part.positional_items = indexes
            case "items" | "additionalItems":
                part.other_items += indexes
            case "unevaluatedItems" | "contains":
                part.every_item += indexes
            case "additionalProperties":
                part.other_members += indexes
            case "unevaluatedProperties":
                part.every_member += indexes
            case "patternProperties":
                part.every_member += indexes
                for pattern in children:
                    part.name_char_cost += self._get_pattern_cost(pattern)
                    part.object_cost += _KEYWORD_COST
            case "propertyNames":
                part.member_names += indexes
            case _:
                part.same_value += indexes

    def _add_assertion(self, part: Subschema, keyword: str, value: Any) -> None:
        part.assertions[keyword] = value
        part.value_cost += _KEYWORD_COST
        match keyword:
            case "enum" if isinstance(value, list):
                part.value_cost += self._get_enum_cost(value)
            case "const":
                part.value_cost += self._get_enum_cost([value])
            case "multipleOf" | "maximum" | "minimum" | "exclusiveMaximum" | "exclusiveMinimum":
                self._add_number_cost(part, keyword, value)
            case "type" if not isinstance(value, str):
                _count_texts(keyword, value)
            case "required":
                part.object_cost += _NAME_COST * _count_texts(keyword, value)
            case "dependentRequired" if isinstance(value, dict):
                part.object_cost += _NAME_COST * sum(_count_texts(keyword, names) for names in value.values())
            case "pattern":
                part.char_cost += self._get_pattern_cost(value)
            case "uniqueItems" if value is True:
                part.unique_count += 1
            case _:
                pass

    def _add_number_cost(self, part: Subschema, keyword: str, value: Any) -> None:
        if _is_small_integer(value):
            part.integer_cost += _KEYWORD_COST
            part.number_cost += _LARGE_DIVISION_COST if keyword == "multipleOf" else _FLOAT_COST
        else:
            cost = _get_comparison_cost(value)
            part.integer_cost += cost
            part.number_cost += cost

    def _get_pattern_cost(self, pattern: Any) -> int:
        if not isinstance(pattern, str):
            raise UnusableSchema("invalid schema: a pattern must be a string")
        if len(pattern) > self._limits.max_pattern_chars:
            raise UnusableSchema(
                f"a pattern has more than {self._limits.max_pattern_chars} characters: {clip(pattern, 64)}"
            )
        self._pattern_count += 1
        if self._pattern_count > self._limits.max_patterns:
            raise UnusableSchema(f"more than {self._limits.max_patterns} patterns")
        return 1 + count_concurrent_states(pattern)

    def _get_enum_cost(self, values: list[Any]) -> int:
        """Return the cost of finding a value in an enum.

        Strings and small integers need one lookup. Other values need one comparison each.
        """
        level: list[Any] = values
        cost = count = 0
        while level:
            count += len(level)
            cost += sum(map(_get_comparison_cost, level))
            level = [child for value in level if type(value) in (dict, list) for child in _list_children(value)]
        self._value_count += count
        if self._value_count > self._limits.max_values:
            raise UnusableSchema(f"the schema has more than {self._limits.max_values} values in enum and const")
        is_uniform = all(type(value) is str for value in values) or all(_is_small_integer(one) for one in values)
        return _KEYWORD_COST if is_uniform and len(values) > 1 else cost

    def _render(self, index: int, definitions_key: str) -> Any:
        """Return a subschema as JSON. Shared subschemas become references to `definitions_key`."""

        def render_child(child_index: int) -> Any:
            return (
                {"$ref": f"#/{definitions_key}/{child_index}"}
                if child_index in self._referenced
                else self._render(child_index, definitions_key)
            )

        part = self._parts[index]
        if "" in part.assertions:
            return part.assertions[""]
        schema = dict(part.assertions)
        for keyword, children in part.children.items():
            match children:
                case int():
                    schema[keyword] = f"#/{definitions_key}/{children}" if keyword == "$ref" else render_child(children)
                case list():
                    schema[keyword] = [render_child(child) for child in cast("list[int]", children)]
                case _:
                    rendered = {name: render_child(child) for name, child in cast("dict[str, int]", children).items()}
                    schema[keyword] = schema.get(keyword, {}) | rendered
        return schema


def _read_dialect(schema: dict[str, Any]) -> str:
    declared = schema.get("$schema", DRAFT_2020)
    dialect = (
        declared.removesuffix("#").replace("https://json-schema.org/draft-07", "http://json-schema.org/draft-07")
        if isinstance(declared, str)
        else None
    )
    if dialect not in (DRAFT_7, DRAFT_2019, DRAFT_2020):
        raise UnusableSchema(f"unknown dialect: {clip(str(declared))}")
    return dialect


def _read_draft7_anchor(schema: dict[str, Any]) -> str | None:
    schema_id = schema.get("$id")
    return schema_id[1:] if isinstance(schema_id, str) and schema_id.startswith("#") else None


def _join_reference(base: str, ref: str) -> tuple[str, str]:
    if ref.startswith("#"):
        return base, ref[1:]
    try:
        address, fragment = urldefrag(urljoin(base, ref))
    except ValueError:
        raise UnusableSchema(f"the schema refers to another document: {clip(ref)}") from None
    return address, fragment


def _get_member(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).get(name)
    if isinstance(value, list) and name.isascii() and name.isdigit() and len(name) < 8:
        items = cast("list[Any]", value)
        return items[int(name)] if int(name) < len(items) else None
    return None


def _list_subschemas(keyword: str, value: Any) -> list[Any]:
    if isinstance(value, list):
        return cast("list[Any]", value)
    if keyword in _MAP_KEYWORDS or keyword in _DEFINITION_KEYWORDS:
        return list(cast("dict[str, Any]", value).values()) if isinstance(value, dict) else []
    return [value]


def _count_texts(keyword: str, value: Any) -> int:
    if not isinstance(value, list) or not all(type(text) is str for text in value):
        raise UnusableSchema(f"invalid schema: {keyword} must be a list of strings")
    return len(value)


def _get_comparison_cost(value: Any) -> int:
    if not isinstance(value, int | float) or _is_small_integer(value):
        return _ENUM_VALUE_COST
    return _EXTREME_COST if is_extreme(value) else _NUMBER_COST


def _is_small_integer(value: Any) -> bool:
    return type(value) is int and -(2**53) <= value <= 2**53


def is_extreme(value: float) -> bool:
    """Return whether a number has so many zeros that exact arithmetic is slow."""
    return value != 0 and not 1e-30 < abs(value) < 1e30


def _rank_parts(parts: list[Subschema], repeat_factor: int, max_cost: int) -> None:
    """Sort the subschemas, so that every subschema comes after all subschemas that refer to it.

    Raise UnusableSchema for cycles, because their validation never ends.
    """
    parent_counts = [0] * len(parts)
    for part in parts:
        for index in part.same_value:
            parent_counts[index] += 1
    ready = [index for index, count in enumerate(parent_counts) if not count]
    order: list[Subschema] = []
    while ready:
        part = parts[ready.pop()]
        part.rank = len(order)
        order.append(part)
        for index in part.same_value:
            parent_counts[index] -= 1
            if not parent_counts[index]:
                ready.append(index)
    if len(order) < len(parts):
        raise UnusableSchema("the references in the schema form an endless cycle")
    _check_expanded_cost(parts, order, repeat_factor, max_cost)


def _check_expanded_cost(parts: list[Subschema], order: list[Subschema], repeat_factor: int, max_cost: int) -> None:
    costs = [0] * len(parts)
    indexes = {id(part): index for index, part in enumerate(parts)}
    for part in reversed(order):
        cost = part.value_cost + repeat_factor * sum(costs[index] for index in part.same_value)
        if cost > max_cost:
            raise UnusableSchema("the references in the schema lead to too many subschemas")
        costs[indexes[id(part)]] = cost
