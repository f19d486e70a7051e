"""Extensions of the protocol: the contract for your own extensions, tasks, and skills for clients.

Each name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from dovetail.lazy import create_lazy_loader as _create_lazy_loader

if TYPE_CHECKING:
    from dovetail.protocol.interfaces.extension import Extension as Extension
    from dovetail.protocol.interfaces.extension import ExtensionClient as ExtensionClient
    from dovetail.protocol.interfaces.extension import ExtensionMethod as ExtensionMethod
    from dovetail.protocol.interfaces.extension import ExtensionSubscription as ExtensionSubscription
    from dovetail.skills.remote_skill import Skill as Skill
    from dovetail.skills.remote_skill import SyncSkill as SyncSkill
    from dovetail.skills.skill import SkillFile as SkillFile
    from dovetail.tasks.docket_engine import DocketEngine as DocketEngine
    from dovetail.tasks.redis_task_store import RedisTaskStore as RedisTaskStore
    from dovetail.tasks.sqlite_task_store import SQLiteTaskStore as SQLiteTaskStore
    from dovetail.tasks.task_handle import SyncTaskHandle as SyncTaskHandle
    from dovetail.tasks.task_handle import TaskHandle as TaskHandle
    from dovetail.tasks.task_handle import TaskUpdate as TaskUpdate
    from dovetail.tasks.task_options import TaskConfig as TaskConfig
    from dovetail.tasks.task_options import TaskOptions as TaskOptions
    from dovetail.tasks.task_record import TaskLease as TaskLease
    from dovetail.tasks.task_record import TaskRecord as TaskRecord
    from dovetail.tasks.task_record import TaskStoreUnavailable as TaskStoreUnavailable
    from dovetail.tasks.task_record import decode_record as decode_record
    from dovetail.tasks.task_record import encode_record as encode_record
    from dovetail.tasks.task_rules import claim_task as claim_task
    from dovetail.tasks.task_rules import compute_due_at as compute_due_at
    from dovetail.tasks.task_store import RunTask as RunTask
    from dovetail.tasks.task_store import StopSignal as StopSignal
    from dovetail.tasks.task_store import TaskConflict as TaskConflict
    from dovetail.tasks.task_store import TaskEngine as TaskEngine
    from dovetail.tasks.task_store import TaskLimits as TaskLimits
    from dovetail.tasks.task_store import TaskStore as TaskStore
    from dovetail.tasks.task_store import TaskStoreFull as TaskStoreFull
    from dovetail.wire.base import CacheableResult as CacheableResult
    from dovetail.wire.base import PaginatedParams as PaginatedParams
    from dovetail.wire.base import Params as Params
    from dovetail.wire.base import Result as Result
    from dovetail.wire.base import WireStruct as WireStruct

_MODULE_BY_NAME = {
    "CacheableResult": "dovetail.wire.base",
    "DocketEngine": "dovetail.tasks.docket_engine",
    "Extension": "dovetail.protocol.interfaces.extension",
    "ExtensionClient": "dovetail.protocol.interfaces.extension",
    "ExtensionMethod": "dovetail.protocol.interfaces.extension",
    "ExtensionSubscription": "dovetail.protocol.interfaces.extension",
    "PaginatedParams": "dovetail.wire.base",
    "Params": "dovetail.wire.base",
    "RedisTaskStore": "dovetail.tasks.redis_task_store",
    "Result": "dovetail.wire.base",
    "RunTask": "dovetail.tasks.task_store",
    "SQLiteTaskStore": "dovetail.tasks.sqlite_task_store",
    "Skill": "dovetail.skills.remote_skill",
    "SkillFile": "dovetail.skills.skill",
    "StopSignal": "dovetail.tasks.task_store",
    "SyncSkill": "dovetail.skills.remote_skill",
    "SyncTaskHandle": "dovetail.tasks.task_handle",
    "TaskConfig": "dovetail.tasks.task_options",
    "TaskConflict": "dovetail.tasks.task_store",
    "TaskEngine": "dovetail.tasks.task_store",
    "TaskHandle": "dovetail.tasks.task_handle",
    "TaskLease": "dovetail.tasks.task_record",
    "TaskLimits": "dovetail.tasks.task_store",
    "TaskOptions": "dovetail.tasks.task_options",
    "TaskRecord": "dovetail.tasks.task_record",
    "TaskStore": "dovetail.tasks.task_store",
    "TaskStoreFull": "dovetail.tasks.task_store",
    "TaskStoreUnavailable": "dovetail.tasks.task_record",
    "TaskUpdate": "dovetail.tasks.task_handle",
    "WireStruct": "dovetail.wire.base",
    "claim_task": "dovetail.tasks.task_rules",
    "compute_due_at": "dovetail.tasks.task_rules",
    "decode_record": "dovetail.tasks.task_record",
    "encode_record": "dovetail.tasks.task_record",
}

__all__ = [*_MODULE_BY_NAME]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = _create_lazy_loader(__name__, _MODULE_BY_NAME)
