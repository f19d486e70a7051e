"""The skills of a server, for `Client`. It lists them, and fetches nothing else."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from dovetail.client.pagination import ListMethod
from dovetail.client.request_sender import RequestSender
from dovetail.error_context import clip
from dovetail.errors import (
    InvalidParams,
    InvalidResult,
    MCPError,
    NotFound,
    NotSupported,
    RemoteError,
    SkillMismatch,
)
from dovetail.protocol.interfaces.extension import get_row
from dovetail.skills.remote_skill import Skill, extract_content
from dovetail.skills.skill import (
    MANIFEST,
    GetSkillResult,
    SkillEntry,
    is_same_uri,
)
from dovetail.skills.skill_methods import SkillMethods
from dovetail.wire.methods import METHODS
from dovetail.wire.resources import ReadResourceResult

# A function that runs another function in the event loop of the client.
RunOnLoop = Callable[..., Awaitable[Any]]


def _strip_uri(uri: str) -> str:
    # All skill URIs start and end with the same text, so the comparison ignores both ends.
    return uri.partition("://")[2].removesuffix(f"/{MANIFEST}") or uri


_METHODS: Final = SkillMethods()
_GET_SKILL: Final = get_row(_METHODS.get_skill)
_LIST_SKILLS: Final = ListMethod(
    get_row(_METHODS.list_skills), "skills", SkillEntry, "list_skills()", key="uri", shorten=_strip_uri
)


async def list_skills(sender: RequestSender, run: RunOnLoop) -> list[Skill]:
    """Return all valid skills of the server. For invalid skills, `skipped_items` contains the reasons."""
    try:
        await run(sender.check_extension, _LIST_SKILLS.method)
    except NotSupported:
        return []
    skills: dict[str, Skill] = {}
    for entry in await run(sender.list_all, _LIST_SKILLS):
        try:
            skill = _create_skill(sender, run, entry)
        except ValueError as exc:
            sender.skip_item(f"skipped the skill {clip(entry.uri)}: {exc}")
        else:
            skills.setdefault(skill.uri, skill)
    return [*skills.values()]


async def get_skill(sender: RequestSender, run: RunOnLoop, uri: str) -> Skill:
    """Return the skill with this URI as it is now."""
    params = {"uri": uri}
    await run(sender.check_extension, _GET_SKILL)
    try:
        result: GetSkillResult = await run(sender.send, _GET_SKILL, params)
    except RemoteError as exc:
        if exc.code != InvalidParams.code:
            raise
        not_found = NotFound(exc.code, exc.message, exc.data)
        raise sender.add_name_hint(not_found, _GET_SKILL.name, params, _LIST_SKILLS) from None
    try:
        if not is_same_uri(result.skill.uri, uri):
            raise ValueError(f"the server sent the skill {clip(result.skill.uri)} instead")
        return _create_skill(sender, run, result.skill)
    except ValueError as exc:
        error = InvalidResult(f"the skill {clip(uri)} is invalid: {exc}")
        raise sender.add_request_context(error, _GET_SKILL.name, params) from None


def _create_skill(sender: RequestSender, run: RunOnLoop, entry: SkillEntry) -> Skill:
    async def read(uri: str) -> str | bytes:
        # Do not use the cache, because a cached file may be older than the skill's entry.
        result: ReadResourceResult = await run(sender.send_until_complete, METHODS["resources/read"], {"uri": uri})
        return extract_content(result, uri)

    async def forget(error: SkillMismatch) -> MCPError:
        await run(_forget_skills, sender)
        return sender.add_request_context(error, "resources/read", {"uri": error.uri})

    return Skill(entry, read, forget)


async def _forget_skills(sender: RequestSender) -> None:
    sender.invalidate("notifications/resources/list_changed")
