"""T23: no URI reaches outside the folder that a template serves."""

from pathlib import Path

from lab import Client, Start


def test_a_file_outside_is_not_found(start: Start, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("secret")
    answer = Client(start(root=str(root))).request("resources/read", {"uri": "docs://../secret"})
    assert "secret" not in str(answer.message.get("result"))
