"""Every method of every revision, one row each: what it carries, who may send it, when it exists.

Outside its window a method does not exist. The support matrix in the documentation is printed from this table.
"""

from typing import Final, Literal

from dovetail.wire.completion import CompleteParams, CompleteResult
from dovetail.wire.elicitation import ElicitationCompleteParams, ElicitParams, ElicitResult
from dovetail.wire.lifecycle import DiscoverResult, InitializeParams, InitializeResult
from dovetail.wire.logs import LoggingMessageParams, SetLevelParams
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
    within,
)
from dovetail.wire.roots import ListRootsResult
from dovetail.wire.sampling import CreateMessageParams, CreateMessageResult
from dovetail.wire.shape import Empty, PaginatedParams, Params, Result, Wire
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


class Method(Wire):
    """One row: `until` is the first revision without it, `only` the one dialect that has it."""

    name: str
    params: type[Params]
    result: type[Result] | None = None  # None: a notification
    sender: Sender = "client"
    since: str = R_2024_11_05
    until: str | None = None
    only: str | None = None
    header: str | None = None  # the parameter mirrored in the Mcp-Name header
    asks: bool = False  # may answer that input is required
    cacheable: bool = False

    def exists(self, revision: str) -> bool:
        """Whether the revision has this method."""
        return revision == self.only if self.only else within(revision, self.since, self.until)


_ROWS: Final = (
    Method(name="initialize", params=InitializeParams, result=InitializeResult, until=R_2026_07_28),
    Method(name="ping", params=Params, result=Empty, sender="both", until=R_2026_07_28),
    Method(name="shutdown", params=Params, result=Empty, until=R_2026_07_28),
    Method(name="server/discover", params=Params, result=DiscoverResult, since=R_2026_07_28, cacheable=True),
    Method(name="tools/list", params=PaginatedParams, result=ListToolsResult, cacheable=True),
    Method(name="tools/call", params=CallToolParams, result=CallToolResult, header="name", asks=True),
    Method(name="resources/list", params=PaginatedParams, result=ListResourcesResult, cacheable=True),
    Method(name="resources/templates/list", params=PaginatedParams, result=ListResourceTemplatesResult, cacheable=True),
    Method(
        name="resources/read",
        params=ReadResourceParams,
        result=ReadResourceResult,
        header="uri",
        asks=True,
        cacheable=True,
    ),
    Method(name="resources/subscribe", params=SubscribeParams, result=Empty, until=R_2026_07_28),
    Method(name="resources/unsubscribe", params=UnsubscribeParams, result=Empty, until=R_2026_07_28),
    Method(name="prompts/list", params=PaginatedParams, result=ListPromptsResult, cacheable=True),
    Method(name="prompts/get", params=GetPromptParams, result=GetPromptResult, header="name", asks=True),
    Method(name="completion/complete", params=CompleteParams, result=CompleteResult),
    Method(name="logging/setLevel", params=SetLevelParams, result=Empty, until=R_2026_07_28),
    Method(name="subscriptions/listen", params=ListenParams, result=ListenResult, since=R_2026_07_28),
    Method(name="roots/list", params=Params, result=ListRootsResult, sender="server"),
    Method(name="sampling/createMessage", params=CreateMessageParams, result=CreateMessageResult, sender="server"),
    Method(name="elicitation/create", params=ElicitParams, result=ElicitResult, sender="server", since=R_2025_06_18),
    Method(name="elicitation/createDialog", params=ElicitParams, result=ElicitResult, sender="server", only=DRAFT),
    Method(name="notifications/initialized", params=Params, until=R_2026_07_28),
    Method(name="notifications/cancelled", params=CancelledParams, sender="both"),
    Method(name="notifications/progress", params=ProgressParams, sender="both"),
    Method(name="notifications/message", params=LoggingMessageParams, sender="server"),
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
    Method(name="notifications/elicitation/dialog_opened", params=Params, only=DRAFT),
    Method(name="notifications/elicitation/dialog_closed", params=Params, only=DRAFT),
)

METHODS: Final = {row.name: row for row in _ROWS}


def _requests(revision: str) -> dict[str, Method]:
    return {row.name: row for row in _ROWS if row.result and row.sender in ("client", "both") and row.exists(revision)}


# What a client may ask for in each revision: a request looks itself up here and nowhere else.
REQUESTS: Final = {revision: _requests(revision) for revision in REVISIONS}

# Several messages in one array were part of one revision only.
BATCHES: Final = frozenset({R_2025_03_26})
