"""Test that the pictures of the command line show what the commands print today."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("screenshots", ROOT / "docs" / "screenshots.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["screenshots"] = module  # dataclasses look up the module of a class
    spec.loader.exec_module(module)
    return module


if os.name == "nt":
    pytest.skip("platform: no pseudo-terminals", allow_module_level=True)
SCREENSHOTS = _load()


@pytest.mark.parametrize("screenshot", SCREENSHOTS.SCREENSHOTS, ids=lambda screenshot: screenshot.name)
def test_a_picture_is_current(screenshot: Any) -> None:
    current = SCREENSHOTS.draw(screenshot, SCREENSHOTS.capture(screenshot))
    stored = (ROOT / "docs" / "images" / f"{screenshot.name}.svg").read_text(encoding="utf-8")
    assert SCREENSHOTS.read_text(stored) == SCREENSHOTS.read_text(current), "run docs/screenshots.py"
    assert "http" not in stored.replace("http://www.w3.org/2000/svg", "").replace("https://www.textualize.io", "")
