"""The optional features that clients and targets load. Each function imports one feature when it is first used."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.client.request_sender import RequestSender
from dovetail.client.session import Session

if TYPE_CHECKING:
    from dovetail.auth.authorizer import OAuthAuthorizer
    from dovetail.mounts.mounted_client import InputFilter, MountedClient
    from dovetail.oauth.login.login_settings import ClientAuth
    from dovetail.protocol.interfaces.message_tap import Recorder
    from dovetail.skills.client_skills import RunOnLoop
    from dovetail.skills.remote_skill import Skill, SyncSkill
    from dovetail.tasks.client_tasks import ClientTasks
    from dovetail.tasks.task_handle import SyncTaskHandle, TaskHandle

# Waits for a coroutine, and blocks the thread.
RunBlocking = Callable[[Coroutine[Any, Any, Any]], Any]


def create_tasks(client: object, session: Session) -> "ClientTasks":
    """Return the part of a client that starts tasks and waits for them."""
    from dovetail.tasks.client_tasks import ClientTasks

    return ClientTasks(client, session)


def wrap_task(handle: "TaskHandle", run: RunBlocking) -> "SyncTaskHandle":
    """Return a handle with blocking methods."""
    from dovetail.tasks.task_handle import SyncTaskHandle

    return SyncTaskHandle(handle, run)


async def list_skills(sender: RequestSender, run: "RunOnLoop") -> "list[Skill]":
    """Return all skills of a server."""
    from dovetail.skills.client_skills import list_skills

    return await list_skills(sender, run)


async def get_skill(sender: RequestSender, run: "RunOnLoop", uri: str) -> "Skill":
    """Return one skill of a server."""
    from dovetail.skills.client_skills import get_skill

    return await get_skill(sender, run, uri)


def wrap_skill(skill: "Skill", run: RunBlocking) -> "SyncSkill":
    """Return a skill with blocking methods."""
    from dovetail.skills.remote_skill import SyncSkill

    return SyncSkill(skill, run)


def create_mount(
    client: object,
    session: Session,
    get_tasks: "Callable[[], ClientTasks]",
    *,
    is_shared: bool,
    declare_all: bool,
    input_filter: "InputFilter | None",
) -> "MountedClient":
    """Return an object with which another server can mount a client."""
    from dovetail.mounts.mounted_client import MountedClient

    return MountedClient(
        client, session, get_tasks, is_shared=is_shared, declare_all=declare_all, input_filter=input_filter
    )


def open_recording(path: str | Path, server_name: str) -> "Recorder":
    """Return the function that writes messages to a recording."""
    from dovetail.recording.trace import RecordingWriter

    return RecordingWriter(path, server_name).record


def get_bearer_token(auth: "ClientAuth") -> str | None:
    """Return the token if `auth=` is one, or None if it describes a login."""
    from dovetail.oauth.login.login_settings import BearerAuth

    if isinstance(auth, str) and auth != "oauth":
        auth = BearerAuth(auth)
    return auth.token if isinstance(auth, BearerAuth) else None


def create_authorizer(
    url: str,
    auth: "ClientAuth",
    create_client: Callable[..., Any],
    create_server_client: Callable[..., Any] | None = None,
) -> "OAuthAuthorizer":
    """Return the object that logs a client in. `create_server_client` creates the HTTP client for the server itself."""
    from dovetail.auth.authorizer import create_authorizer

    return create_authorizer(url, auth, create_client, create_server_client)
