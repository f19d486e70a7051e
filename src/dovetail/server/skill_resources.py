"""The skills of a server as resources. It connects the skills extension with the registry of the server.

Each SKILL.md is a resource. The other files of a skill are read with a resource template, so `resources/list` stays
short. The access rules of these items apply to the skills, too.
"""

import threading
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Literal

from dovetail.errors import ResourceNotFound
from dovetail.extensions.skills.generated_skill import GeneratedSkill
from dovetail.extensions.skills.served_skill import ServedSkill, build_contents
from dovetail.extensions.skills.skill import MANIFEST, compute_digest, quote_path
from dovetail.extensions.skills.skill_folder import SkillFolder
from dovetail.extensions.skills.skills_extension import SkillsExtension
from dovetail.log import log
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.principal import Principal
from dovetail.server.registry import Registry
from dovetail.server.visibility import Visibility
from dovetail.wire.base import replace
from dovetail.wire.content import ResourceContents
from dovetail.wire.lifecycle import ResourcesCapability

if TYPE_CHECKING:
    from dovetail.server.access_rules import Predicate


class SkillResources:
    """Registers the skills of one server as resources."""

    def __init__(self, registry: Registry, visibility: Visibility, limits: ServerLimits, page_size: int | None) -> None:
        self._registry = registry
        self._visibility = visibility
        self._skills = SkillsExtension(self, limits, page_size)
        self.extension = self._skills.extension
        self._lock = threading.Lock()
        # The registered skills and the access options of each folder.
        self._registered: dict[SkillFolder, dict[str, ServedSkill]] = {}
        self._access_options: dict[SkillFolder, dict[str, Any]] = {}
        # Maps each file that differed from the list to the digest that was read, or None for a missing file.
        self._mismatches: dict[str, str | None] = {}
        # A server with this extension has resources, even if a folder becomes empty.
        declared = registry.declared_capabilities
        if declared.resources is None:
            registry.declared_capabilities = replace(declared, resources=ResourcesCapability())

    def add_folder(self, folder: SkillFolder, scopes: Collection[str], visible_to: "Predicate | None") -> None:
        """Serve the skills of a folder."""
        self._access_options[folder] = {"scopes": scopes, "visible_to": visible_to}
        registered = self._registered[folder] = {}
        for uri, skill in folder.skills.items():
            self._register(folder, skill)
            registered[uri] = skill
        self._skills.add_folder(folder)

    def add_generated(self, skill: GeneratedSkill, scopes: Collection[str], visible_to: "Predicate | None") -> None:
        """Serve a skill from a function."""
        fields = skill.fields

        async def read_file(path: str) -> ResourceContents:
            served, contents = await skill.load()
            if path not in served.files:
                raise ResourceNotFound(f"{served.root}/{quote_path(path)}")
            return build_contents(served.files[path], contents[path])

        async def read_manifest() -> ResourceContents:
            return await read_file(MANIFEST)

        access: dict[str, Any] = {"scopes": scopes, "visible_to": visible_to}
        name, description = fields["name"], fields["description"]
        self._registry.add_resource(
            read_manifest, skill.uri, name=name, description=description, mime_type="text/markdown", **access
        )
        self._add_template(read_file, skill.uri.removesuffix(f"/{MANIFEST}"), name, access)
        self._skills.add_generated(skill)

    def _register(self, folder: SkillFolder, skill: ServedSkill) -> None:
        """Add the resource of a skill, and the template of its other files."""
        uri, manifest = skill.entry.uri, skill.files[MANIFEST]

        def read_manifest() -> ResourceContents:
            return self._read(folder, uri, MANIFEST)

        self._registry.add_resource(
            read_manifest,
            uri,
            name=manifest.name,
            description=manifest.description,
            mime_type=manifest.mime_type,
            size=manifest.size,
            **self._access_options[folder],
        )
        if len(skill.files) > 1:
            self._register_template(folder, skill)

    def _register_template(self, folder: SkillFolder, skill: ServedSkill) -> None:
        uri = skill.entry.uri

        def read_file(path: str) -> ResourceContents:
            return self._read(folder, uri, path)

        self._add_template(read_file, skill.root, skill.entry.frontmatter["name"], self._access_options[folder])

    def _add_template(self, read_file: Any, root: str, name: str, access: dict[str, Any]) -> None:
        self._registry.add_resource(
            read_file,
            _get_template(root),
            name=f"{name} files",
            description=f"The files of the skill {name}, by their path in the skill.",
            **access,
        )

    def _read(self, folder: SkillFolder, uri: str, path: str) -> ResourceContents:
        """Read a file. If the file has changed since it was listed, update the list."""
        skill = folder.skills.get(uri)
        resource = None if skill is None else skill.files.get(path)
        if resource is None:
            raise ResourceNotFound(f"{uri.removesuffix(MANIFEST)}{quote_path(path)}")
        data = folder.read(resource.uri)
        if data is None or not folder.is_listed(resource.uri, data):
            self._update_list(resource.uri, data)
        if data is None:
            raise ResourceNotFound(resource.uri)
        return build_contents(resource, data)

    def _update_list(self, uri: str, data: bytes | None) -> None:
        # The same mismatch causes only one scan, even if the file is read often.
        digest = None if data is None else compute_digest(data)
        if self._mismatches.get(uri, "") != digest:
            self._mismatches[uri] = digest
            self._skills.refresh()

    # The methods of `SkillAccess`.

    def is_visible(self, uri: str, principal: Principal | None) -> bool:
        return self._visibility.has_item("resource", uri, principal)

    def check_access(self, uri: str, principal: Principal | None) -> None:
        self._visibility.check_scopes("resource", uri, principal)

    def get_cache_hint(self, method: str) -> tuple[int, Literal["public", "private"]]:
        cache_hint = self._visibility.get_cache_hint(method)
        # Callers may see different skills if there are access rules.
        return cache_hint.ttl_ms, "private" if self._registry.access_rules is not None else cache_hint.scope

    def has_listeners(self) -> bool:
        return len(self._registry.subscriptions) > 0

    def on_change(self, folder: SkillFolder) -> None:
        with self._lock:
            before, after = self._registered[folder], dict(folder.skills)
            for uri in before.keys() - after.keys():
                self._remove(before[uri])
            for uri, skill in folder.skills.items():
                try:
                    self._update(folder, before.get(uri), skill)
                except ValueError as exc:
                    del after[uri]
                    log.warning("the skill %s is not served as a resource: %s", uri, exc)
            self._registered[folder] = after
        self._registry.notify_list_changed("resources")
        for uri in _find_changed_files(before, after):
            self._registry.notify_resource_updated(uri)

    def _remove(self, skill: ServedSkill) -> None:
        self._registry.remove("resource", skill.entry.uri)
        if len(skill.files) > 1:
            self._registry.remove("resource template", _get_template(skill.root))

    def _update(self, folder: SkillFolder, before: ServedSkill | None, after: ServedSkill) -> None:
        if before is None:
            self._register(folder, after)
            return
        if before.files[MANIFEST] != after.files[MANIFEST]:
            self._registry.replace_declaration("resource", after.entry.uri, after.files[MANIFEST])
        if len(before.files) == 1 and len(after.files) > 1:
            self._register_template(folder, after)
        elif len(before.files) > 1 and len(after.files) == 1:
            self._registry.remove("resource template", _get_template(after.root))


def _get_template(root: str) -> str:
    return f"{root}/{{+path}}"


def _find_changed_files(before: dict[str, ServedSkill], after: dict[str, ServedSkill]) -> list[str]:
    """Return the URIs of the files that are in both sets of skills, but with different contents."""
    old, new = _list_digests(before), _list_digests(after)
    return [uri for uri, digest in new.items() if old.get(uri, digest) != digest]


def _list_digests(skills: dict[str, ServedSkill]) -> dict[str, str]:
    return {file.uri: file.digest for skill in skills.values() for file in skill.listed_files}
