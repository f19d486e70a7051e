"""Tool: a function compiled at registration into what a call needs: binder, header table, result shaper.

A call executes; it never inspects a signature or walks a schema.
"""

from collections.abc import Callable
from typing import Any

from dovetail.errors import ToolError, clip
from dovetail.protocol.headers import HeaderPath, header_paths
from dovetail.server.content import compile_output
from dovetail.server.context import Context
from dovetail.server.runner import Runner, describe
from dovetail.server.signature import compile_signature
from dovetail.wire import tools as wire
from dovetail.wire.content import Icon, TextContent
from dovetail.wire.tools import CallToolResult, ToolAnnotations


class Tool:
    """One tool, ready to run."""

    __slots__ = ("declaration", "headers", "output", "runner", "signature")

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        icons: list[Icon] | None = None,
        annotations: ToolAnnotations | None = None,
        input_schema: dict[str, Any] | None = None,
        output_schema: dict[str, Any] | None = None,
        meta: dict[str, Any] | None = None,
        timeout: float | None = None,
        inline: bool = False,
    ) -> None:
        self.signature = (
            compile_signature(function, context_type=Context)
            if input_schema is None
            else Verbatim(function, input_schema)
        )
        self.output = compile_output(self.signature.returns, where=self.signature.where)
        self.runner = Runner(function, timeout=timeout, inline=inline)
        self.declaration = wire.Tool(
            name=name or function.__name__,
            title=title,
            description=description if description is not None else describe(function),
            icons=icons,
            input_schema=self.signature.schema,
            output_schema=output_schema if output_schema is not None else self.output.schema,
            annotations=annotations,
            meta=meta,
        )
        self.headers: tuple[HeaderPath, ...] = header_paths(self.signature.schema)

    @property
    def name(self) -> str:
        """The name it is called by."""
        return self.declaration.name


class Verbatim:
    """A tool whose author gave the schema: arguments are checked against it and handed over as one dict."""

    def __init__(self, function: Callable[..., Any], schema: dict[str, Any]) -> None:
        self.schema = schema
        self._validator: Any = None
        inner = compile_signature(function, context_type=Context)
        self.context = inner.context
        self.returns = inner.returns
        self.where = inner.where
        names = inner.parameters
        is_open = inner.schema.get("additionalProperties") is not False
        if len(names) != 1 and not is_open:
            raise TypeError(
                f"{function.__qualname__}: with input_schema= the function takes one parameter (a dict of the "
                f"arguments) or **kwargs, besides the context; it has {len(names)}"
            )
        self._name = names[0] if names else None
        self.choices: dict[str, tuple[str, ...]] = {}

    def bind(self, arguments: dict[str, Any], context: Context | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Check the arguments and place them."""
        self._check(arguments)
        kwargs: dict[str, Any] = dict(arguments) if self._name is None else {self._name: arguments}
        if self.context is not None:
            kwargs[self.context] = context
        return (), kwargs

    def _check(self, arguments: dict[str, Any]) -> None:
        if self._validator is None:
            import jsonschema_rs  # only servers with schemas of their own pay for it

            # A linear-time regex engine, and nothing is ever fetched for a $ref.
            self._validator = jsonschema_rs.validator_for(
                self.schema, pattern_options=jsonschema_rs.RegexOptions(), retriever=_no_retrieval
            )
        problems = [
            f"{'.'.join(map(str, error.instance_path)) or 'arguments'}: {clip(error.message, 200)}"
            for error, _ in zip(self._validator.iter_errors(arguments), range(10), strict=False)
        ]
        if problems:
            raise ToolError("Invalid arguments: " + "; ".join(problems))


def _no_retrieval(uri: str) -> Any:
    raise ValueError(f"remote schema {clip(uri)} is not fetched")


def error_result(text: str) -> CallToolResult:
    """A failure the model reads."""
    return CallToolResult(content=[TextContent(text=text)], is_error=True)
