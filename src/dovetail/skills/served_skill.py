"""A skill that a server serves, from a folder or from a function: its entry, its files and its directories."""

import mimetypes
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dovetail.protocol.uri_key import uri_key
from dovetail.skills.skill import DYNAMIC, MANIFEST, SkillEntry, SkillFile, quote_path
from dovetail.wire.base import Struct
from dovetail.wire.content import ResourceContents
from dovetail.wire.resources import Resource

_DIRECTORY_TYPE: Final = "inode/directory"
_MARKDOWN_TYPE: Final = "text/markdown"
# Operating systems have different tables of MIME types, so only Python's table is used.
_MIME_TYPES: Final = mimetypes.MimeTypes()
_MIME_TYPES.add_type(_MARKDOWN_TYPE, ".md")


class SkillProblem(ValueError):
    """Raised if a skill cannot be served. The message names the file and the solution."""


class ServedSkill(Struct, frozen=True):
    """The current version of a skill on a server. Each change of the skill creates a new object."""

    entry: SkillEntry
    directory: tuple[str, ...]  # the path of the skill's folder, as a tuple of names
    files: dict[str, Resource]  # maps the path of each file in the skill to its definition

    @property
    def root(self) -> str:
        """Return the URI of the directory of the skill."""
        return self.entry.uri.removesuffix(f"/{MANIFEST}")

    @property
    def listed_files(self) -> list[SkillFile]:
        """Return the files with their digests. For a dynamic skill, return an empty list."""
        return [] if isinstance(self.entry.resources, str) else self.entry.resources


def build_served_skill(
    directory: tuple[str, ...],
    front_matter: dict[str, Any],
    digests: Mapping[str, tuple[str, int]],
    *,
    is_dynamic: bool = False,
) -> ServedSkill:
    """Create a skill from its front matter. `digests` maps the path of each file to its digest and size."""
    root = "skill://" + "/".join(map(quote_path, directory))
    paths = sorted(digests, key=lambda path: (path != MANIFEST, path))
    files = {path: describe_file(f"{root}/{quote_path(path)}", path, digests[path][1], front_matter) for path in paths}
    listed = [SkillFile(uri=files[path].uri, digest=digests[path][0], size=digests[path][1]) for path in paths]
    entry = SkillEntry(uri=f"{root}/{MANIFEST}", frontmatter=front_matter, resources=DYNAMIC if is_dynamic else listed)
    return ServedSkill(entry, directory, files)


def describe_file(uri: str, path: str, size: int, front_matter: Mapping[str, Any]) -> Resource:
    """Return the definition of a file. The definition of SKILL.md has the name and description of the skill."""
    if path == MANIFEST:
        name, description = front_matter["name"], front_matter["description"]
        return Resource(uri=uri, name=name, description=description, mime_type=_MARKDOWN_TYPE, size=size)
    return Resource(uri=uri, name=path.rpartition("/")[2], mime_type=guess_type(path), size=size)


def guess_type(path: str) -> str | None:
    """Return the MIME type for a file name, or None if it is unknown."""
    mime_type, encoding = _MIME_TYPES.guess_type(path.rpartition("/")[2])
    return None if encoding else mime_type


def decode_text(data: bytes) -> str | None:
    """Return the text of a file, or None if the file is not UTF-8 or contains a NUL byte."""
    try:
        return None if b"\x00" in data else data.decode()
    except UnicodeDecodeError:
        return None


def build_contents(resource: Resource, data: bytes) -> ResourceContents:
    """Return the content of a file as it is sent: as text, or as base64 if it is not text."""
    text = decode_text(data)
    if text is None:
        mime_type = resource.mime_type or "application/octet-stream"
        return ResourceContents(uri=resource.uri, mime_type=mime_type, blob=b64encode(data).decode("ascii"))
    return ResourceContents(uri=resource.uri, mime_type=resource.mime_type or "text/plain", text=text)


def is_in_skill(skill_uri: str, uri: str) -> bool:
    """Return whether a URI is the directory of a skill, or is in this directory."""
    root = uri_key(skill_uri.removesuffix(f"/{MANIFEST}"))
    return uri_key(uri) == root or uri_key(uri).startswith(f"{root}/")


def list_directory(skills: Iterable[ServedSkill], uri: str) -> list[Resource] | None:
    """Return the files and directories in a directory, sorted by name. Return None if there is no such directory.

    The directories are those of skills, and those that contain skills.
    """
    wanted = uri_key(uri)
    if "://" not in wanted:
        return None
    children: dict[str, Resource] = {}
    for skill in skills:
        root = uri_key(skill.root)
        if wanted == root or wanted.startswith(f"{root}/"):
            _add_files(children, skill, "" if wanted == root else f"{wanted[len(root) + 1 :]}/")
        elif root.startswith(f"{wanted}/"):
            # `uri_key` may change letters and escapes of the URI, but it keeps the number of slashes.
            depth = wanted.count("/") + 1
            child = "/".join(skill.root.split("/")[: depth + 1])
            children.setdefault(child, _describe_directory(child, skill.directory[depth - 2]))
    return sorted(children.values(), key=lambda child: child.name) if children else None


def _add_files(children: dict[str, Resource], skill: ServedSkill, prefix: str) -> None:
    for path, resource in skill.files.items():
        encoded = quote_path(path)
        if not encoded.startswith(prefix):
            continue
        segment, slash, _ = encoded[len(prefix) :].partition("/")
        if slash:
            child = f"{skill.root}/{prefix}{segment}"
            name = path.split("/")[prefix.count("/")]
            children.setdefault(child, _describe_directory(child, name))
        else:
            children[resource.uri] = resource


def _describe_directory(uri: str, name: str) -> Resource:
    return Resource(uri=uri, name=name, mime_type=_DIRECTORY_TYPE)
