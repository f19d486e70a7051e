"""A foreign JSON Schema, read with distrust: what it asks for, what it refers to, and what its parts cost.

`read` keeps only what can change a verdict and turns every reference into a pointer of its own making, so that what was
judged here is exactly what a validator compiles. Nothing is ever fetched.
"""

from typing import Any, Final, cast
from urllib.parse import unquote, urldefrag, urljoin

from dovetail.errors import clip
from dovetail.protocol.limits import KiB
from dovetail.protocol.patterns import places_at_once
from dovetail.wire.codec import encode
from dovetail.wire.shape import Struct, field

# The keywords with schemas inside, by what they apply to: the value itself, or what it holds.
_HERE: Final = {"not", "if", "then", "else", "allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies"}
_INSIDE: Final = {
    "properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames",
    "prefixItems", "items", "additionalItems", "unevaluatedItems", "contains",
}  # fmt: skip
_MAPS: Final = {"properties", "patternProperties", "dependentSchemas", "dependencies"}
_LISTS: Final = {"allOf", "anyOf", "oneOf", "prefixItems"}
_HOMES: Final = {"$defs", "definitions"}
_PLAIN: Final = {
    "type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum",
    "maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "maxContains", "minContains",
    "maxProperties", "minProperties", "required", "dependentRequired",
}  # fmt: skip
_LONGEST_ID: Final = 1024
_MOVING: Final = {"$dynamicRef", "$recursiveRef"}  # their target depends on the road to them
_CHOICES: Final = {"anyOf", "oneOf", "not", "if", "contains", "propertyNames"}

DRAFT_7: Final = "http://json-schema.org/draft-07/schema"
DRAFT_2019: Final = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020: Final = "https://json-schema.org/draft/2020-12/schema"

# Costs in units of ten nanoseconds of jsonschema-rs; docs/decisions/0021 has the measurements.
_KEYWORD: Final = 2
_NAME: Final = 2  # one required name
_MEMBER: Final = 20  # one value of an enum that is compared, not looked up
_NUMBER: Final = 250  # to compare or divide by a number that is not a small integer
_FLOAT: Final = 10  # to compare a number that is not a small integer with one that is
_LARGE_DIVISION: Final = 100
_EXTREME: Final = 3000  # or one with many zeros, whose digits are all written out
_AGAIN: Final = 3  # how often unevaluated* evaluates its neighbours anew


class Unusable(ValueError):
    """This schema cannot be used safely, or not for this value; the text says why."""


class SchemaLimits(Struct, frozen=True, kw_only=True):
    """How much a schema and a value from a stranger may ask for."""

    size: int = 256 * KiB  # of the schema, encoded
    depth: int = 64  # of the schema and of the value
    schemas: int = 2000
    values: int = 10_000  # inside enum and const
    patterns: int = 32
    pattern: int = 1000  # characters
    cost: int = 2_000_000  # of one check, in units of ten nanoseconds at worst


class Part(Struct):
    """One subschema: its keywords, what it leads to, and what applying it once costs."""

    rank: int = -1  # parts come after those that apply them to the same value
    plain: dict[str, Any] = field(default_factory=dict[str, Any])
    inner: dict[str, Any] = field(default_factory=dict[str, Any])  # keyword to part number, or a list or dict of them
    here: list[int] = field(default_factory=list[int])  # applied to the same value
    named: dict[str, int] = field(default_factory=dict[str, int])  # to the member of this name
    places: list[int] = field(default_factory=list[int])  # to the item at this place
    members: list[int] = field(default_factory=list[int])  # to any member
    items: list[int] = field(default_factory=list[int])
    other_members: list[int] = field(default_factory=list[int])  # to those that are not named here
    other_items: list[int] = field(default_factory=list[int])
    names: list[int] = field(default_factory=list[int])  # to the names themselves
    each: int = _KEYWORD
    integer: int = 0  # for a small one
    number: int = 0  # for any other number
    object: int = 0
    char: int = 0  # for each character of a text
    name_char: int = 0
    unique: int = 0


class Plan(Struct, frozen=True):
    """A schema that may be compiled, and its parts; the first one is the schema itself."""

    dialect: str
    schema: dict[str, Any]
    parts: list[Part]
    again: int
    choices: bool


def read(schema: Any, limits: SchemaLimits) -> Plan:
    """The plan of a schema, or Unusable."""
    if not isinstance(schema, dict):
        raise Unusable("not a schema: it must be an object")
    _check_size(schema, limits)
    return _Reader(cast("dict[str, Any]", schema), limits).read()


