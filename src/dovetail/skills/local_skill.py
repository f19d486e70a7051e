"""The skills in a folder of the user. Each file is verified when it is read, as for a skill of a server."""

import asyncio

from dovetail.error_context import clip
from dovetail.errors import InvalidParams, MCPError, NotFound, SkillMismatch
from dovetail.skills.remote_skill import Skill
from dovetail.skills.served_skill import decode_text
from dovetail.skills.skill_folder import SkillFolder


def list_local_skills(folder: SkillFolder) -> list[Skill]:
    """Return the skills that the last scan of a folder found."""

    async def read(uri: str) -> str | bytes:
        data = await asyncio.to_thread(folder.read, uri)
        if data is None:
            raise NotFound(InvalidParams.code, f"{clip(uri)} does not exist anymore")
        text = decode_text(data)
        return data if text is None else text

    async def on_mismatch(error: SkillMismatch) -> MCPError:
        await asyncio.to_thread(folder.refresh)
        return error

    return [Skill(skill.entry, read, on_mismatch) for skill in folder.skills.values()]
