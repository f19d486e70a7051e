"""Test that every public name of dovetail.host exists."""

import pytest

import dovetail
from dovetail import host


def test_every_name_is_there() -> None:
    assert all(getattr(host, name) is not None for name in host.__all__)
    assert host.Policy is dovetail.Policy
    assert host.rule is dovetail.rule
    with pytest.raises(AttributeError, match="nothing"):
        _ = host.nothing