def _check_size(schema: Any, limits: SchemaLimits) -> None:
    level: list[Any] = [schema]
    for _ in range(limits.depth):
        level = [inner for one in level for inner in _held(one) if type(inner) in (dict, list)]
        if not level:
            break
    else:
        raise Unusable(f"nested deeper than {limits.depth}")
    try:
        size = len(encode(schema))
    except (TypeError, ValueError):
        raise Unusable("not a schema: it is not JSON") from None
    if size > limits.size:
        raise Unusable(f"too large: {size} bytes, more than {limits.size}")


def _held(value: Any) -> Any:
    return value.values() if type(value) is dict else value


class _Reader:
    """Reads one schema: first its names, then what can be reached from its root."""

    def __init__(self, schema: dict[str, Any], limits: SchemaLimits) -> None:
        self._root = schema
        self._limits = limits
        self._dialect = _dialect(schema)
        self._siblings = self._dialect != DRAFT_7  # there a $ref hides everything beside it
        self._documents: dict[str, dict[str, Any]] = {"": schema}
        self._anchors: dict[tuple[str, str], dict[str, Any]] = {}
        self._parts: list[Part] = []
        self._numbers: dict[tuple[int, str], int] = {}
        self._waiting: list[tuple[int, Any, str]] = []
        self._targets: set[int] = {0}
        self._seen = 0
        self._values = 0
        self._patterns = 0
        self._keywords: set[str] = set()

    def read(self) -> Plan:
        self._name(self._root, "")
        self._number(self._root, "")
        while self._waiting:
            number, schema, base = self._waiting.pop()
            self._fill(self._parts[number], schema, base)
        again = _AGAIN if self._keywords & {"unevaluatedProperties", "unevaluatedItems"} else 1
        _rank(self._parts, again, self._limits.cost)
        home = "definitions" if self._dialect == DRAFT_7 else "$defs"
        homes = {str(number): self._render(number, home) for number in sorted(self._targets)}
        return Plan(
            dialect=self._dialect,
            schema={"$schema": self._dialect, "allOf": [{"$ref": f"#/{home}/0"}], home: homes},
            parts=self._parts,
            again=again,
            choices=bool(self._keywords & _CHOICES),
        )

    # Names: $id and $anchor, looked for where schemas are.

    def _name(self, schema: Any, base: str) -> None:
        if not isinstance(schema, dict):
            return
        self._seen += 1
        if self._seen > self._limits.schemas:
            raise Unusable(f"too large: more than {self._limits.schemas} schemas")
        base = self._base(schema, base)
        if isinstance(schema.get("$id"), str) and not schema["$id"].startswith("#"):
            self._documents.setdefault(base, schema)
        for anchor in (schema.get("$anchor"), schema.get("$dynamicAnchor"), _old_anchor(schema)):
            if isinstance(anchor, str):
                self._anchors.setdefault((base, anchor), schema)
        for keyword, value in schema.items():
            if keyword in _HERE or keyword in _INSIDE or keyword in _HOMES:
                for inner in _schemas(keyword, value):
                    self._name(inner, base)

    def _base(self, schema: dict[str, Any], base: str) -> str:
        own = schema.get("$id")
        if not isinstance(own, str) or own.startswith("#") or (not self._siblings and "$ref" in schema):
            return base
        if len(own) > _LONGEST_ID:
            raise Unusable(f"an $id of more than {_LONGEST_ID} characters")
        return _joined(base, own)[0]

    def _resolve(self, ref: str, base: str) -> tuple[Any, str]:
        """The schema a reference means, and the base of the references inside it."""
        document, fragment = _joined(base, ref)
        found = self._documents.get(document)
        if found is None:
            raise Unusable(f"refers elsewhere: {clip(ref)}")
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            target: Any = self._anchors.get((document, fragment))
            return self._there(target, ref), document
        target = found
        for step in fragment.split("/")[1:]:
            if isinstance(target, dict):
                document = self._base(cast("dict[str, Any]", target), document)
            target = _member(target, step.replace("~1", "/").replace("~0", "~"))
            if target is None:
                break
        return self._there(target, ref), document

    def _there(self, target: Any, ref: str) -> Any:
        if not isinstance(target, dict | bool):
            raise Unusable(f"refers to what is not there: {clip(ref)}")
        return target

    # Parts.

    def _number(self, schema: Any, base: str) -> int:
        if not isinstance(schema, dict | bool):
            raise Unusable("not a schema: an object, true or false is expected where schemas are")
        key = (id(schema), base)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._parts)
            if number >= self._limits.schemas:
                raise Unusable(f"too large: more than {self._limits.schemas} schemas")
            self._parts.append(Part())
            self._waiting.append((number, schema, base))
        return number

    def _fill(self, part: Part, schema: Any, base: str) -> None:
        if isinstance(schema, bool):
            part.plain = {"": schema}
            return
        base = self._base(schema, base)
        ref = schema.get("$ref")
        if ref is not None:
            self._refer(part, ref, base)
            if not self._siblings:
                return
        for keyword, value in schema.items():
            if keyword in _PLAIN:
                self._price(part, keyword, value)
            elif keyword in _HERE or keyword in _INSIDE:
                self._lead(part, keyword, value, base)
            elif keyword in _MOVING:
                raise Unusable(f"refers by {keyword}, whose target is not fixed")

    def _refer(self, part: Part, ref: Any, base: str) -> None:
        if not isinstance(ref, str):
            raise Unusable("not a schema: a $ref must be a text")
        number = self._number(*self._resolve(ref, base))
        self._targets.add(number)
        part.inner["$ref"] = number
        part.here.append(number)

    def _lead(self, part: Part, keyword: str, value: Any, base: str) -> None:
        part.each += _KEYWORD
        self._keywords.add(keyword)
        if keyword == "dependencies" and isinstance(value, dict):
            lists = {name: one for name, one in value.items() if isinstance(one, list)}
            part.object += _NAME * sum(_texts(keyword, one) for one in lists.values())
            part.plain[keyword] = lists
            value = {name: one for name, one in value.items() if name not in lists}
        if keyword in _MAPS:
            if not isinstance(value, dict):
                raise Unusable(f"not a schema: {keyword} must be an object")
            inner: Any = {name: self._number(one, base) for name, one in value.items()}
            numbers = list(inner.values())
        elif keyword in _LISTS or (keyword == "items" and isinstance(value, list)):
            if not isinstance(value, list):
                raise Unusable(f"not a schema: {keyword} must be an array")
            inner = numbers = [self._number(one, base) for one in value]
        else:
            inner = self._number(value, base)
            numbers = [inner]
        part.inner[keyword] = inner
        match keyword:
            case "properties":
                part.named = inner
            case "prefixItems":
                part.places = numbers
            case "items" if isinstance(inner, list):
                part.places = numbers
            case "items" | "additionalItems":
                part.other_items += numbers
            case "unevaluatedItems" | "contains":
                part.items += numbers
            case "additionalProperties":
                part.other_members += numbers
            case "unevaluatedProperties":
                part.members += numbers
            case "patternProperties":
                part.members += numbers
                for pattern in inner:
                    part.name_char += self._pattern(pattern)
                    part.object += _KEYWORD
            case "propertyNames":
                part.names += numbers
            case _:
                part.here += numbers

    def _price(self, part: Part, keyword: str, value: Any) -> None:
        part.plain[keyword] = value
        part.each += _KEYWORD
        match keyword:
            case "enum" if isinstance(value, list):
                part.each += self._compared(value)
            case "const":
                part.each += self._compared([value])
            case "multipleOf" | "maximum" | "minimum" | "exclusiveMaximum" | "exclusiveMinimum":
                self._number_price(part, keyword, value)
            case "type" if not isinstance(value, str):
                _texts(keyword, value)
            case "required":
                part.object += _NAME * _texts(keyword, value)
            case "dependentRequired" if isinstance(value, dict):
                part.object += _NAME * sum(_texts(keyword, one) for one in value.values())
            case "pattern":
                part.char += self._pattern(value)
            case "uniqueItems" if value is True:
                part.unique += 1
            case _:
                pass

    def _number_price(self, part: Part, keyword: str, value: Any) -> None:
        if _small(value):
            part.integer += _KEYWORD
            part.number += _LARGE_DIVISION if keyword == "multipleOf" else _FLOAT
        else:
            price = _comparison(value)
            part.integer += price
            part.number += price

    def _pattern(self, pattern: Any) -> int:
        if not isinstance(pattern, str):
            raise Unusable("not a schema: a pattern must be a text")
        if len(pattern) > self._limits.pattern:
            raise Unusable(f"a pattern of more than {self._limits.pattern} characters: {clip(pattern, 64)}")
        self._patterns += 1
        if self._patterns > self._limits.patterns:
            raise Unusable(f"more than {self._limits.patterns} patterns")
        return 1 + places_at_once(pattern)

    def _compared(self, values: list[Any]) -> int:
        """What it costs to find a value among these: only texts, and only small integers, are looked up at once."""
        level: list[Any] = values
        cost = count = 0
        while level:
            count += len(level)
            cost += sum(map(_comparison, level))
            level = [inner for one in level if type(one) in (dict, list) for inner in _held(one)]
        self._values += count
        if self._values > self._limits.values:
            raise Unusable(f"too large: more than {self._limits.values} values in enum and const")
        alike = all(type(one) is str for one in values) or all(_small(one) for one in values)
        return _KEYWORD if alike and len(values) > 1 else cost

    def _render(self, number: int, home: str) -> Any:
        """The part as a schema; what is referred to stands once, under `home`."""

        def place(number: int) -> Any:
            return {"$ref": f"#/{home}/{number}"} if number in self._targets else self._render(number, home)

        part = self._parts[number]
        if "" in part.plain:
            return part.plain[""]
        schema = dict(part.plain)
        for keyword, inner in part.inner.items():
            match inner:
                case int():
                    schema[keyword] = f"#/{home}/{inner}" if keyword == "$ref" else place(inner)
                case list():
                    schema[keyword] = [place(one) for one in cast("list[int]", inner)]
                case _:
                    placed = {name: place(one) for name, one in cast("dict[str, int]", inner).items()}
                    schema[keyword] = schema.get(keyword, {}) | placed
        return schema


