"""The skills of a server as resources. It connects the skills extension with the registry of the server.

Each SKILL.md is a resource. The other files of a skill are read with a resource template, so `resources/list` stays
short. The access rules of the SKILL.md apply to the whole skill: to its entry, its directories and all its files.
"""

import asyncio
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dovetail.errors import ResourceNotFound, ServerBusy
from dovetail.log import log
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.principal import Principal
from dovetail.server.context import Context
from dovetail.server.invocation import AwaitingRunner, Runner, may_return_coroutine
from dovetail.server.items.registry import Registry
from dovetail.server.items.resource import Resource, ResourceTemplate
from dovetail.server.items.visibility import Visibility
from dovetail.server.thread_pool import ThreadPool
from dovetail.skills.generated_skill import GeneratedSkill
from dovetail.skills.served_skill import ServedSkill, build_contents
from dovetail.skills.skill import MANIFEST, compute_digest, is_same_uri, quote_path
from dovetail.skills.skills_extension import SkillsExtension, SkillSource
from dovetail.wire.base import replace
from dovetail.wire.content import ResourceContents
from dovetail.wire.lifecycle import ResourcesCapability

if TYPE_CHECKING:
    from dovetail.server.items.access_rules import Predicate
    from dovetail.skills.skill_folder import SkillFolder


class _RegisteredSkill(NamedTuple):
    resource: Resource | ResourceTemplate
    source: SkillSource
    folder: "SkillFolder | None" = None


