"""URI templates (RFC 6570). Any template can be expanded, but only an unambiguous template can be matched.

The constructor rejects ambiguous templates. `match` rejects values that could leave their location, such as "..".
It takes time linear in the length of the URI, because it only searches forward.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, cast
from urllib.parse import quote

from dovetail.error_context import clip
from dovetail.protocol.uri_key import MAX_URI_CHARS, UNRESERVED, fold_site
from dovetail.protocol.uri_readings import uri_readings

Value = str | int | float | Sequence[str] | Mapping[str, str] | None

MAX_TEMPLATE_CHARS: Final = 2048
# Templates above this length are not cached, because templates of other servers could fill the memory.
_MAX_CACHED_CHARS: Final = 512

_RESERVED: Final = ":/?#[]@!$&'()*+,;="
_NAME_PATTERN: Final = re.compile(r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})+(?:\.(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})+)*")
_PREFIX_PATTERN: Final = re.compile(r"[1-9][0-9]{0,3}")
_NON_LITERAL_PATTERN: Final = re.compile(r"[\x00-\x20\x7f<>\"\\^`|\ud800-\udfff]|%(?![0-9A-Fa-f]{2})")
_NON_ASCII_PATTERN: Final = re.compile(r"[^\x00-\x7f]+")
_ESCAPES_PATTERN: Final = re.compile(r"((?:%[0-9A-Fa-f]{2})+)")
_UNSAFE_PATTERN: Final = re.compile(r"[\\\x00]")
_DRIVE_PATTERN: Final = re.compile(r"[A-Za-z]:(?:/|\Z)")
# Each percent-encoded byte becomes one private-use character, so that a search cannot split the byte.
# A URI contains no other private-use characters, because characters outside ASCII are percent-encoded first.
# An encoded unreserved character equals the character itself (RFC 3986, section 2.3).
_ATOM_BY_BYTE: Final = {byte: 0xE000 + byte for byte in range(256) if byte not in UNRESERVED}
_BYTE_BY_ATOM: Final = {atom: byte for byte, atom in _ATOM_BY_BYTE.items()}


class _Operator(NamedTuple):
    first: str
    separator: str
    named: bool = False
    if_empty: str = ""
    reserved: bool = False


_OPERATORS: Final = {
    "": _Operator("", ","),
    "+": _Operator("", ",", reserved=True),
    "#": _Operator("#", ",", reserved=True),
    ".": _Operator(".", "."),
    "/": _Operator("/", "/"),
    ";": _Operator(";", ";", named=True),
    "?": _Operator("?", "&", named=True, if_empty="="),
    "&": _Operator("&", "&", named=True, if_empty="="),
}


class _Variable(NamedTuple):
    name: str
    explode: bool
    prefix: int | None


class _Expression(NamedTuple):
    symbol: str
    variables: tuple[_Variable, ...]

    @property
    def operator(self) -> _Operator:
        return _OPERATORS[self.symbol]


class _Slot(NamedTuple):
    """A variable in a URI template."""

    name: str
    forbidden: str
    separator: str | None
    read: Callable[[str], str | None]

    @property
    def can_span_segments(self) -> bool:
        return "/" not in self.forbidden

    def read_value(self, raw: str) -> str | list[str] | None:
        if any(character in raw for character in self.forbidden):
            return None
        if self.separator is None:
            return self.read(raw)
        return _read_all(self.read, raw.split(self.separator))


def may_match_template(template: str, uri: str) -> bool:
    """Return whether a template may match any form of a URI.

    Rules that deny or hide use this function, so it returns True in case of doubt.
    """
    compiled = (_compile if len(template) <= _MAX_CACHED_CHARS else _compile.__wrapped__)(template)
    return compiled is not None and any(map(compiled.may_match, uri_readings(uri)))


@lru_cache(4096)
def _compile(template: str) -> "URITemplate | None":
    try:
        return URITemplate(template)
    except ValueError:
        return None


def may_match_start(uri: str, starts: str | tuple[str, ...]) -> bool:
    """Return whether a URI may match a template that begins with one of `starts`. This check is much faster than
    `match`.
    """
    return uri.lower().startswith(starts) or "%" in uri or not uri.isascii()


def expand(text: str, values: Mapping[str, Value]) -> str:
    """Expand an RFC 6570 template. Variables without a value are left out.

    Raises:
        ValueError: the text is not a template, or a variable with a prefix has a list or mapping as its value.
    """
    return _expand(_parse(text), values)


class URITemplate:
    """A URI template that can match URIs.

    Variables outside the query and fragment are required and must not be empty. If a value may contain a separator,
    then the values on the left are as short as possible. No value can leave its location: values have no segment "." or
    "..", no backslash, NUL, leading slash or drive letter. Only values of {+…}, the query and the fragment may contain
    slashes.

    `required` lists the variables that every match has, and `lists` the variables whose value is a list. Templates with
    a greater `specificity` are tried first. `start` is the argument of `may_match_start`.

    Raises:
        ValueError: the text is not a template, or it is ambiguous which values match.
    """

    __slots__ = (
        "_fixed_pair_count",
        "_fragment_slot",
        "_left_literals",
        "_parts",
        "_query_names",
        "_right_literals",
        "_slots",
        "lists",
        "required",
        "specificity",
        "start",
        "text",
        "variables",
    )

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = _parse(text)
        variables = _collect_variables(text, self._parts)
        main, query, fragment = _split_regions(text, self._parts)
        literals, self._slots = _flatten(text, main)
        self._left_literals, self._right_literals = _split_literals(text, literals, self._slots)
        self.start = self._left_literals[0].lower()
        self._fixed_pair_count = _count_fixed_pairs(literals)
        self._query_names = frozenset(variable.name for variable in query)
        self._fragment_slot = None if fragment is None else _make_slot("#", fragment, "")
        self.variables = tuple(variable.name for variable in variables)
        self.required = tuple(slot.name for slot in self._slots)
        self.lists = frozenset(variable.name for variable in variables if variable.explode)
        spanning = sum(slot.can_span_segments for slot in self._slots)
        self.specificity = (sum(map(len, literals)), -spanning, -len(variables))

    def __repr__(self) -> str:
        return f"URITemplate({self.text!r})"

    def expand(self, values: Mapping[str, Value]) -> str:
        """Return the URI for these values. Variables without a value are left out."""
        return _expand(self._parts, values)

    def match(self, uri: str) -> dict[str, str | list[str]] | None:
        """Return the decoded values of the variables in a URI. Return None if the URI does not match."""
        if len(uri) > MAX_URI_CHARS or not (uri.startswith(self._left_literals[0]) or may_match_start(uri, self.start)):
            return None
        try:
            text = _to_atoms(uri)
        except UnicodeEncodeError:
            return None
        text, fragment = self._split_fragment(text)
        text, pairs = self._split_query(text)
        gaps = self._find_gaps(text)
        if gaps is None:
            return None
        values = {
            slot.name: slot.read_value(text[start:end]) for slot, (start, end) in zip(self._slots, gaps, strict=True)
        }
        values |= self._read_query(pairs)
        if self._fragment_slot is not None and fragment is not None:
            values[self._fragment_slot.name] = self._fragment_slot.read_value(fragment)
        return None if None in values.values() else cast("dict[str, str | list[str]]", values)

    def may_match(self, uri: str) -> bool:
        """Return whether an access rule for this template applies to a URI.

        Every rule applies to a URI that is too long to check.
        """
        return len(uri) > MAX_URI_CHARS or self.match(uri) is not None

    def _split_fragment(self, text: str) -> tuple[str, str | None]:
        if self._fragment_slot is None:
            return text, None
        text, mark, fragment = text.partition("#")
        return text, fragment if mark else None

    def _split_query(self, text: str) -> tuple[str, list[str]]:
        path, mark, query = text.partition("?")
        if not self._query_names or not mark:
            return text, []
        pairs = query.split("&")
        fixed = f"?{'&'.join(pairs[: self._fixed_pair_count])}" if self._fixed_pair_count else ""
        return path + fixed, pairs[self._fixed_pair_count :]

    def _read_query(self, pairs: list[str]) -> dict[str, str | list[str] | None]:
        raws_by_name: dict[str, list[str]] = {}
        for pair in pairs:
            name, _, raw = pair.partition("=")
            raws_by_name.setdefault(name, []).append(raw)
        return {name: self._read_parameter(name, raws) for name, raws in raws_by_name.items()}

    def _read_parameter(self, name: str, raws: list[str]) -> str | list[str] | None:
        # Servers may interpret unknown names and repeated values differently, so both are rejected.
        if name not in self._query_names or (len(raws) > 1 and name not in self.lists):
            return None
        values = _read_all(_read_parameter, raws)
        return values if values is None or name in self.lists else values[0]

    def _find_gaps(self, text: str) -> list[tuple[int, int]] | None:
        folded = fold_site(text)
        if not self._slots:
            return [] if folded == self._left_literals[0] else None
        # If a variable may contain slashes, the text after it is not part of the host, so its case matters.
        ends_in_span = self._slots[len(self._left_literals) - 1].can_span_segments
        left = _find_literals(self._left_literals, folded)
        right = _find_literals(self._right_literals, (text if ends_in_span else folded)[::-1])
        if left is None or right is None or left[-1][1] + right[-1][1] >= len(text):
            return None
        ends = left + [(len(text) - end, len(text) - start) for start, end in reversed(right)]
        return [(before, after) for (_, before), (after, _) in pairwise(ends)]


def _find_literals(literals: Sequence[str], text: str) -> list[tuple[int, int]] | None:
    """Return the positions of the literals in a URI. Between two literals, there must be at least one character.

    The first position is always enough. Either the next slot can contain the characters of later positions, or the
    literal has only one position. Therefore no backtracking is necessary.
    """
    if not text.startswith(literals[0]):
        return None
    positions = [(0, len(literals[0]))]
    for literal in literals[1:]:
        start = text.find(literal, positions[-1][1] + 1)
        if start < 0:
            return None
        positions.append((start, start + len(literal)))
    return positions


def _make_error(text: str, reason: str) -> ValueError:
    return ValueError(f"URI template '{clip(text)}': {reason}")


def _parse(text: str) -> list[str | _Expression]:
    if len(text) > MAX_TEMPLATE_CHARS:
        raise _make_error(text, f"the template is longer than {MAX_TEMPLATE_CHARS} characters")
    parts: list[str | _Expression] = []
    for index, piece in enumerate(text.split("{")):
        body, closed, literal = piece.partition("}") if index else ("", "", piece)
        if index and not closed:
            raise _make_error(text, "'{' has no matching '}'")
        if "}" in literal:
            raise _make_error(text, "'}' has no matching '{'")
        if index:
            parts.append(_parse_expression(text, body))
        if literal:
            parts.append(_parse_literal(text, literal))
    return parts


def _parse_literal(text: str, literal: str) -> str:
    if invalid := _NON_LITERAL_PATTERN.search(literal):
        raise _make_error(text, f"the character {invalid[0]!a} must be percent-encoded")
    return _to_ascii(literal)


def _parse_expression(text: str, body: str) -> _Expression:
    if body[:1] in tuple("=,!@|"):
        raise _make_error(text, f"the operator '{body[0]}' is reserved")
    symbol = body[:1] if body[:1] in _OPERATORS else ""
    names = body[len(symbol) :].split(",")
    return _Expression(symbol, tuple(_parse_variable(text, name) for name in names))


def _parse_variable(text: str, specification: str) -> _Variable:
    name, colon, length = specification.removesuffix("*").partition(":")
    if not _NAME_PATTERN.fullmatch(name):
        raise _make_error(text, f"invalid variable name '{clip(name, 64)}'")
    explode = specification.endswith("*")
    if colon and (explode or not _PREFIX_PATTERN.fullmatch(length)):
        raise _make_error(text, f"the prefix length of '{clip(name, 64)}' must be a number from 1 to 9999")
    return _Variable(name, explode, int(length) if colon else None)


def _collect_variables(text: str, parts: Sequence[str | _Expression]) -> list[_Variable]:
    variables: dict[str, _Variable] = {}
    for part in parts:
        for variable in part.variables if isinstance(part, _Expression) else ():
            if variable.name in variables:
                raise _make_error(text, f"the variable '{variable.name}' is used twice")
            if "%" in variable.name:
                raise _make_error(text, f"'{variable.name}' is not a valid parameter name")
            if variable.prefix is not None:
                raise _make_error(
                    text,
                    f"'{variable.name}' has a prefix length, so the URI would contain only the start of the value",
                )
            variables[variable.name] = variable
    return list(variables.values())


def _split_regions(
    text: str, parts: Sequence[str | _Expression]
) -> tuple[list[str | _Expression], list[_Variable], _Variable | None]:
    main: list[str | _Expression] = []
    query: list[_Variable] = []
    fragment: _Variable | None = None
    for part in parts:
        symbol = part.symbol if isinstance(part, _Expression) else ""
        if fragment is not None:
            raise _make_error(text, "the fragment must be at the end of the template")
        if isinstance(part, _Expression) and symbol == "#":
            fragment = _require_single_variable(text, part)
        elif isinstance(part, _Expression) and symbol in ("?", "&"):
            if (symbol == "?") == (bool(query) or _contains(main, "?")):
                raise _make_error(text, "the first expression of a query must be {?…}, and all others {&…}")
            query.extend(part.variables)
        elif query:
            raise _make_error(text, "only {&…} and {#…} may follow a query expression")
        else:
            main.append(part)
    if fragment is not None and _contains(main, "#"):
        raise _make_error(text, "it has two fragments")
    return main, query, fragment


def _contains(parts: Sequence[str | _Expression], character: str) -> bool:
    return any(isinstance(part, str) and character in part for part in parts)


def _require_single_variable(text: str, expression: _Expression) -> _Variable:
    variable, *others = expression.variables
    if others:
        raise _make_error(
            text,
            f"'{variable.name}' and '{others[0].name}' cannot be told apart, because their values may contain a comma",
        )
    return variable


def _flatten(text: str, parts: Sequence[str | _Expression]) -> tuple[list[str], list[_Slot]]:
    """Split a template into literals and the variables between them.

    The first and the last part are always literals. Literals include the characters that operators add.
    """
    literals, slots = [""], list[_Slot]()
    forbidden = "/?#"
    for part in parts:
        if isinstance(part, str):
            literals[-1] += part
            continue
        operator = part.operator
        if operator.reserved:
            _require_single_variable(text, part)
        for index, variable in enumerate(part.variables):
            literals[-1] += operator.separator if index else operator.first
            literals[-1] += f"{variable.name}=" if operator.named else ""
            if slots and not literals[-1]:
                raise _make_error(
                    text,
                    f"'{slots[-1].name}' and '{variable.name}' cannot be told apart, because no text separates them",
                )
            if "?" in literals[-1]:
                forbidden = "/?#&"
            slots.append(_make_slot(part.symbol, variable, forbidden))
            literals.append("")
    return [_to_atoms(literal) for literal in literals], slots


def _make_slot(symbol: str, variable: _Variable, forbidden: str) -> _Slot:
    operator = _OPERATORS[symbol]
    separator = operator.separator + (f"{variable.name}=" if operator.named else "") if variable.explode else None
    if operator.reserved:
        return _Slot(variable.name, "", separator, _read_path)
    if separator == "/":
        forbidden = forbidden.replace("/", "")
    return _Slot(variable.name, forbidden, separator, _read_name)


def _split_literals(text: str, literals: Sequence[str], slots: Sequence[_Slot]) -> tuple[list[str], list[str]]:
    """Return the literals before and after the variable that may contain slashes.

    The order of the second list is reversed, and so is the text of its literals.
    """
    spanning = [index for index, slot in enumerate(slots) if slot.can_span_segments]
    if len(spanning) > 1:
        names = " and ".join(f"'{slots[index].name}'" for index in spanning[:2])
        raise _make_error(text, f"{names} cannot be told apart, because their values may contain '/'")
    middle = spanning[0] if spanning else max(len(slots) - 1, 0)
    _check_lists(text, literals, slots, middle)
    folded = _fold_literals(literals, slots)
    return folded[: middle + 1], [literal[::-1] for literal in folded[:middle:-1]]


def _check_lists(text: str, literals: Sequence[str], slots: Sequence[_Slot], middle: int) -> None:
    """Raise ValueError if the text after a list variable starts with the separator of the list.

    In that case, the end of the list would be ambiguous.
    """
    for index, slot in enumerate(slots):
        if slot.separator is None or index == middle:
            continue
        on_left = index < middle and literals[index + 1].startswith(slot.separator)
        on_right = index > middle and literals[index].endswith(slot.separator)
        if on_left or on_right:
            raise _make_error(text, f"'{slot.name}' is ambiguous, because the end of the list cannot be found")


def _fold_literals(literals: Sequence[str], slots: Sequence[_Slot]) -> list[str]:
    marks = ["/" if slot.can_span_segments else "x" for slot in slots]
    folded = fold_site("".join(literal + mark for literal, mark in zip(literals, [*marks, ""], strict=True)))
    ends = list(accumulate(len(literal) + 1 for literal in literals))
    return [folded[end - 1 - len(literal) : end - 1] for literal, end in zip(literals, ends, strict=True)]


def _count_fixed_pairs(literals: Sequence[str]) -> int:
    _, mark, query = "".join(literals).partition("?")
    return query.count("&") + 1 if mark else 0


def _read_all(read: Callable[[str], str | None], raws: Sequence[str]) -> list[str] | None:
    values = [read(raw) for raw in raws]
    return None if None in values else cast("list[str]", values)


def _read_name(raw: str) -> str | None:
    value = _read_path(raw)
    return None if not value or "/" in value else value


def _read_path(raw: str) -> str | None:
    value = _decode(raw)
    if value is None or _UNSAFE_PATTERN.search(value) or value.startswith("/") or _DRIVE_PATTERN.match(value):
        return None
    return None if any(segment in (".", "..") for segment in value.split("/")) else value


def _read_parameter(raw: str) -> str | None:
    return None if "#" in raw else _read_path(raw)


def _to_ascii(text: str) -> str:
    return _NON_ASCII_PATTERN.sub(lambda match: quote(match[0], safe=""), text)


def _to_atoms(text: str) -> str:
    """Replace each percent-encoded byte with a single character, so that the byte cannot be split."""
    if text.isascii() and "%" not in text:
        return text
    text = _NON_ASCII_PATTERN.sub(lambda match: _bytes_to_atoms(match[0].encode()), text)
    return _ESCAPES_PATTERN.sub(lambda match: _bytes_to_atoms(bytes.fromhex(match[0].replace("%", ""))), text)


def _bytes_to_atoms(raw: bytes) -> str:
    return raw.decode("latin-1").translate(_ATOM_BY_BYTE)


def _decode(atoms: str) -> str | None:
    """Decode a text once. Decoding a text twice could hide path traversal.

    Return None if a '%' is not part of a valid escape sequence.
    """
    if "%" in atoms:
        return None
    try:
        return atoms if atoms.isascii() else atoms.translate(_BYTE_BY_ATOM).encode("latin-1").decode()
    except UnicodeDecodeError:
        return None


def _expand(parts: Sequence[str | _Expression], values: Mapping[str, Value]) -> str:
    return "".join(part if isinstance(part, str) else _expand_expression(part, values) for part in parts)


def _expand_expression(expression: _Expression, values: Mapping[str, Value]) -> str:
    operator = expression.operator
    pieces: list[str] = []
    for variable in expression.variables:
        value = values.get(variable.name)
        # In RFC 6570, an empty list or mapping is undefined, but an empty string is not.
        if value is not None and (value or isinstance(value, str | int | float)):
            pieces.append(_expand_variable(operator, variable, value))
    return operator.first + operator.separator.join(pieces) if pieces else ""


def _expand_variable(operator: _Operator, variable: _Variable, value: Value) -> str:
    encode = _encode_reserved if operator.reserved else _encode
    if isinstance(value, str) or not isinstance(value, Sequence | Mapping):
        return _format_named(operator, variable.name, encode(str(value)[: variable.prefix]))
    if variable.prefix is not None:
        raise ValueError(
            f"'{variable.name}' is a list or a mapping, so the template cannot shorten it with a length such as ':3'"
        )
    if isinstance(value, Mapping):
        pairs = [(encode(name), encode(item)) for name, item in value.items()]
        if variable.explode:
            return operator.separator.join(_format_pair(operator, name, item) for name, item in pairs)
        items = [text for pair in pairs for text in pair]
    else:
        items = [encode(item) for item in value]
        if variable.explode:
            return operator.separator.join(_format_named(operator, variable.name, item) for item in items)
    return _format_named(operator, variable.name, ",".join(items))


def _format_named(operator: _Operator, name: str, text: str) -> str:
    return _format_pair(operator, name, text) if operator.named else text


def _format_pair(operator: _Operator, name: str, text: str) -> str:
    return f"{name}={text}" if text or not operator.named else name + operator.if_empty


def _encode(text: str) -> str:
    return quote(text, safe="")


def _encode_reserved(text: str) -> str:
    pieces = _ESCAPES_PATTERN.split(text)
    return "".join(piece if index % 2 else quote(piece, safe=_RESERVED) for index, piece in enumerate(pieces))
