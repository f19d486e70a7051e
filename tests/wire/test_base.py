import importlib
import pkgutil

import msgspec
import pytest

import dovetail.wire
from dovetail.wire.base import (
    UNSET,
    CacheableResult,
    EmptyResult,
    PaginatedParams,
    Params,
    Result,
    UnsetType,
    WireStruct,
    field,
)


def every_struct() -> list[type[WireStruct]]:
    for module in pkgutil.iter_modules(dovetail.wire.__path__):
        importlib.import_module(f"dovetail.wire.{module.name}")
    found: list[type[WireStruct]] = []
    waiting = [WireStruct]
    while waiting:
        struct = waiting.pop()
        found.append(struct)
        waiting += [child for child in struct.__subclasses__() if child.__module__.startswith("dovetail.wire.")]
    return found


class Sample(Params):
    two_words: str
    a_list: list[int]
    maybe: int | None = None
    nullable: int | UnsetType | None = UNSET


def test_names_are_camel_case_and_defaults_stay_home() -> None:
    assert msgspec.json.encode(Sample(two_words="x", a_list=[])) == b'{"twoWords":"x","aList":[]}'


def test_null_is_sent_only_where_unset_is_the_default() -> None:
    value = Sample(two_words="x", a_list=[1], maybe=None, nullable=None)
    assert msgspec.json.encode(value) == b'{"twoWords":"x","aList":[1],"nullable":null}'
    assert msgspec.json.decode(msgspec.json.encode(value), type=Sample) == value


def test_null_is_accepted_for_what_may_be_absent() -> None:
    assert msgspec.json.decode(b'{"cursor":null,"_meta":null}', type=PaginatedParams) == PaginatedParams()


def test_unknown_members_are_ignored() -> None:
    assert msgspec.json.decode(b'{"fromTheFuture":1}', type=EmptyResult) == EmptyResult()


def test_a_missing_required_member_is_refused_by_its_wire_name() -> None:
    with pytest.raises(msgspec.ValidationError, match="twoWords"):
        msgspec.json.decode(b'{"aList":[]}', type=Sample)


def test_meta_keeps_foreign_keys_and_its_underscore() -> None:
    text = b'{"_meta":{"com.example/x":{"deep":[1,null]}}}'
    assert msgspec.json.encode(msgspec.json.decode(text, type=Params)) == text
    assert msgspec.json.encode(Params(meta={})) == b'{"_meta":{}}'


def test_structs_are_keyword_only_in_every_generation() -> None:
    with pytest.raises(TypeError):
        Sample("x", [])  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError):
        PaginatedParams("cursor")  # pyright: ignore[reportCallIssue]


def test_structs_cannot_be_changed_and_a_stamp_is_a_copy() -> None:
    result = CacheableResult()
    with pytest.raises(AttributeError):
        result.ttl_ms = 5  # pyright: ignore[reportAttributeAccessIssue]
    stamped = msgspec.structs.replace(result, result_type="complete", ttl_ms=0, cache_scope="private")
    assert msgspec.json.encode(result) == b"{}"
    assert msgspec.json.encode(stamped) == b'{"resultType":"complete","ttlMs":0,"cacheScope":"private"}'


def test_results_say_nothing_of_their_type_until_stamped() -> None:
    assert msgspec.json.encode(Result()) == msgspec.json.encode(EmptyResult()) == b"{}"


@pytest.mark.parametrize("scope", ["shared", "", None, 1])
def test_only_the_two_cache_scopes_exist(scope: object) -> None:
    text = msgspec.json.encode({"cacheScope": scope})
    if scope is None:
        assert msgspec.json.decode(text, type=CacheableResult).cache_scope is None
    else:
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(text, type=CacheableResult)


@pytest.mark.parametrize("struct", every_struct(), ids=lambda struct: struct.__name__)
def test_every_struct_keeps_the_house_settings(struct: type[WireStruct]) -> None:
    config = struct.__struct_config__
    assert config.frozen
    assert config.omit_defaults
    assert not config.forbid_unknown_fields
    if struct.__struct_fields__:
        with pytest.raises(TypeError, match="positional"):
            struct(None)


@pytest.mark.parametrize("struct", every_struct(), ids=lambda struct: struct.__name__)
def test_no_default_can_swallow_something_said(struct: type[WireStruct]) -> None:
    for member in msgspec.structs.fields(struct):
        assert member.default_factory is msgspec.NODEFAULT, member.name
        assert not isinstance(member.default, (list, dict)), member.name


@pytest.mark.parametrize("struct", every_struct(), ids=lambda struct: struct.__name__)
def test_meta_is_always_spelled_with_an_underscore(struct: type[WireStruct]) -> None:
    names = dict(zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True))
    assert names.get("meta", "_meta") == "_meta"


def test_field_gives_a_wire_name() -> None:
    class Named(WireStruct):
        kind: str = field(name="$kind")

    assert msgspec.json.encode(Named(kind="x")) == b'{"$kind":"x"}'
