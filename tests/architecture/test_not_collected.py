"""Test that tests are not collected if their official schema is missing, and that a line reports it."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, list[str], str]]

PROGRAM = """
from support.official_schemas import each_schema, has_schema, load_schema, needs_examples, needs_schema

@each_schema(["2024-11-05", "2025-11-25", "2026-07-28"])
def test_by_revision(revision):
    assert load_schema(revision) == {"revision": revision}

@needs_schema("2024-11-05", "2025-11-25")
def test_two():
    pass

@needs_examples
def test_examples():
    pass

def test_neither():
    pass
"""
EXTRACTED = ("2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")


@pytest.fixture(autouse=True)
def _program(project: Path) -> None:
    (project / "tests" / "test_it.py").write_text(PROGRAM, encoding="utf-8")


def write_schemas(folder: Path, *revisions: str) -> Path:
    for revision in revisions:
        (folder / revision).mkdir(parents=True)
        (folder / revision / "schema.json").write_text(f'{{"revision": "{revision}"}}', encoding="utf-8")
    return folder


def write_spec_dir(folder: Path) -> Path:
    (folder / "2026-07-28" / "examples").mkdir(parents=True)
    return write_schemas(folder, "2024-11-05")


@pytest.fixture
def run(run_pytest: Callable[..., subprocess.CompletedProcess[str]]) -> Run:
    """Return the exit code, the lines about tests that were not collected, and everything that was printed."""

    def run(*options: str, spec_dir: Path | None = None) -> tuple[int, list[str], str]:
        done = run_pytest(*options, env={"CI": "true", "MCP_SPEC_DIR": str(spec_dir or "")})
        output = done.stdout + done.stderr
        return done.returncode, [line for line in output.splitlines() if line.startswith("not collected: ")], output

    return run


def test_only_tests_with_a_source_are_collected(project: Path, run: Run) -> None:
    write_schemas(project / ".spec", *EXTRACTED)
    code, lines, output = run()
    assert (code, "3 passed" in output) == (0, True), output
    (line,) = lines
    assert "3 tests" in line
    assert "MCP_SPEC_DIR" in line

    code, lines, output = run(spec_dir=write_spec_dir(project / "spec"))
    assert (code, "6 passed" in output, lines) == (0, True, []), output


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_each_reason_is_given_once(project: Path, run: Run, options: tuple[str, ...]) -> None:
    code, lines, output = run(*options)
    assert (code, "1 passed" in output) == (0, True), output
    assert sorted(line.split()[2] for line in lines) == ["2", "3"]


def test_a_folder_without_the_schema_is_a_usage_error(project: Path, run: Run) -> None:
    code, _, output = run(spec_dir=project)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert f"MCP_SPEC_DIR is {project}" in output


def test_a_folder_without_the_examples_is_a_usage_error(project: Path, run: Run) -> None:
    code, _, output = run(spec_dir=write_schemas(project / "spec", "2024-11-05"))
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "examples does not exist" in output


def test_an_extracted_schema_is_used_before_that_of_the_folder(project: Path, run: Run) -> None:
    write_schemas(project / ".spec", *EXTRACTED)
    spec_dir = write_spec_dir(project / "spec")
    for revision in EXTRACTED:
        (spec_dir / revision).mkdir(exist_ok=True)
        (spec_dir / revision / "schema.json").write_text("{}", encoding="utf-8")
    code, lines, output = run(spec_dir=spec_dir)
    assert (code, lines) == (0, []), output
