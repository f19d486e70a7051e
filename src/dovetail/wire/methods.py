"""The table of all methods, with their parameters, results, senders and protocol versions.

A method exists only in its protocol versions. The support matrix in the documentation is generated from this table.
"""

from typing import Final, Literal

from dovetail.wire.base import EmptyResult, PaginatedParams, Params, Result, WireStruct
from dovetail.wire.completion import CompleteParams, CompleteResult
from dovetail.wire.elicitation import ElicitationCompleteParams, ElicitRequestParams, ElicitResult
from dovetail.wire.lifecycle import DiscoverResult, InitializeParams, InitializeResult
from dovetail.wire.logs import LoggingMessageNotificationParams, SetLevelParams
from dovetail.wire.progress import CancelledParams, ProgressParams
from dovetail.wire.prompts import GetPromptParams, GetPromptResult, ListPromptsResult
from dovetail.wire.resources import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceParams,
    ReadResourceResult,
)
from dovetail.wire.revisions import (
    DRAFT,
    R_2024_11_05,
    R_2025_03_26,
    R_2025_06_18,
    R_2025_11_25,
    R_2026_07_28,
    REVISIONS,
    is_within,
)
from dovetail.wire.roots import ListRootsResult
from dovetail.wire.sampling import CreateMessageRequestParams, CreateMessageResult
from dovetail.wire.subscriptions import (
    AcknowledgedParams,
    ListenParams,
    ListenResult,
    ResourceUpdatedParams,
    SubscribeParams,
    UnsubscribeParams,
)
from dovetail.wire.tools import CallToolParams, CallToolResult, ListToolsResult

Sender = Literal["client", "server", "both"]


class Method(WireStruct):
    """A method of the protocol.

    `until` is the first version without the method. `only_revision` is set if exactly one version has the method.
    """

    name: str
    params: type[Params]
    result: type[Result] | None = None  # the type of the result, or None for a notification
    sender: Sender = "client"
    since: str = R_2024_11_05
    until: str | None = None
    only_revision: str | None = None
    name_parameter: str | None = None  # the parameter whose value the Mcp-Name header repeats
    may_require_input: bool = False  # True if the result may be an InputRequiredResult
    is_cacheable: bool = False
    extension: str | None = None  # the identifier of the extension that adds the method, or None

    def exists_in(self, revision: str) -> bool:
        """Return whether a protocol version has this method."""
        return revision == self.only_revision if self.only_revision else is_within(revision, self.since, self.until)


_METHOD_ROWS: Final = (
    Method(name="initialize", params=InitializeParams, result=InitializeResult, until=R_2026_07_28),
    Method(name="ping", params=Params, result=EmptyResult, sender="both", until=R_2026_07_28),
    Method(name="shutdown", params=Params, result=EmptyResult, until=R_2026_07_28),
    Method(name="server/discover", params=Params, result=DiscoverResult, since=R_2026_07_28, is_cacheable=True),
    Method(name="tools/list", params=PaginatedParams, result=ListToolsResult, is_cacheable=True),
    Method(
        name="tools/call", params=CallToolParams, result=CallToolResult, name_parameter="name", may_require_input=True
    ),
    Method(name="resources/list", params=PaginatedParams, result=ListResourcesResult, is_cacheable=True),
    Method(
        name="resources/templates/list", params=PaginatedParams, result=ListResourceTemplatesResult, is_cacheable=True
    ),
    Method(
        name="resources/read",
        params=ReadResourceParams,
        result=ReadResourceResult,
        name_parameter="uri",
        may_require_input=True,
        is_cacheable=True,
    ),
    Method(name="resources/subscribe", params=SubscribeParams, result=EmptyResult, until=R_2026_07_28),
    Method(name="resources/unsubscribe", params=UnsubscribeParams, result=EmptyResult, until=R_2026_07_28),
    Method(name="prompts/list", params=PaginatedParams, result=ListPromptsResult, is_cacheable=True),
    Method(
        name="prompts/get",
        params=GetPromptParams,
        result=GetPromptResult,
        name_parameter="name",
        may_require_input=True,
    ),
    Method(name="completion/complete", params=CompleteParams, result=CompleteResult),
    Method(name="logging/setLevel", params=SetLevelParams, result=EmptyResult, until=R_2026_07_28),
    Method(name="subscriptions/listen", params=ListenParams, result=ListenResult, since=R_2026_07_28),
    Method(name="roots/list", params=Params, result=ListRootsResult, sender="server"),
    Method(
        name="sampling/createMessage", params=CreateMessageRequestParams, result=CreateMessageResult, sender="server"
    ),
    Method(
        name="elicitation/create", params=ElicitRequestParams, result=ElicitResult, sender="server", since=R_2025_06_18
    ),
    Method(
        name="elicitation/createDialog",
        params=ElicitRequestParams,
        result=ElicitResult,
        sender="server",
        only_revision=DRAFT,
    ),
    Method(name="notifications/initialized", params=Params, until=R_2026_07_28),
    Method(name="notifications/cancelled", params=CancelledParams, sender="both"),
    Method(name="notifications/progress", params=ProgressParams, sender="both"),
    Method(name="notifications/message", params=LoggingMessageNotificationParams, sender="server"),
    Method(name="notifications/tools/list_changed", params=Params, sender="server"),
    Method(name="notifications/prompts/list_changed", params=Params, sender="server"),
    Method(name="notifications/resources/list_changed", params=Params, sender="server"),
    Method(name="notifications/resources/updated", params=ResourceUpdatedParams, sender="server"),
    Method(name="notifications/roots/list_changed", params=Params, until=R_2026_07_28),
    Method(
        name="notifications/elicitation/complete",
        params=ElicitationCompleteParams,
        sender="server",
        since=R_2025_11_25,
        until=R_2026_07_28,
    ),
    Method(
        name="notifications/subscriptions/acknowledged",
        params=AcknowledgedParams,
        sender="server",
        since=R_2026_07_28,
    ),
    Method(name="notifications/elicitation/dialog_opened", params=Params, only_revision=DRAFT),
    Method(name="notifications/elicitation/dialog_closed", params=Params, only_revision=DRAFT),
)

METHODS: Final = {row.name: row for row in _METHOD_ROWS}


def _list_requests(revision: str) -> dict[str, Method]:
    return {
        row.name: row
        for row in _METHOD_ROWS
        if row.result and row.sender in ("client", "both") and row.exists_in(revision)
    }


# Maps each protocol version to the requests that clients may send.
REQUESTS: Final = {revision: _list_requests(revision) for revision in REVISIONS}

# Only protocol version 2025-03 has batches.
BATCH_REVISIONS: Final = frozenset({R_2025_03_26})
