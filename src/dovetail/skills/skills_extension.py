"""The skills extension of a server. It lists skills, describes one skill, and lists the files in a directory.

The files themselves are resources of the server. While a client waits for change notices, a task looks for changes of
the folders.
"""

import asyncio
import logging
import math
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, Literal, Protocol, TypeVar

from dovetail.error_context import clip
from dovetail.errors import InvalidParams
from dovetail.log import ThrottledLog, log
from dovetail.protocol.exchange import Exchange, IncomingExchange, make_uri_length_error
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.principal import Principal
from dovetail.server.items.cursor import encode_cursor, find_page_start
from dovetail.skills.served_skill import ServedSkill, is_in_skill, list_directory
from dovetail.skills.skill import (
    GetSkillParams,
    GetSkillResult,
    ListSkillsParams,
    ListSkillsResult,
    ReadDirectoryParams,
    ReadDirectoryResult,
)
from dovetail.skills.skill_methods import SkillMethods

T = TypeVar("T")

_MAX_AGE_S: Final = 1.0  # A request scans a large folder again if the last scan is older than this.
_WATCH_INTERVAL_S: Final = 2.0
_MAX_WATCH_SHARE: Final = 0.02  # The task that looks for changes may spend at most this share of its time on scans.
_MAX_FUNCTION_S: Final = 5.0  # the maximum time for each skill's function while skills are listed
MAX_SKILLS_PER_PAGE: Final = 100
_MAX_FILES_PER_PAGE: Final = 2000  # A skill has at most 512 files, so a page has room for at least three skills.


class LoadSkill(Protocol):
    """Runs a skill's function and returns the skill. The server limits the calls of each `origin`."""

    async def __call__(self, origin: str | None) -> ServedSkill: ...


SkillSource = ServedSkill | LoadSkill


class SkillCollection(Protocol):
    """The interface between a server's skills and the skills extension."""

    @property
    def has_folders(self) -> bool:
        """Return whether any skills come from folders. Only folders must be checked for changes."""
        ...

    def refresh(self, max_age: float = 0.0) -> None:
        """Check the folders for changes, and notify clients. This method reads files, so call it in a thread.

        Large folders are not scanned again if that happened less than `max_age` seconds ago.
        """
        ...

    def list_visible(self, principal: Principal | None) -> Mapping[str, SkillSource]:
        """Return a dict of the skills that this caller sees. The keys are URIs."""
        ...

    def find_visible(self, uri: str, principal: Principal | None) -> SkillSource | None:
        """Return the skill with this URI, or None if this caller sees no such skill.

        Raises:
            InsufficientScope: scopes are all that this caller lacks.
        """
        ...

    def get_cache_hint(self, method: str) -> tuple[int, Literal["public", "private"]]:
        """Return how many milliseconds clients may cache a result, and who may use the cached result."""
        ...

    def has_listeners(self) -> bool:
        """Return whether a client waits for change notices."""
        ...


