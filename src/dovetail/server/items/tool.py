"""Tools: functions that are compiled at registration into everything that a call needs.

For example, a tool has a function that binds arguments and one that converts results. Calls do not inspect the
signature or the schema again.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, Unpack

from dovetail.protocol.downgrade import must_wrap
from dovetail.protocol.exchange import IncomingExchange
from dovetail.protocol.headers import HeaderPath, compile_header_paths
from dovetail.protocol.request_state import RequestState
from dovetail.server.invocation import Runner, get_description, get_function_name
from dovetail.server.items.compiled_function import RunOptions, compile_function
from dovetail.server.items.item_options import build_meta, read_annotations
from dovetail.server.results import build_output, compile_output
from dovetail.server.thread_pool import ThreadPool
from dovetail.wire import tools as wire
from dovetail.wire.base import Result, replace
from dovetail.wire.content import Icon, TextContent
from dovetail.wire.tools import CallToolResult, ToolAnnotations


class TaskSupport(Protocol):
    """Turns calls of one tool into tasks."""

    async def start(
        self,
        exchange: IncomingExchange,
        tool: "Tool",
        arguments: dict[str, Any],
        open_round_state: Callable[[IncomingExchange], RequestState],
    ) -> Result | None:
        """Create a task for a call. Return None if the call runs in the foreground, or is a task already."""
        ...

    def get_runner(self, exchange: IncomingExchange, tool: "Tool") -> Runner:
        """Return the runner for a call."""
        ...

    def get_thread_pool(self, exchange: IncomingExchange) -> ThreadPool | None:
        """Return the thread pool for a task. Return None if the call cannot become a task."""
        ...

    def report_alive(self, exchange: IncomingExchange) -> AbstractContextManager[None]:
        """Send progress while the call runs in the foreground, so that the client keeps waiting."""
        ...

    def get_digest(self, tool: "Tool") -> str:
        """Return a digest of the tool. A stored call runs only if the digest has not changed."""
        ...


class Tool:
    """A registered tool."""

    __slots__ = (
        "declaration",
        "enabled",
        "headers",
        "output",
        "runner",
        "signature",
        "tags",
        "task",
        "version",
        "wraps",
    )

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        icons: list[Icon] | None = None,
        annotations: ToolAnnotations | Mapping[str, Any] | None = None,
        read_only: bool | None = None,
        destructive: bool | None = None,
        idempotent: bool | None = None,
        open_world: bool | None = None,
        input_schema: dict[str, Any] | None = None,
        output_schema: dict[str, Any] | None = None,
        tags: Collection[str] = (),
        version: str | None = None,
        meta: dict[str, Any] | None = None,
        enabled: bool = True,
        wrap_results: bool = True,
        task: TaskSupport | None = None,
        **run_options: Unpack[RunOptions],
    ) -> None:
        self.signature, self.runner = compile_function(function, schema=input_schema, **run_options)
        where = self.signature.where
        if output_schema is None:
            self.output = compile_output(self.signature.returns, where=where, wrap_results=wrap_results)
        else:
            from dovetail.server.parameters.custom_schema import compile_schema

            self.output = build_output(output_schema, compile_schema(output_schema, where), wrap_results=wrap_results)
        self.declaration = wire.Tool(
            name=name or get_function_name(function),
            title=title,
            description=description if description is not None else get_description(function),
            icons=icons,
            input_schema=self.signature.schema,
            output_schema=self.output.schema,
            annotations=_build_annotations(
                annotations,
                read_only=read_only,
                destructive=destructive,
                idempotent=idempotent,
                open_world=open_world,
            ),
            meta=build_meta(meta, tags, version),
        )
        self.tags = frozenset(tags)
        self.version = version
        self.enabled = enabled
        self.task = task  # None if calls of this tool never become tasks
        self.headers: tuple[HeaderPath, ...] = compile_header_paths(self.signature.schema)
        # True if results must be wrapped, because handshake versions do not support bare values.
        self.wraps: bool = must_wrap(self.output.schema)

    @property
    def name(self) -> str:
        return self.declaration.name


def build_error_result(text: str) -> CallToolResult:
    """Create an error result with a message for the model."""
    return CallToolResult(content=[TextContent(text=text)], is_error=True)


def _build_annotations(annotations: Any, **flags: bool | None) -> ToolAnnotations | None:
    annotations = read_annotations(annotations, ToolAnnotations)
    hint_values: dict[str, Any] = {f"{name}_hint": value for name, value in flags.items() if value is not None}
    if annotations is None:
        return ToolAnnotations(**hint_values) if hint_values else None
    for name, value in hint_values.items():
        if getattr(annotations, name) not in (None, value):
            raise ValueError(f"{name.removesuffix('_hint')}={value} contradicts annotations=. Set only one of them")
    return replace(annotations, **hint_values)
