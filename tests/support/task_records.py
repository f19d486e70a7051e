"""Records of tasks for tests. Programs that tests start as processes use them, too."""

import time
from typing import Any

from dovetail.tasks.task_record import TaskCaller, TaskRecord, create_task_id

SERVER = "test"


def make_record(**fields: Any) -> TaskRecord:
    """Return the record of a new task that was created now."""
    now = fields.pop("now", None) or time.time()
    defaults: dict[str, Any] = {
        "id": create_task_id(),
        "server": SERVER,
        "caller": TaskCaller(protocol_version="x"),
        "tool": "report",
        "tool_digest": "d",
        "created_at": now,
        "updated_at": now,
        "expires_at": now + 3600,
        "retention": 3600.0,
    }
    return TaskRecord(**(defaults | fields))
