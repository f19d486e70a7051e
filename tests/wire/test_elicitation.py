import msgspec
import pytest

from dovetail.wire.elicitation import ElicitationCompleteParams, ElicitRequestParams, ElicitResult


def test_no_mode_means_form() -> None:
    form = msgspec.json.decode(b'{"message":"?","requestedSchema":{}}', type=ElicitRequestParams)
    assert form.mode == "form"
    assert msgspec.json.encode(form) == b'{"message":"?","requestedSchema":{}}'


def test_a_visit_says_its_mode() -> None:
    visit = ElicitRequestParams(message="?", mode="url", url="https://a.example/")
    assert msgspec.json.encode(visit) == b'{"message":"?","mode":"url","url":"https://a.example/"}'


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (b'{"message":"?"}', "requestedSchema"),
        (b'{"message":"?","mode":"form","url":"https://a.example/"}', "requestedSchema"),
        (b'{"message":"?","mode":"url","requestedSchema":{}}', "url"),
        (b'{"mode":"form","requestedSchema":{}}', "message"),
    ],
)
def test_each_mode_needs_its_own(text: bytes, missing: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=f"`{missing}`"):
        msgspec.json.decode(text, type=ElicitRequestParams)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="dialog"):
        msgspec.json.decode(b'{"message":"?","mode":"dialog","requestedSchema":{}}', type=ElicitRequestParams)


@pytest.mark.parametrize("action", ["accept", "decline", "cancel"])
def test_three_things_a_person_can_do(action: str) -> None:
    text = msgspec.json.encode({"action": action})
    assert msgspec.json.encode(msgspec.json.decode(text, type=ElicitResult)) == text


def test_an_empty_answer_is_an_answer() -> None:
    assert msgspec.json.encode(ElicitResult(action="accept", content={})) == b'{"action":"accept","content":{}}'


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="reject"):
        msgspec.json.decode(b'{"action":"reject"}', type=ElicitResult)


def test_the_end_of_a_visit_names_it() -> None:
    assert msgspec.json.encode(ElicitationCompleteParams(elicitation_id="7")) == b'{"elicitationId":"7"}'
