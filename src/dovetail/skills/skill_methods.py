"""The methods of the skills extension. Servers, gateways and clients share their names, types and options."""

from typing import Protocol

from dovetail.protocol.exchange import Exchange
from dovetail.protocol.interfaces.extension import Extension, ExtensionMethod, add_method
from dovetail.skills.skill import (
    IDENTIFIER,
    GetSkillParams,
    GetSkillResult,
    ListSkillsParams,
    ListSkillsResult,
    ReadDirectoryParams,
    ReadDirectoryResult,
)
from dovetail.wire.methods import Method


class SkillHandlers(Protocol):
    """The functions with which a server answers the requests of the extension."""

    async def list_skills(self, params: ListSkillsParams, exchange: Exchange) -> ListSkillsResult: ...
    async def get_skill(self, params: GetSkillParams, exchange: Exchange) -> GetSkillResult: ...
    async def read_directory(self, params: ReadDirectoryParams, exchange: Exchange) -> ReadDirectoryResult: ...


class SkillMethods:
    """The skills extension and its methods. A server passes `handlers`, and a client does not."""

    def __init__(self, handlers: SkillHandlers | None = None) -> None:
        self.extension = extension = Extension(IDENTIFIER, settings={"directoryRead": True})
        self.list_skills: ExtensionMethod[ListSkillsParams, ListSkillsResult] = add_method(
            extension,
            Method(
                name="skills/list",
                params=ListSkillsParams,
                result=ListSkillsResult,
                is_cacheable=True,
                extension=IDENTIFIER,
            ),
            None if handlers is None else handlers.list_skills,
        )
        self.get_skill: ExtensionMethod[GetSkillParams, GetSkillResult] = add_method(
            extension,
            Method(
                name="skills/get", params=GetSkillParams, result=GetSkillResult, is_cacheable=True, extension=IDENTIFIER
            ),
            None if handlers is None else handlers.get_skill,
        )
        self.read_directory: ExtensionMethod[ReadDirectoryParams, ReadDirectoryResult] = add_method(
            extension,
            Method(
                name="resources/directory/read",
                params=ReadDirectoryParams,
                result=ReadDirectoryResult,
                extension=IDENTIFIER,
            ),
            None if handlers is None else handlers.read_directory,
        )