def _dialect(schema: dict[str, Any]) -> str:
    said = schema.get("$schema", DRAFT_2020)
    named = (
        said.removesuffix("#").replace("https://json-schema.org/draft-07", "http://json-schema.org/draft-07")
        if isinstance(said, str)
        else None
    )
    if named not in (DRAFT_7, DRAFT_2019, DRAFT_2020):
        raise Unusable(f"an unknown dialect: {clip(str(said))}")
    return named


def _old_anchor(schema: dict[str, Any]) -> str | None:
    own = schema.get("$id")
    return own[1:] if isinstance(own, str) and own.startswith("#") else None


def _joined(base: str, ref: str) -> tuple[str, str]:
    if ref.startswith("#"):
        return base, ref[1:]
    try:
        address, fragment = urldefrag(urljoin(base, ref))
    except ValueError:
        raise Unusable(f"refers elsewhere: {clip(ref)}") from None
    return address, fragment


def _member(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).get(name)
    if isinstance(value, list) and name.isascii() and name.isdigit() and len(name) < 8:
        items = cast("list[Any]", value)
        return items[int(name)] if int(name) < len(items) else None
    return None


def _schemas(keyword: str, value: Any) -> list[Any]:
    if isinstance(value, list):
        return cast("list[Any]", value)
    if keyword in _MAPS or keyword in _HOMES:
        return list(cast("dict[str, Any]", value).values()) if isinstance(value, dict) else []
    return [value]


