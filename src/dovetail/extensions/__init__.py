"""Extensions of the protocol: the contract for your own extensions, and skills for clients.

Each name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from dovetail.lazy import create_lazy_loader as _create_lazy_loader

if TYPE_CHECKING:
    from dovetail.extensions.skills.remote_skill import Skill as Skill
    from dovetail.extensions.skills.remote_skill import SyncSkill as SyncSkill
    from dovetail.extensions.skills.skill import SkillFile as SkillFile
    from dovetail.protocol.extension import Extension as Extension
    from dovetail.protocol.extension import ExtensionClient as ExtensionClient
    from dovetail.protocol.extension import ExtensionMethod as ExtensionMethod
    from dovetail.wire.base import CacheableResult as CacheableResult
    from dovetail.wire.base import PaginatedParams as PaginatedParams
    from dovetail.wire.base import Params as Params
    from dovetail.wire.base import Result as Result
    from dovetail.wire.base import WireStruct as WireStruct

_MODULE_BY_NAME = {
    "CacheableResult": "dovetail.wire.base",
    "Extension": "dovetail.protocol.extension",
    "ExtensionClient": "dovetail.protocol.extension",
    "ExtensionMethod": "dovetail.protocol.extension",
    "PaginatedParams": "dovetail.wire.base",
    "Params": "dovetail.wire.base",
    "Result": "dovetail.wire.base",
    "Skill": "dovetail.extensions.skills.remote_skill",
    "SkillFile": "dovetail.extensions.skills.skill",
    "SyncSkill": "dovetail.extensions.skills.remote_skill",
    "WireStruct": "dovetail.wire.base",
}

__all__ = [*_MODULE_BY_NAME]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = _create_lazy_loader(__name__, _MODULE_BY_NAME)
