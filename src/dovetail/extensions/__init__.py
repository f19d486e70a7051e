"""Extensions of the protocol: the contract for your own extensions, tasks, and skills for clients.

Each name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from dovetail.lazy import create_lazy_loader as _create_lazy_loader

if TYPE_CHECKING:
    from dovetail.extensions.skills.remote_skill import Skill as Skill
    from dovetail.extensions.skills.remote_skill import SyncSkill as SyncSkill
    from dovetail.extensions.skills.skill import SkillFile as SkillFile
    from dovetail.extensions.tasks.docket_engine import DocketEngine as DocketEngine
    from dovetail.extensions.tasks.redis_task_store import RedisTaskStore as RedisTaskStore
    from dovetail.extensions.tasks.sqlite_task_store import SQLiteTaskStore as SQLiteTaskStore
    from dovetail.extensions.tasks.task_handle import SyncTaskHandle as SyncTaskHandle
    from dovetail.extensions.tasks.task_handle import TaskHandle as TaskHandle
    from dovetail.extensions.tasks.task_handle import TaskUpdate as TaskUpdate
    from dovetail.extensions.tasks.task_options import TaskConfig as TaskConfig
    from dovetail.extensions.tasks.task_options import TaskOptions as TaskOptions
    from dovetail.protocol.extension import Extension as Extension
    from dovetail.protocol.extension import ExtensionClient as ExtensionClient
    from dovetail.protocol.extension import ExtensionMethod as ExtensionMethod
    from dovetail.protocol.extension import ExtensionSubscription as ExtensionSubscription
    from dovetail.protocol.task_record import TaskLease as TaskLease
    from dovetail.protocol.task_record import TaskRecord as TaskRecord
    from dovetail.protocol.task_record import TaskStoreUnavailable as TaskStoreUnavailable
    from dovetail.protocol.task_record import decode_record as decode_record
    from dovetail.protocol.task_record import encode_record as encode_record
    from dovetail.protocol.task_rules import claim_task as claim_task
    from dovetail.protocol.task_rules import compute_due_at as compute_due_at
    from dovetail.protocol.task_store import RunTask as RunTask
    from dovetail.protocol.task_store import StopSignal as StopSignal
    from dovetail.protocol.task_store import TaskConflict as TaskConflict
    from dovetail.protocol.task_store import TaskEngine as TaskEngine
    from dovetail.protocol.task_store import TaskLimits as TaskLimits
    from dovetail.protocol.task_store import TaskStore as TaskStore
    from dovetail.protocol.task_store import TaskStoreFull as TaskStoreFull
    from dovetail.wire.base import CacheableResult as CacheableResult
    from dovetail.wire.base import PaginatedParams as PaginatedParams
    from dovetail.wire.base import Params as Params
    from dovetail.wire.base import Result as Result
    from dovetail.wire.base import WireStruct as WireStruct

_MODULE_BY_NAME = {
    "CacheableResult": "dovetail.wire.base",
    "DocketEngine": "dovetail.extensions.tasks.docket_engine",
    "Extension": "dovetail.protocol.extension",
    "ExtensionClient": "dovetail.protocol.extension",
    "ExtensionMethod": "dovetail.protocol.extension",
    "ExtensionSubscription": "dovetail.protocol.extension",
    "PaginatedParams": "dovetail.wire.base",
    "Params": "dovetail.wire.base",
    "RedisTaskStore": "dovetail.extensions.tasks.redis_task_store",
    "Result": "dovetail.wire.base",
    "RunTask": "dovetail.protocol.task_store",
    "SQLiteTaskStore": "dovetail.extensions.tasks.sqlite_task_store",
    "Skill": "dovetail.extensions.skills.remote_skill",
    "SkillFile": "dovetail.extensions.skills.skill",
    "StopSignal": "dovetail.protocol.task_store",
    "SyncSkill": "dovetail.extensions.skills.remote_skill",
    "SyncTaskHandle": "dovetail.extensions.tasks.task_handle",
    "TaskConfig": "dovetail.extensions.tasks.task_options",
    "TaskConflict": "dovetail.protocol.task_store",
    "TaskEngine": "dovetail.protocol.task_store",
    "TaskHandle": "dovetail.extensions.tasks.task_handle",
    "TaskLease": "dovetail.protocol.task_record",
    "TaskLimits": "dovetail.protocol.task_store",
    "TaskOptions": "dovetail.extensions.tasks.task_options",
    "TaskRecord": "dovetail.protocol.task_record",
    "TaskStore": "dovetail.protocol.task_store",
    "TaskStoreFull": "dovetail.protocol.task_store",
    "TaskStoreUnavailable": "dovetail.protocol.task_record",
    "TaskUpdate": "dovetail.extensions.tasks.task_handle",
    "WireStruct": "dovetail.wire.base",
    "claim_task": "dovetail.protocol.task_rules",
    "compute_due_at": "dovetail.protocol.task_rules",
    "decode_record": "dovetail.protocol.task_record",
    "encode_record": "dovetail.protocol.task_record",
}

__all__ = [*_MODULE_BY_NAME]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = _create_lazy_loader(__name__, _MODULE_BY_NAME)