class SkillResources:
    """Registers the skills of one server as resources."""

    def __init__(
        self,
        registry: Registry,
        visibility: Visibility,
        limits: ServerLimits,
        page_size: int | None,
        thread_pool: ThreadPool,
    ) -> None:
        self._registry = registry
        self._visibility = visibility
        self.extension = SkillsExtension(self, limits, page_size).extension
        self._thread_pool = thread_pool
        self._lock = threading.Lock()  # Code that changes the skills must hold this lock.
        self._refresh_lock = threading.Lock()
        self._refreshed_at = 0.0  # the time at which the last scan of all folders began
        # The registered skills by URI. A change replaces the dict.
        self._registered: dict[str, _RegisteredSkill] = {}
        self._access_options: dict[SkillFolder, dict[str, Any]] = {}
        self._logged_conflicts: set[str] = set()
        # The digests of files that differ from the list. The digest of a missing file is None.
        self._mismatches: dict[str, str | None] = {}
        # A server with this extension has resources, even if a folder becomes empty.
        declared = registry.declared_capabilities
        if declared.resources is None:
            registry.declared_capabilities = replace(declared, resources=ResourcesCapability())

    def add_folder(self, folder: "SkillFolder", scopes: Collection[str], visible_to: "Predicate | None") -> None:
        """Serve the skills of a folder. If one skill cannot be registered, serve no skill of the folder."""
        access: dict[str, Any] = {"scopes": scopes, "visible_to": visible_to}
        registered: dict[str, _RegisteredSkill] = {}
        with self._lock:
            try:
                for uri, skill in folder.skills.items():
                    registered[uri] = self._register(folder, skill, access)
            except BaseException:
                for uri, record in registered.items():
                    self._remove(uri, record)
                raise
            self._access_options[folder] = access
            self._registered = self._registered | registered

    def add_generated(self, skill: GeneratedSkill, scopes: Collection[str], visible_to: "Predicate | None") -> None:
        """Serve a skill from a function."""
        uri, function = skill.uri, skill.function
        runner = (AwaitingRunner if may_return_coroutine(function) else Runner)(function)

        # `running` contains all running calls of the function. No request waits for the calls in `abandoned`.
        running: set[object] = set()
        abandoned: set[object] = set()

        def build(run: object) -> ServedSkill:
            running.add(run)
            try:
                return skill.build(function())
            finally:
                running.discard(run)

        async def load(origin: str | None) -> ServedSkill:
            abandoned.intersection_update(running)
            if abandoned:
                # The function may hang. Without this error, each new request would block another thread.
                raise ServerBusy(f"The function of {uri} is still running for an earlier request")
            run = object()
            try:
                return await self._thread_pool.run(build, (run,), {}, origin)
            except asyncio.CancelledError:
                abandoned.add(run)
                raise

        async def load_async(origin: str | None) -> ServedSkill:
            value = await runner.run((), {}, self._thread_pool, origin)
            return await self._thread_pool.run(skill.build, (value,), {}, origin)

        def read(value: Any, path: str) -> ResourceContents:
            resource, data = skill.read_file(value, path)
            return build_contents(resource, data)

        def read_file(path: str, ctx: Context) -> ResourceContents:
            self._find_registered(uri, path, ctx.principal)
            return read(function(), path)

        async def read_file_async(path: str, ctx: Context) -> ResourceContents:
            self._find_registered(uri, path, ctx.principal)
            value = await runner.run((), {}, self._thread_pool, None)
            return await self._thread_pool.run(read, (value, path), {}, None)

        def read_manifest() -> ResourceContents:
            return read(function(), MANIFEST)

        async def read_manifest_async() -> ResourceContents:
            value = await runner.run((), {}, self._thread_pool, None)
            return await self._thread_pool.run(read, (value, MANIFEST), {}, None)

        is_async = runner.is_async or isinstance(runner, AwaitingRunner)
        access: dict[str, Any] = {"scopes": scopes, "visible_to": visible_to}
        name, description = skill.fields["name"], skill.fields["description"]
        with self._lock:
            resource = self._registry.add_resource(
                read_manifest_async if is_async else read_manifest,
                uri,
                name=name,
                description=description,
                mime_type="text/markdown",
                **access,
            )
            try:
                self._add_template(read_file_async if is_async else read_file, uri, name, access)
            except BaseException:
                self._registry.remove("resource", uri)
                raise
            self._registered = self._registered | {uri: _RegisteredSkill(resource, load_async if is_async else load)}

    def _register(self, folder: "SkillFolder", skill: ServedSkill, access: dict[str, Any]) -> _RegisteredSkill:
        uri, manifest = skill.entry.uri, skill.files[MANIFEST]

        def read_manifest() -> ResourceContents:
            return self._read(uri, MANIFEST, self._registered.get(uri))

        resource = self._registry.add_resource(
            read_manifest,
            uri,
            name=manifest.name,
            description=manifest.description,
            mime_type=manifest.mime_type,
            size=manifest.size,
            **access,
        )
        try:
            if len(skill.files) > 1:
                self._register_template(skill, access)
        except BaseException:
            self._registry.remove("resource", uri)
            raise
        return _RegisteredSkill(resource, skill, folder)

    def _register_template(self, skill: ServedSkill, access: dict[str, Any]) -> None:
        uri = skill.entry.uri

        def read_file(path: str, ctx: Context) -> ResourceContents:
            return self._read(uri, path, self._find_registered(uri, path, ctx.principal))

        self._add_template(read_file, uri, skill.entry.frontmatter["name"], access)

    def _add_template(self, read_file: Any, uri: str, name: str, access: dict[str, Any]) -> None:
        self._registry.add_resource(
            read_file,
            _get_template(uri),
            name=f"{name} files",
            description=f"The files of the skill {name}, by their path in the skill.",
            **access,
        )

    def _find_registered(self, uri: str, path: str, principal: Principal | None) -> _RegisteredSkill:
        """Return the skill that a file belongs to. The caller must have access to the skill's SKILL.md.

        Raises:
            ResourceNotFound: the skill does not exist for this caller, or the file is the SKILL.md itself.
            InsufficientScope: this caller lacks scopes.
        """
        record = self._registered.get(uri)
        if record is not None and path != MANIFEST:
            with suppress(ResourceNotFound):
                if self._visibility.find_resource(uri, principal)[0] is record.resource:
                    return record
        raise ResourceNotFound(_get_file_uri(uri, path))

    def _read(self, uri: str, path: str, record: _RegisteredSkill | None) -> ResourceContents:
        """Read a file. If the file has changed since it was listed, update the list."""
        if record is None or record.folder is None or not isinstance(record.source, ServedSkill):
            raise ResourceNotFound(_get_file_uri(uri, path))
        resource = record.source.files.get(path)
        if resource is None:
            raise ResourceNotFound(_get_file_uri(uri, path))
        data = record.folder.read(resource.uri)
        is_changed = data is None or not record.folder.is_listed(resource.uri, data)
        if is_changed or resource.uri in self._mismatches:
            self._update_list(record.folder, resource.uri, data)
        if data is None:
            raise ResourceNotFound(resource.uri)
        return build_contents(resource, data)

    def _update_list(self, folder: "SkillFolder", uri: str, data: bytes | None) -> None:
        # Scan only if this change of the file is new.
        digest = None if data is None else compute_digest(data)
        if self._mismatches.get(uri, "") == digest:
            return
        self._mismatches[uri] = digest
        self.refresh()
        if data is not None and folder.is_listed(uri, data):
            self._mismatches.pop(uri, None)

    # The following methods implement `SkillCollection`.

    @property
    def has_folders(self) -> bool:
        return bool(self._access_options)

    def refresh(self, max_age: float = 0.0) -> None:
        requested_at = time.monotonic()
        with self._refresh_lock:
            # Another thread may have scanned the folders since this call. Then no scan is needed.
            if self._refreshed_at > requested_at:
                return
            started_at = time.monotonic()
            changes = [folder.refresh(max_age) for folder in tuple(self._access_options)]
            if any(changes):
                self._update_registered()
            self._refreshed_at = started_at

    def list_visible(self, principal: Principal | None) -> dict[str, SkillSource]:
        return {
            uri: record.source for uri, record in self._registered.items() if self._is_visible(uri, record, principal)
        }

    def find_visible(self, uri: str, principal: Principal | None) -> SkillSource | None:
        for registered_uri, record in self._registered.items():
            if is_same_uri(registered_uri, uri):
                if self._is_visible(registered_uri, record, principal):
                    return record.source
                self._visibility.check_scopes("resource", registered_uri, principal)
        return None

    def _is_visible(self, uri: str, record: _RegisteredSkill, principal: Principal | None) -> bool:
        # Another resource may have this URI by now. Its access rules do not apply to the skill.
        return (
            self._visibility.is_listed("resource", uri, principal)
            and self._registry.resources.get(uri) is record.resource
        )

    def get_cache_hint(self, method: str) -> tuple[int, Literal["public", "private"]]:
        cache_hint = self._visibility.get_cache_hint(method)
        # Callers may see different skills if there are access rules.
        return cache_hint.ttl_ms, "private" if self._registry.access_rules is not None else cache_hint.scope

    def has_listeners(self) -> bool:
        return len(self._registry.subscriptions) > 0

    def _update_registered(self) -> None:
        with self._lock:
            skills_by_folder = {folder: folder.skills for folder in self._access_options}
            before = self._registered
            # A skill stays in its folder, even if another folder has a skill with the same URI by now.
            kept = {
                uri: record
                for uri, record in before.items()
                if record.folder is None or uri in skills_by_folder[record.folder]
            }
            # Remove the skills from the list first, and then their resources.
            self._registered = kept
            for uri in before.keys() - kept.keys():
                self._remove(uri, before[uri])
            after: dict[str, _RegisteredSkill] = {}
            conflicts: dict[str, str] = {}
            for folder, skills in skills_by_folder.items():
                for uri, skill in skills.items():
                    record = after.get(uri) or kept.get(uri)
                    try:
                        if record is None:
                            after[uri] = self._register(folder, skill, self._access_options[folder])
                        elif record.folder is folder:
                            after[uri] = record  # If the next line raises an exception, the old entry stays.
                            after[uri] = self._change(record, skill)
                        else:
                            raise ValueError("another folder or function has a skill with this URI")
                    except ValueError as exc:
                        conflicts[uri] = str(exc)
            self._registered = after = after | {uri: record for uri, record in kept.items() if record.folder is None}
            for uri in conflicts.keys() - self._logged_conflicts:
                log.warning("skills: a change of %s is not served: %s", uri, conflicts[uri])
            self._logged_conflicts = set(conflicts)
        self._registry.notify_list_changed("resources")
        for uri in _find_changed_files(before, after):
            self._registry.notify_resource_updated(uri)

    def _remove(self, uri: str, record: _RegisteredSkill) -> None:
        self._remove_item("resource", uri)
        if isinstance(record.source, ServedSkill) and len(record.source.files) > 1:
            self._remove_item("resource template", _get_template(uri))

    def _remove_item(self, kind: str, name: str) -> None:
        with suppress(ValueError):  # The author of the server may have removed the resource.
            self._registry.remove(kind, name)

    def _change(self, record: _RegisteredSkill, skill: ServedSkill) -> _RegisteredSkill:
        before = record.source
        assert isinstance(before, ServedSkill)
        assert isinstance(record.resource, Resource)
        assert record.folder is not None
        if before.files[MANIFEST] != skill.files[MANIFEST]:
            self._registry.replace_declaration(record.resource, skill.files[MANIFEST])
        if len(before.files) == 1 and len(skill.files) > 1:
            self._register_template(skill, self._access_options[record.folder])
        elif len(before.files) > 1 and len(skill.files) == 1:
            self._remove_item("resource template", _get_template(skill.entry.uri))
        return record._replace(source=skill)


def _get_template(uri: str) -> str:
    return f"{uri.removesuffix(MANIFEST)}{{+path}}"


def _get_file_uri(uri: str, path: str) -> str:
    return f"{uri.removesuffix(MANIFEST)}{quote_path(path)}"


def _find_changed_files(before: Mapping[str, _RegisteredSkill], after: Mapping[str, _RegisteredSkill]) -> list[str]:
    """Return the URIs of files whose contents changed. Added and removed files are left out."""
    old, new = _list_digests(before), _list_digests(after)
    return [uri for uri, digest in new.items() if old.get(uri, digest) != digest]


def _list_digests(skills: Mapping[str, _RegisteredSkill]) -> dict[str, str]:
    sources = [record.source for record in skills.values()]
    return {file.uri: file.digest for skill in sources if isinstance(skill, ServedSkill) for file in skill.listed_files}
