"""Test that the sdist contains every file of the checkout, so that its tests run as documented."""

from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder

from support.build_distributions import list_tracked_files


def test_the_sdist_contains_every_file_of_the_checkout(root: Path) -> None:
    tracked = list_tracked_files()
    if tracked is None:
        pytest.skip("git: this is not a checkout")
    included = {Path(file.distribution_path).as_posix() for file in SdistBuilder(str(root)).recurse_included_files()}
    assert {*tracked} - included == {".gitignore", "pyproject.toml"}  # The builder always adds these two files.
