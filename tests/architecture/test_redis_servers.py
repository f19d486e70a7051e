"""Test that servers which a test has started end, also if a start fails."""

from pathlib import Path

import psutil
import pytest

from support import redis_servers
from support.redis_servers import RedisServer, run_redis_servers


@pytest.fixture
def processes() -> list[psutil.Process]:
    """Return the child processes before the test."""
    return psutil.Process().children()


def test_a_server_that_does_not_answer_is_ended(
    tmp_path: Path, processes: list[psutil.Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_servers, "START_TIMEOUT_S", 0.1)
    with pytest.raises(AssertionError, match="did not answer"):
        RedisServer(tmp_path, command=["sleep", "600"])
    assert psutil.Process().children() == processes


def test_the_first_server_ends_if_the_second_one_cannot_start(
    tmp_path: Path, processes: list[psutil.Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> str:
        assert len(psutil.Process().children()) == len(processes) + 1
        raise FileNotFoundError

    def start_both() -> None:
        with run_redis_servers(lambda: tmp_path) as get_server:
            get_server("valkey")
            get_server("redis")

    monkeypatch.setattr(redis_servers, "get_program", fail)
    with pytest.raises(FileNotFoundError):
        start_both()
    assert psutil.Process().children() == processes
