"""Test that a server serves a folder of skills."""

import hashlib
from pathlib import Path

from behaviour.manifest import requirement
from behaviour.request_helpers import expect_error
from dovetail import Server
from support.driver import connect

MANIFEST = "---\nname: pdf\ndescription: Read PDF files.\nreleased: 2026-01-01\n---\n\nBody.\n"
ROOT = "skill://acme/pdf"


def create_app(folder: Path) -> Server:
    (folder / "acme" / "pdf" / "references").mkdir(parents=True)
    (folder / "acme" / "pdf" / "SKILL.md").write_text(MANIFEST)
    (folder / "acme" / "pdf" / "references" / "forms.md").write_text("forms")
    (folder / "secret.txt").write_text("secret")
    app = Server("skills")
    app.add_skills(folder)
    return app


@requirement("skills.served")
async def test_listed_skills_can_be_read(revision: str, transport: str, tmp_path: Path) -> None:
    async with connect(create_app(tmp_path), transport, revision) as peer:
        [skill] = (await peer.request("skills/list"))["skills"]
        assert skill["uri"] == f"{ROOT}/SKILL.md"
        assert skill["frontmatter"] == {"name": "pdf", "description": "Read PDF files.", "released": "2026-01-01"}
        assert [file["uri"] for file in skill["resources"]] == [f"{ROOT}/SKILL.md", f"{ROOT}/references/forms.md"]
        for file in skill["resources"]:
            [contents] = (await peer.request("resources/read", {"uri": file["uri"]}))["contents"]
            data = contents["text"].encode()
            assert (len(data), f"sha256:{hashlib.sha256(data).hexdigest()}") == (file["size"], file["digest"])
        assert (await peer.request("skills/get", {"uri": skill["uri"]}))["skill"] == skill
        directory = await peer.request("resources/directory/read", {"uri": ROOT})
        assert [child["uri"] for child in directory["resources"]] == [f"{ROOT}/SKILL.md", f"{ROOT}/references"]


@requirement("skills.not-found")
async def test_other_uris_are_not_found(revision: str, transport: str, tmp_path: Path) -> None:
    async with connect(create_app(tmp_path), transport, revision) as peer:
        for uri in (f"{ROOT}/../../secret.txt", f"{ROOT}/..%2f..%2fsecret.txt", f"{ROOT}/x", "skill://secret.txt"):
            for method in ("skills/get", "resources/directory/read"):
                assert (await expect_error(peer.request(method, {"uri": uri}))).code == -32602
            code = (await expect_error(peer.request("resources/read", {"uri": uri}))).code
            assert code in (-32602, -32002)
