"""Test the table of methods against the official schemas: names, protocol versions and directions."""

import functools
import json
from typing import Any

import pytest

from dovetail.wire.base import CacheableResult
from dovetail.wire.methods import BATCH_REVISIONS, METHODS, REQUESTS, Method
from dovetail.wire.revisions import DRAFT, HANDSHAKE_REVISIONS, NEWEST_REVISION, PUBLISHED_REVISIONS, REVISIONS
from support.official_schemas import each_schema, load_schema, needs_schema

# Answered in every handshake revision because the project was asked for it; no published revision names it.
OURS = {"shutdown"}
# The experimental tasks of one revision are not served.
NOT_SERVED = {"tasks/get", "tasks/list", "tasks/cancel", "tasks/result", "notifications/tasks/status"}
SIDES = {
    "ClientRequest": ("client", True),
    "ServerRequest": ("server", True),
    "ClientNotification": ("client", False),
    "ServerNotification": ("server", False),
}

each_revision = each_schema(PUBLISHED_REVISIONS)


@functools.cache
def official(revision: str) -> dict[str, tuple[set[str], bool]]:
    """What a revision's schema says: each method, who sends it, and whether it is a request."""
    schema = load_schema(revision)
    named: dict[str, Any] = schema.get("$defs") or schema["definitions"]
    found: dict[str, tuple[set[str], bool]] = {}
    for union, (side, request) in SIDES.items():
        options = named.get(union, {})
        for option in options.get("anyOf", [options] if "$ref" in options else []):
            method = named[option["$ref"].rsplit("/", 1)[1]]["properties"]["method"]["const"]
            found.setdefault(method, (set(), request))[0].add(side)
    return found


def senders(row: Method) -> set[str]:
    return {"client", "server"} if row.sender == "both" else {row.sender}


@each_revision
def test_every_published_method_is_in_the_table_and_no_other(revision: str) -> None:
    ours = {name for name, row in METHODS.items() if row.exists_in(revision)} - OURS
    theirs = set(official(revision)) - NOT_SERVED
    # In the newest revision the client is asked inside a result, so its methods stand in no union there.
    asked = (
        {name for name, row in METHODS.items() if row.sender == "server" and row.result}
        if revision == NEWEST_REVISION
        else set()
    )
    assert ours - asked == theirs - asked


@each_revision
def test_the_sides_and_kinds_are_those_of_the_schema(revision: str) -> None:
    for name, (sides, request) in official(revision).items():
        if name not in NOT_SERVED:
            row = METHODS[name]
            assert (row.result is not None) == request, name
            assert sides <= senders(row), name


@needs_schema(NEWEST_REVISION)
def test_methods_answered_with_a_lifetime_or_a_question_are_those_of_the_newest_schema() -> None:
    schema = load_schema(NEWEST_REVISION)["$defs"]
    for name, row in METHODS.items():
        if row.result is None or row.sender == "server" or not row.exists_in(NEWEST_REVISION):
            continue
        described = schema[row.result.__name__.replace("ListenResult", "SubscriptionsListenResult")]
        assert row.is_cacheable == ("ttlMs" in json.dumps(described)), name
        assert row.is_cacheable == issubclass(row.result, CacheableResult), name


def test_mirrored_parameters_are_parameters() -> None:
    for row in METHODS.values():
        if row.name_parameter is not None:
            assert row.name_parameter in row.params.__struct_encode_fields__
            assert row.may_require_input
            assert {"requestState", "inputResponses"} <= set(row.params.__struct_encode_fields__)


@pytest.mark.parametrize("revision", REVISIONS)
def test_the_lookup_is_the_table_cut_to_one_revision(revision: str) -> None:
    expected = {
        name: row
        for name, row in METHODS.items()
        if row.exists_in(revision) and row.result is not None and row.sender != "server"
    }
    assert REQUESTS[revision] == expected


def test_handshake_and_stateless_methods_exclude_each_other() -> None:
    for gone in ("initialize", "ping", "shutdown", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"):
        assert gone not in REQUESTS[NEWEST_REVISION]
        assert all(gone in REQUESTS[one] for one in (*HANDSHAKE_REVISIONS, DRAFT))
    for new in ("server/discover", "subscriptions/listen"):
        assert new in REQUESTS[NEWEST_REVISION]
        assert not any(new in REQUESTS[one] for one in (*HANDSHAKE_REVISIONS, DRAFT))


def test_the_dialect_has_rows_of_its_own_and_all_of_the_newest_handshake_revision() -> None:
    own = {name for name, row in METHODS.items() if row.exists_in(DRAFT) and not row.exists_in(HANDSHAKE_REVISIONS[-1])}
    assert own == {
        "elicitation/createDialog",
        "notifications/elicitation/dialog_opened",
        "notifications/elicitation/dialog_closed",
    }
    assert all(row.exists_in(DRAFT) for row in METHODS.values() if row.exists_in(HANDSHAKE_REVISIONS[-1]))


def test_only_one_revision_has_batches() -> None:
    assert {"2025-03-26"} == BATCH_REVISIONS
