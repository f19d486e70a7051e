"""Skills on the wire: their messages, the rules for their URIs, and the checks of what a server sends.

A client trusts nothing that a server sends: it checks each entry when it lists skills, and each file when it reads it.
This module does no I/O.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final, Literal
from urllib.parse import quote, unquote

from dovetail.error_context import clip
from dovetail.errors import SkillMismatch
from dovetail.protocol.uri_key import uri_key
from dovetail.skills.front_matter import (
    FrontMatterError,
    check_fields,
    is_same_json,
    parse_front_matter,
)
from dovetail.wire.base import CacheableResult, PaginatedParams, Params, Result, WireStruct
from dovetail.wire.resources import Resource

IDENTIFIER: Final = "io.modelcontextprotocol/skills"
# The specification of the extension defines these limits for one skill.
MAX_FILES: Final = 512
MAX_SKILL_BYTES: Final = 16 * 1024 * 1024
MANIFEST: Final = "SKILL.md"
DYNAMIC: Final = "dynamic"

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_SKILL_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)((?:[^/?#]+/)+)SKILL\.md")
_UNSAFE_CHARACTERS: Final = re.compile(r"[\x00-\x1f\x7f\\]")


class SkillFile(WireStruct):
    """A file of a skill, with its size in bytes and the SHA-256 digest of its content."""

    uri: str  # the URI of the file, which is a resource of the server
    digest: str  # the digest, as `sha256:` and 64 hexadecimal digits
    size: int  # the size in bytes


class SkillEntry(WireStruct):
    """The definition of a skill. `resources` lists its files, or is "dynamic" if the files may change."""

    uri: str
    frontmatter: dict[str, Any]
    resources: list[SkillFile] | Literal["dynamic"]


class ListSkillsParams(PaginatedParams):
    """The parameters of skills/list."""


class ListSkillsResult(CacheableResult):
    """The result of skills/list, with one page of skills."""

    skills: list[SkillEntry]
    next_cursor: str | None = None


class GetSkillParams(Params):
    """The parameters of skills/get, with the URI of a SKILL.md."""

    uri: str


class GetSkillResult(CacheableResult):
    """The result of skills/get."""

    skill: SkillEntry


class ReadDirectoryParams(PaginatedParams):
    """The parameters of resources/directory/read, with the URI of a directory."""

    uri: str


class ReadDirectoryResult(Result):
    """The result of resources/directory/read, with one page of the files and directories in a directory."""

    resources: list[Resource]
    next_cursor: str | None = None


def compute_digest(data: bytes) -> str:
    """Return the SHA-256 digest of a file as `sha256:` and 64 hexadecimal digits."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def quote_path(path: str) -> str:
    """Quote a path for use in a URI. Slashes stay unchanged."""
    return "/".join(quote(segment, safe="") for segment in path.split("/"))


def find_unsafe_name(name: str) -> str | None:
    """Return the reason why a file name is unsafe, or None if it is safe."""
    if name in ("", ".", ".."):
        return "it is not a file name"
    if "/" in name or _UNSAFE_CHARACTERS.search(name):
        return "it contains a slash, a backslash or a control character"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "it is not valid UTF-8"
    return None


def check_entry(entry: SkillEntry) -> dict[str, SkillFile]:
    """Check the definition of a skill, and return its files in a dict. The keys are paths such as "references/a.md".

    The dict of a dynamic skill is empty.

    Raises:
        ValueError: the entry violates the specification, or exceeds the limits that every host supports.
    """
    check_fields(entry.frontmatter)
    root = get_root(entry.uri)
    name = unquote(root.rpartition("/")[2])
    if name != entry.frontmatter["name"]:
        raise ValueError(
            f"the URI ends with the folder {clip(name)!r}, but the name of the skill is {entry.frontmatter['name']!r}"
        )
    if isinstance(entry.resources, str):
        return {}
    if len(entry.resources) > MAX_FILES:
        raise ValueError(f"the skill has {len(entry.resources)} files, but the limit is {MAX_FILES}")
    files: dict[str, SkillFile] = {}
    for file in entry.resources:
        path = get_path(root, file.uri)
        if path in files:
            raise ValueError(f"the list of files contains {clip(path)} twice")
        if not _DIGEST.fullmatch(file.digest) or file.size < 0:
            raise ValueError(f"the digest or the size of {clip(path)} is invalid")
        files[path] = file
    if MANIFEST not in files:
        raise ValueError("the list of files does not contain SKILL.md")
    total = sum(file.size for file in entry.resources)
    if total > MAX_SKILL_BYTES:
        raise ValueError(f"the files of the skill have {total} bytes, but the limit is {MAX_SKILL_BYTES}")
    return files


def get_root(uri: str) -> str:
    """Return the URI of a skill's directory. Raise ValueError if `uri` is not the URI of a SKILL.md."""
    match = _SKILL_URI.fullmatch(uri)
    if match is None:
        raise ValueError(f"{clip(uri)} is not the URI of a SKILL.md, such as skill://my-skill/SKILL.md")
    for segment in match[2].rstrip("/").split("/"):
        _check_segment(uri, segment)
    return (match[1] + match[2]).rstrip("/")


def get_path(root: str, uri: str) -> str:
    """Return the path of a file in a skill. Raise ValueError if the file is outside of the skill."""
    prefix = f"{root}/"
    if not uri.startswith(prefix) or "?" in uri or "#" in uri:
        raise ValueError(f"{clip(uri)} is not a file of {clip(root)}")
    return "/".join(_check_segment(uri, segment) for segment in uri[len(prefix) :].split("/"))


def _check_segment(uri: str, segment: str) -> str:
    name = unquote(segment, errors="surrogateescape")
    reason = find_unsafe_name(name)
    # A name that is escaped twice could be decoded twice by another program.
    if reason is None and unquote(name) != name and find_unsafe_name(unquote(name)) is not None:
        reason = "it is escaped twice"
    if reason is not None:
        raise ValueError(f"{clip(uri)} is not a safe URI: a part of the path is invalid, because {reason}")
    return name


def verify_file(file: SkillFile, data: bytes) -> None:
    """Raise SkillMismatch unless the size and the digest of a file match its entry."""
    if len(data) != file.size:
        raise SkillMismatch(file.uri, "size", file.size, len(data))
    if (digest := compute_digest(data)) != file.digest:
        raise SkillMismatch(file.uri, "digest", file.digest, digest)


def verify_front_matter(uri: str, frontmatter: Mapping[str, Any], data: bytes) -> None:
    """Raise SkillMismatch if the front matter in a SKILL.md differs from the front matter in the skill's definition."""
    try:
        actual = parse_front_matter(data)
    except FrontMatterError as exc:
        raise SkillMismatch(uri, "front matter", dict(frontmatter), str(exc)) from None
    if not is_same_json(dict(frontmatter), actual):
        raise SkillMismatch(uri, "front matter", dict(frontmatter), actual)


def is_same_uri(first: str, second: str) -> bool:
    """Return whether two URIs name the same resource."""
    return first == second or uri_key(first) == uri_key(second)