def _texts(keyword: str, value: Any) -> int:
    """How many texts these are. Anything else must not get as far as the test for duplicates of the meta-schema."""
    if not isinstance(value, list) or not all(type(one) is str for one in value):
        raise Unusable(f"not a schema: {keyword} must be a list of texts")
    return len(value)


def _comparison(value: Any) -> int:
    if not isinstance(value, int | float) or _small(value):
        return _MEMBER
    return _EXTREME if extreme(value) else _NUMBER


def _small(value: Any) -> bool:
    return type(value) is int and -(2**53) <= value <= 2**53


def extreme(value: float) -> bool:
    """Whether a number has so many zeros that exact arithmetic is slow."""
    return value != 0 and not 1e-30 < abs(value) < 1e30


def _rank(parts: list[Part], again: int, most: int) -> None:
    """Order parts so that each comes after all that apply it to the same value; a circle of them would never end."""
    above = [0] * len(parts)
    for part in parts:
        for number in part.here:
            above[number] += 1
    ready = [number for number, count in enumerate(above) if not count]
    order: list[Part] = []
    while ready:
        part = parts[ready.pop()]
        part.rank = len(order)
        order.append(part)
        for number in part.here:
            above[number] -= 1
            if not above[number]:
                ready.append(number)
    if len(order) < len(parts):
        raise Unusable("refers to itself without an end")
    _check_expanded(parts, order, again, most)


def _check_expanded(parts: list[Part], order: list[Part], again: int, most: int) -> None:
    """Refuse parts that lead to so many others that one value is too much; no reference is followed twice."""
    costs = [0] * len(parts)
    numbers = {id(part): number for number, part in enumerate(parts)}
    for part in reversed(order):
        cost = part.each + again * sum(costs[number] for number in part.here)
        if cost > most:
            raise Unusable("too costly: its references lead to too many schemas")
        costs[numbers[id(part)]] = cost