class SkillsExtension:
    """Serves the skills of one server. `extension` contains the methods for clients."""

    def __init__(self, skills: SkillCollection, limits: ServerLimits, page_size: int | None) -> None:
        self.extension = SkillMethods(self).extension
        self._skills = skills
        self._limits = limits
        self._page_size = page_size
        # Each skill has one throttled warning, so that clients cannot fill the log.
        self._warnings: defaultdict[str, ThrottledLog] = defaultdict(lambda: ThrottledLog(logging.ERROR))
        self.extension.lifespan(self._watch)

    async def list_skills(self, params: ListSkillsParams, exchange: Exchange) -> ListSkillsResult:
        await self._refresh_soon()
        sources = self._skills.list_visible(exchange.caller.principal)
        names = list(sources)
        start = find_page_start(exchange.method, params.cursor, names, self._limits.max_cursor_bytes)
        limit = min(self._page_size or MAX_SKILLS_PER_PAGE, MAX_SKILLS_PER_PAGE)
        skills = await self._load({uri: sources[uri] for uri in names[start : start + limit]}, _get_origin(exchange))
        items = {uri: skills.get(uri) for uri in names}
        page, next_cursor = self._take_page(exchange.method, params.cursor, items, limit)
        ttl_ms, cache_scope = self._skills.get_cache_hint(exchange.method)
        return ListSkillsResult(
            skills=[skill.entry for skill in page if skill is not None],
            next_cursor=next_cursor,
            ttl_ms=ttl_ms,
            cache_scope=cache_scope,
        )

    async def get_skill(self, params: GetSkillParams, exchange: Exchange) -> GetSkillResult:
        self._check_uri(params.uri)
        await self._refresh_soon()
        source = self._skills.find_visible(params.uri, exchange.caller.principal)
        if source is None:
            raise InvalidParams(f"No skill has the URI {clip(params.uri)}", {"uri": params.uri})
        skill = source if isinstance(source, ServedSkill) else await source(_get_origin(exchange))
        ttl_ms, cache_scope = self._skills.get_cache_hint(exchange.method)
        return GetSkillResult(skill=skill.entry, ttl_ms=ttl_ms, cache_scope=cache_scope)

    async def read_directory(self, params: ReadDirectoryParams, exchange: Exchange) -> ReadDirectoryResult:
        self._check_uri(params.uri)
        await self._refresh_soon()
        # Leave out the generated skills that cannot contain the URI, so that their functions do not run.
        sources = {
            uri: source
            for uri, source in self._skills.list_visible(exchange.caller.principal).items()
            if isinstance(source, ServedSkill) or is_in_skill(uri, params.uri)
        }
        skills = await self._load(sources, _get_origin(exchange))
        children = list_directory(skills.values(), params.uri)
        if children is None:
            raise InvalidParams(f"{clip(params.uri)} is not a directory", {"uri": params.uri})
        by_uri = {child.uri: child for child in children}
        limit = min(self._page_size or _MAX_FILES_PER_PAGE, _MAX_FILES_PER_PAGE)
        page, next_cursor = self._take_page(exchange.method, params.cursor, by_uri, limit)
        return ReadDirectoryResult(resources=page, next_cursor=next_cursor)

    def _check_uri(self, uri: str) -> None:
        if len(uri) > self._limits.max_uri_bytes:
            raise make_uri_length_error(self._limits.max_uri_bytes)

    async def _load(self, sources: Mapping[str, SkillSource], origin: str | None) -> dict[str, ServedSkill]:
        """Load all skills. Leave out the skills whose functions fail or take too long."""
        # A caller may use half of the threads, so at most this many functions run at once.
        semaphore = asyncio.Semaphore(max(1, self._limits.max_threads // 2))
        limit_s = min(_MAX_FUNCTION_S, (self._limits.call_timeout or math.inf) / 2)

        async def load(uri: str, load_skill: LoadSkill) -> ServedSkill | None:
            try:
                async with semaphore, asyncio.timeout(limit_s):
                    return await load_skill(origin)
            except TimeoutError as exc:
                self._warnings[uri].log(
                    "the skill %s is not listed: its function took longer than %s s", uri, limit_s, exc_info=exc
                )
            except Exception as exc:  # A failing function must not hide the other skills.
                self._warnings[uri].log("the skill %s is not listed: %s", uri, exc, exc_info=exc)
            return None

        functions = {uri: source for uri, source in sources.items() if not isinstance(source, ServedSkill)}
        loaded = dict(zip(functions, await asyncio.gather(*map(load, functions, functions.values())), strict=True))
        skills = {uri: source if isinstance(source, ServedSkill) else loaded[uri] for uri, source in sources.items()}
        return {uri: skill for uri, skill in skills.items() if skill is not None}

    async def _refresh_soon(self) -> None:
        if self._skills.has_folders:
            await asyncio.to_thread(self._skills.refresh, _MAX_AGE_S)

    def _take_page(
        self, method: str, cursor: str | None, items: Mapping[str, T], max_items: int
    ) -> tuple[list[T], str | None]:
        return take_page(method, cursor, items, max_items, self._limits.max_cursor_bytes, _count_rows)

    @asynccontextmanager
    async def _watch(self) -> AsyncGenerator[None]:
        task = asyncio.get_running_loop().create_task(self._watch_folders())
        try:
            yield
        finally:
            task.cancel()
            # Do not use `await task`. It would raise CancelledError, as if this coroutine had been cancelled.
            await asyncio.wait([task])

    async def _watch_folders(self) -> None:
        delay = _WATCH_INTERVAL_S
        while True:
            await asyncio.sleep(delay)
            if not self._skills.has_folders or not self._skills.has_listeners():
                continue
            started_at = time.monotonic()
            try:
                await asyncio.to_thread(self._skills.refresh)
            except Exception as exc:
                log.error("could not look for changed skills: %s", exc, exc_info=exc)
            delay = max(_WATCH_INTERVAL_S, (time.monotonic() - started_at) / _MAX_WATCH_SHARE)


def _get_origin(exchange: Exchange) -> str | None:
    return exchange.origin if isinstance(exchange, IncomingExchange) else None


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
