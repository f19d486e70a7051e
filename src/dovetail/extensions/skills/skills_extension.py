"""The skills extension of a server. It lists skills, describes one skill, and lists the files in a directory.

The files themselves are resources of the server. While a client waits for change notices, a task looks for changes of
the folders.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, Literal, Protocol, TypeVar

from dovetail.error_context import clip
from dovetail.errors import InvalidParams
from dovetail.extensions.skills.generated_skill import GeneratedSkill
from dovetail.extensions.skills.served_skill import ServedSkill, list_directory
from dovetail.extensions.skills.skill import (
    IDENTIFIER,
    GetSkillParams,
    GetSkillResult,
    ListSkillsParams,
    ListSkillsResult,
    ReadDirectoryParams,
    ReadDirectoryResult,
    is_same_uri,
)
from dovetail.extensions.skills.skill_folder import SkillFolder
from dovetail.log import log
from dovetail.protocol.cursor import encode_cursor, find_page_start
from dovetail.protocol.exchange import Exchange, make_uri_length_error
from dovetail.protocol.extension import Extension
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.principal import Principal

T = TypeVar("T")

_MAX_AGE_S: Final = 1.0  # A request scans a folder again if the last scan is older than this.
_WATCH_INTERVAL_S: Final = 2.0
_MAX_WATCH_SHARE: Final = 0.02  # The task may spend at most this share of its time on scans.
MAX_SKILLS_PER_PAGE: Final = 100
_MAX_FILES_PER_PAGE: Final = 2000  # A skill has at most 512 files, so each page contains several skills.


class SkillAccess(Protocol):
    """The functions of a server that the skills extension calls."""

    def is_visible(self, uri: str, principal: Principal | None) -> bool:
        """Return whether this caller sees the skill with this URI."""
        ...

    def check_access(self, uri: str, principal: Principal | None) -> None:
        """Raise InsufficientScope if this caller could use the skill with more scopes."""
        ...

    def get_cache_hint(self, method: str) -> tuple[int, Literal["public", "private"]]:
        """Return how many milliseconds clients may cache a result, and who may use the cached result."""
        ...

    def has_listeners(self) -> bool:
        """Return whether a client waits for change notices."""
        ...

    def on_change(self, folder: SkillFolder) -> None:
        """Register the skills of a changed folder, and notify the clients. This method is called in a thread."""
        ...


class SkillsExtension:
    """Serves the skills of one server. `extension` contains the methods for clients."""

    def __init__(self, access: SkillAccess, limits: ServerLimits, page_size: int | None) -> None:
        self.extension = Extension(IDENTIFIER, settings={"directoryRead": True})
        self._access = access
        self._limits = limits
        self._page_size = page_size
        self._folders: list[SkillFolder] = []
        self._generated: dict[str, GeneratedSkill] = {}
        self.extension.method("skills/list", is_cacheable=True)(self._list_skills)
        self.extension.method("skills/get", is_cacheable=True)(self._get_skill)
        self.extension.method("resources/directory/read")(self._read_directory)
        self.extension.lifespan(self._watch)

    def add_folder(self, folder: SkillFolder) -> None:
        """Serve the skills of a folder."""
        self._folders.append(folder)

    def add_generated(self, skill: GeneratedSkill) -> None:
        """Serve a skill from a function."""
        self._generated[skill.uri] = skill

    def refresh(self, max_age: float = 0.0) -> None:
        """Look for changes of the folders. This method reads files, so call it in a thread."""
        for folder in self._folders:
            if folder.refresh(max_age):
                self._access.on_change(folder)

    async def _list_skills(self, params: ListSkillsParams, exchange: Exchange) -> ListSkillsResult:
        skills = await self._load(exchange.caller.principal)
        page, next_cursor = self._take_page(exchange.method, params.cursor, skills, MAX_SKILLS_PER_PAGE)
        ttl_ms, cache_scope = self._access.get_cache_hint(exchange.method)
        return ListSkillsResult(
            skills=[skill.entry for skill in page], next_cursor=next_cursor, ttl_ms=ttl_ms, cache_scope=cache_scope
        )

    async def _get_skill(self, params: GetSkillParams, exchange: Exchange) -> GetSkillResult:
        self._check_uri(params.uri)
        principal = exchange.caller.principal
        await self._refresh_soon()
        skill = await self._find_skill(params.uri)
        if skill is None or not self._access.is_visible(skill.entry.uri, principal):
            if skill is not None:
                self._access.check_access(skill.entry.uri, principal)
            raise InvalidParams(f"No skill has the URI {clip(params.uri)}", {"uri": params.uri})
        ttl_ms, cache_scope = self._access.get_cache_hint(exchange.method)
        return GetSkillResult(skill=skill.entry, ttl_ms=ttl_ms, cache_scope=cache_scope)

    async def _read_directory(self, params: ReadDirectoryParams, exchange: Exchange) -> ReadDirectoryResult:
        self._check_uri(params.uri)
        skills = await self._load(exchange.caller.principal)
        children = list_directory(skills.values(), params.uri)
        if children is None:
            raise InvalidParams(f"{clip(params.uri)} is not a directory", {"uri": params.uri})
        by_uri = {child.uri: child for child in children}
        page, next_cursor = self._take_page(exchange.method, params.cursor, by_uri, _MAX_FILES_PER_PAGE)
        return ReadDirectoryResult(resources=page, next_cursor=next_cursor)

    def _check_uri(self, uri: str) -> None:
        if len(uri) > self._limits.max_uri_bytes:
            raise make_uri_length_error(self._limits.max_uri_bytes)

    async def _load(self, principal: Principal | None) -> dict[str, ServedSkill]:
        """Return the skills that this caller sees, by URI."""
        await self._refresh_soon()
        skills = {
            uri: skill
            for folder in self._folders
            for uri, skill in folder.skills.items()
            if self._access.is_visible(uri, principal)
        }
        for uri, generated in self._generated.items():
            if self._access.is_visible(uri, principal):
                try:
                    skills[uri] = (await generated.load())[0]
                except Exception as exc:  # The function of one skill must not hide the other skills.
                    log.error("the skill %s is not listed: %s", uri, exc, exc_info=exc)
        return skills

    async def _find_skill(self, uri: str) -> ServedSkill | None:
        for folder in self._folders:
            for skill_uri, skill in folder.skills.items():
                if is_same_uri(skill_uri, uri):
                    return skill
        generated = next((skill for known, skill in self._generated.items() if is_same_uri(known, uri)), None)
        return None if generated is None else (await generated.load())[0]

    async def _refresh_soon(self) -> None:
        if self._folders:
            await asyncio.to_thread(self.refresh, _MAX_AGE_S)

    def _take_page(
        self, method: str, cursor: str | None, items: Mapping[str, T], max_items: int
    ) -> tuple[list[T], str | None]:
        limit = min(self._page_size or max_items, max_items)
        return take_page(method, cursor, items, limit, self._limits.max_cursor_bytes, _count_rows)

    @asynccontextmanager
    async def _watch(self) -> AsyncGenerator[None]:
        task = asyncio.get_running_loop().create_task(self._watch_folders())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _watch_folders(self) -> None:
        delay = _WATCH_INTERVAL_S
        while True:
            await asyncio.sleep(delay)
            if not self._folders or not self._access.has_listeners():
                continue
            started_at = time.monotonic()
            try:
                await asyncio.to_thread(self.refresh)
            except Exception as exc:
                log.error("could not look for changed skills: %s", exc, exc_info=exc)
            delay = max(_WATCH_INTERVAL_S, (time.monotonic() - started_at) / _MAX_WATCH_SHARE)


def take_page(
    method: str,
    cursor: str | None,
    items: Mapping[str, T],
    max_items: int,
    max_cursor_bytes: int,
    count_rows: Callable[[T], int],
) -> tuple[list[T], str | None]:
    """Return one page of items, and the cursor of the next page. A page has a limited number of files."""
    names = list(items)
    start = end = find_page_start(method, cursor, names, max_cursor_bytes)
    rows = 0
    while end < len(names) and end - start < max_items:
        rows += count_rows(items[names[end]])
        if rows > _MAX_FILES_PER_PAGE and end > start:
            break
        end += 1
    next_cursor = encode_cursor(method, names[end - 1]) if end < len(names) else None
    return [items[name] for name in names[start:end]], next_cursor


def _count_rows(item: object) -> int:
    return len(item.files) if isinstance(item, ServedSkill) else 1
