import itertools
import typing
from typing import Any

import msgspec
import pytest

from dovetail.wire.logs import LEVELS, LoggingLevel, LoggingMessageNotificationParams, SetLevelParams, get_severity


def test_levels_rise_from_debug_to_emergency() -> None:
    assert LEVELS == ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
    assert typing.get_args(LoggingLevel) == LEVELS
    assert all(get_severity(lower) < get_severity(higher) for lower, higher in itertools.pairwise(LEVELS))
    assert (get_severity("debug"), get_severity("emergency")) == (0, 7)


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_can_be_set(level: LoggingLevel) -> None:
    assert msgspec.json.decode(msgspec.json.encode({"level": level}), type=SetLevelParams).level == level


@pytest.mark.parametrize("text", [b"{}", b'{"level":"trace"}', b'{"level":"DEBUG"}', b'{"level":1}', b'{"level":null}'])
def test_other_levels_are_refused(text: bytes) -> None:
    with pytest.raises(msgspec.ValidationError, match="level"):
        msgspec.json.decode(text, type=SetLevelParams)


@pytest.mark.parametrize("entry", [None, 0, "", [], {}, {"a": [None]}])
def test_any_value_can_be_logged(entry: Any) -> None:
    sent = msgspec.json.encode(LoggingMessageNotificationParams(level="info", data=entry))
    assert msgspec.json.decode(sent) == {"level": "info", "data": entry}


def test_an_entry_needs_something_to_say() -> None:
    with pytest.raises(msgspec.ValidationError, match="data"):
        msgspec.json.decode(b'{"level":"info"}', type=LoggingMessageNotificationParams)
