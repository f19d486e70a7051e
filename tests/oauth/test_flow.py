"""Test the actions a flow requests from its runner, and the messages of refusals."""

import json
import re

import pytest

from dovetail.oauth.flow import FetchResponse, fetch, login_error, post_form, post_json
from dovetail.protocol.interfaces.http_types import HTTPRequest
from oauth.flow_environment import FlowEnvironment, json_answer


def test_a_document_is_asked_for_as_json() -> None:
    world = FlowEnvironment({"https://a.example/": {"x": 1}})
    assert world.run_flow(fetch("https://a.example/")).json() == {"x": 1}
    assert world.calls == [HTTPRequest("GET", url="https://a.example/", headers={"accept": "application/json"})]


def test_a_form_is_encoded() -> None:
    world = FlowEnvironment()
    world.run_flow(post_form("https://a.example/", {"a": "b c&d", "é": "="}, {"dpop": "x"}))
    (call,) = world.calls
    assert call.method == "POST"
    assert call.body == b"a=b+c%26d&%C3%A9=%3D"
    assert call.headers["content-type"] == "application/x-www-form-urlencoded"
    assert call.headers["dpop"] == "x"


def test_a_document_is_sent_as_json() -> None:
    world = FlowEnvironment()
    world.run_flow(post_json("https://a.example/", {"a": [1]}))
    assert json.loads(world.calls[0].body) == {"a": [1]}
    assert world.calls[0].headers["content-type"] == "application/json"


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"null", b'"x"', b"[" * 100_000, b'{"a":' * 100_000])
def test_a_value_that_is_not_an_object_is_none(body: bytes) -> None:
    assert FetchResponse(200, {}, body).json() is None


def test_a_refusal_says_its_code_and_words_and_no_more() -> None:
    error = login_error("token", json_answer({"error": "bad", "error_description": "x" * 999, "secret": "s3cret"}, 400))
    assert error.oauth_error == "bad"
    assert error.status_code == 400
    assert re.search("400.*bad.*xxx", str(error))
    assert "s3cret" not in str(error)
    assert len(str(error)) < 400


def test_a_refusal_cannot_paint_the_terminal() -> None:
    error = login_error("token", json_answer({"error": "\x1b[31m", "error_description": "\x07\n"}, 400))
    assert str(error).isprintable()


@pytest.mark.parametrize("body", [b"<html>secret</html>", b'{"error": 7, "error_description": ["secret"]}'])
def test_other_bodies_are_not_repeated(body: bytes) -> None:
    error = login_error("token", FetchResponse(500, {}, body))
    assert "secret" not in str(error)
    assert error.oauth_error is None


def test_a_missing_response_is_reported_as_such() -> None:
    error = login_error("token", FetchResponse(0))
    assert "token" in str(error)
    assert (error.oauth_error, error.status_code) == (None, None)
