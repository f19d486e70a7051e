"""A skill of a server, for clients. Each file is fetched when it is read, and compared with the entry of the skill."""

import base64
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

from dovetail.error_context import add_context, clip, make_name_hint
from dovetail.errors import InvalidParams, InvalidResult, MCPError, NotFound, SkillMismatch
from dovetail.skills.skill import (
    MANIFEST,
    MAX_SKILL_BYTES,
    SkillEntry,
    SkillFile,
    check_entry,
    get_path,
    get_root,
    quote_path,
    verify_file,
    verify_front_matter,
)
from dovetail.wire.resources import ReadResourceResult

# A function that reads the file at a URI. It returns text, or bytes if the file is not text.
ReadFile = Callable[[str], Awaitable[str | bytes]]
# A function for a file whose content differs from the entry of the skill. It removes the skill from the cache.
# The function returns the error to raise.
MismatchHandler = Callable[[SkillMismatch], Awaitable[MCPError]]


class Skill:
    """A skill of a server. `Client.list_skills` and `Client.get_skill` create it."""

    def __init__(self, _entry: SkillEntry, _read: ReadFile, _on_mismatch: MismatchHandler) -> None:
        self._files = check_entry(_entry)
        self._entry = _entry
        self._read = _read
        self._on_mismatch = _on_mismatch

    @property
    def uri(self) -> str:
        """Return the URI of the SKILL.md. It identifies the skill on its server."""
        return self._entry.uri

    @property
    def name(self) -> str:
        """Return the name of the skill. Several skills may have the same name."""
        return self._entry.frontmatter["name"]

    @property
    def description(self) -> str:
        """Return the description, which says when to use the skill."""
        return self._entry.frontmatter["description"]

    @property
    def front_matter(self) -> Mapping[str, Any]:
        """Return all fields of the front matter, as JSON."""
        return self._entry.frontmatter

    @property
    def files(self) -> Mapping[str, SkillFile]:
        """Return the files by their path in the skill, such as "references/a.md". A dynamic skill lists no files."""
        return self._files

    @property
    def is_dynamic(self) -> bool:
        """Return whether the server generates the skill's files. Generated files have no digest to verify."""
        return isinstance(self._entry.resources, str)

    def __repr__(self) -> str:
        return f"<Skill {self.uri!r}>"

    async def read(self, path: str = MANIFEST) -> str | bytes:
        """Fetch a file, and return it as text, or as bytes if it is not text.

        Args:
            path: The path of the file in the skill.

        Raises:
            NotFound: the entry does not list the file.
            SkillMismatch: the file differs from its size, its digest or the front matter in the entry. Get the skill
                again, and ask the user again, before you use it.
        """
        uri = self._find_uri(path)
        try:
            content = await self._read(uri)
            self._verify(path, uri, content.encode() if isinstance(content, str) else content)
        except SkillMismatch as exc:
            raise await self._on_mismatch(exc) from None
        return content

    def _find_uri(self, path: str) -> str:
        if path in self._files:
            return self._files[path].uri
        if not self.is_dynamic:
            raise make_unknown_file_error(self.uri, path, self._files)
        root = get_root(self.uri)
        uri = f"{root}/{quote_path(path)}"
        try:
            get_path(root, uri)
        except ValueError as exc:
            raise NotFound(InvalidParams.code, f"unknown file {clip(path)!r}: {exc}") from None
        return uri

    def _verify(self, path: str, uri: str, data: bytes) -> None:
        if not self.is_dynamic:
            verify_file(self._files[path], data)
        elif len(data) > MAX_SKILL_BYTES:
            raise SkillMismatch(uri, "size", MAX_SKILL_BYTES, len(data))
        if path == MANIFEST:
            verify_front_matter(uri, self._entry.frontmatter, data)


class SyncSkill:
    """A skill of a server. `SyncClient.list_skills` and `SyncClient.get_skill` create it."""

    def __init__(self, _skill: Skill, _run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._skill = _skill
        self._run = _run

    @property
    def uri(self) -> str:
        """Return the URI of the SKILL.md. It identifies the skill on its server."""
        return self._skill.uri

    @property
    def name(self) -> str:
        """Return the name of the skill. Several skills may have the same name."""
        return self._skill.name

    @property
    def description(self) -> str:
        """Return the description, which says when to use the skill."""
        return self._skill.description

    @property
    def front_matter(self) -> Mapping[str, Any]:
        """Return all fields of the front matter, as JSON."""
        return self._skill.front_matter

    @property
    def files(self) -> Mapping[str, SkillFile]:
        """Return a dict of the files with their paths as keys. A dynamic skill lists no files."""
        return self._skill.files

    @property
    def is_dynamic(self) -> bool:
        """Return whether the server generates the skill's files. Generated files have no digest to verify."""
        return self._skill.is_dynamic

    def __repr__(self) -> str:
        return f"<SyncSkill {self.uri!r}>"

    def read(self, path: str = MANIFEST) -> str | bytes:
        """Fetch a file, and return it as text, or as bytes if it is not text.

        Args:
            path: The path of the file in the skill.

        Raises:
            NotFound: the entry does not list the file.
            SkillMismatch: the file differs from its entry.
        """
        return self._run(self._skill.read(path))


def make_unknown_file_error(uri: str, path: str, paths: Iterable[str]) -> NotFound:
    """Create the error for a file that the skill does not list."""
    error = NotFound(InvalidParams.code, f"unknown file {clip(path)!r} in the skill {clip(uri)}")
    return add_context(error, hint=make_name_hint(path, {listed_path: listed_path for listed_path in paths}))


def extract_content(result: ReadResourceResult, uri: str) -> str | bytes:
    """Return the content of a file from the result of resources/read. Raise InvalidResult if it is invalid."""
    if len(result.contents) != 1:
        raise InvalidResult(
            f"the file {uri} must have exactly one part, but the server sent {len(result.contents)} parts"
        )
    [contents] = result.contents
    if contents.text is not None:
        return contents.text
    try:
        return base64.b64decode(contents.blob or "", validate=True)
    except ValueError:
        raise InvalidResult(f"the content of {uri} is not valid base64") from None
