"""A skill whose files a function returns. The front matter comes from the options of the skill."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from dovetail.error_context import clip
from dovetail.errors import ResourceNotFound
from dovetail.skills.front_matter import check_fields, write_front_matter
from dovetail.skills.served_skill import ServedSkill, SkillProblem, build_served_skill, describe_file
from dovetail.skills.skill import (
    MANIFEST,
    MAX_FILES,
    MAX_SKILL_BYTES,
    compute_digest,
    find_unsafe_name,
    quote_path,
)
from dovetail.wire.resources import Resource

# Either the text of SKILL.md without front matter, or a dict that maps the path of each file to its content.
# The dict must have the key "SKILL.md".
SkillFiles = str | Mapping[str, str | bytes]


class GeneratedSkill:
    """A skill from a function without parameters. The function runs whenever a client lists or reads the skill.

    Raises:
        ValueError: the name or the description is invalid.
        TypeError: the function has parameters, or the skill has no description.
    """

    def __init__(
        self,
        function: Callable[[], Any],
        *,
        name: str | None = None,
        description: str | None = None,
        front_matter: Mapping[str, object] | None = None,
        dynamic: bool = False,
    ) -> None:
        name = name or getattr(function, "__name__", "").replace("_", "-")
        description = description or " ".join((inspect.getdoc(function) or "").split())
        if not description:
            raise TypeError(f"the skill {name!r} needs a description: a docstring, or description=...")
        if inspect.signature(function).parameters:
            raise TypeError(f"the function of the skill {name!r} must not have parameters")
        if repeated := {"name", "description"} & (front_matter or {}).keys():
            raise TypeError(f"front_matter= must not contain {min(repeated)!r}. Pass {min(repeated)}=... instead")
        self.fields: dict[str, Any] = {"name": name, "description": description, **(front_matter or {})}
        check_fields(self.fields)
        self.function = function
        self._is_dynamic = dynamic
        self.front_matter = write_front_matter(self.fields)
        self.uri = f"skill://{name}/{MANIFEST}"

    def build(self, value: Any) -> ServedSkill:
        """Create the skill from the value that the function returned. This method computes digests, so call it in a
        thread.
        """
        files = self._read_files(value)
        digests = {path: (compute_digest(data), len(data)) for path, data in files.items()}
        return build_served_skill((self.fields["name"],), self.fields, digests, is_dynamic=self._is_dynamic)

    def read_file(self, value: Any, path: str) -> tuple[Resource, bytes]:
        """Return one file from the value that the skill's function returned. Call this method in a thread.

        Raises:
            ResourceNotFound: the skill has no such file.
        """
        files = self._read_files(value)
        uri = f"{self.uri.removesuffix(MANIFEST)}{quote_path(path)}"
        if path not in files:
            raise ResourceNotFound(uri)
        return describe_file(uri, path, len(files[path]), self.fields), files[path]

    def _read_files(self, value: Any) -> dict[str, bytes]:
        contents: Any = {MANIFEST: value} if isinstance(value, str) else value
        if not isinstance(contents, Mapping) or not isinstance(contents.get(MANIFEST), str):
            raise self._make_problem(
                f"the function must return the text of {MANIFEST}, or a dict of files with the key {MANIFEST!r}"
            )
        if contents[MANIFEST].startswith("---"):
            raise self._make_problem(f"{MANIFEST} must not have front matter. Pass it as front_matter=...")
        files: dict[str, bytes] = {}
        for path, content in contents.items():
            if not isinstance(path, str) or any(
                find_unsafe_name(name) is not None or name.startswith(".") for name in path.split("/")
            ):
                raise self._make_problem(
                    f"{clip(repr(path))} is not a valid path. Use a path such as 'references/a.md'"
                )
            if not isinstance(content, str | bytes):
                raise self._make_problem(f"{clip(path)} must be text or bytes, not {type(content).__name__}")
            files[path] = content.encode() if isinstance(content, str) else bytes(content)
        files[MANIFEST] = f"{self.front_matter}\n".encode() + files[MANIFEST]
        if len(files) > MAX_FILES or sum(map(len, files.values())) > MAX_SKILL_BYTES:
            raise self._make_problem(f"the skill has more than {MAX_FILES} files or {MAX_SKILL_BYTES} bytes")
        return files

    def _make_problem(self, text: str) -> SkillProblem:
        return SkillProblem(f"the skill {self.fields['name']!r} cannot be served: {text}")
