"""The types of completion/complete, which suggests values for an argument of a prompt or a resource template.

The code that builds the result enforces the specification's limit of one hundred values.
"""

from typing import ClassVar, Literal

from dovetail.wire.base import Params, Result, WireStruct


class PromptReference(WireStruct, tag_field="type", tag="ref/prompt"):
    """A reference to the prompt whose argument the user is typing."""

    type: ClassVar[Literal["ref/prompt"]] = "ref/prompt"
    name: str
    title: str | None = None  # added in protocol version 2025-06


class ResourceTemplateReference(WireStruct, tag_field="type", tag="ref/resource"):
    """A reference to the resource template whose variable the user is typing."""

    type: ClassVar[Literal["ref/resource"]] = "ref/resource"
    uri: str


class CompletionArgument(WireStruct):
    """The name of an argument, and the text that the user has typed so far."""

    name: str
    value: str


class CompletionContext(WireStruct):
    """The arguments that already have a value. Added in protocol version 2025-06."""

    arguments: dict[str, str] | None = None


class CompleteParams(Params):
    """The parameters of completion/complete."""

    ref: PromptReference | ResourceTemplateReference
    argument: CompletionArgument
    context: CompletionContext | None = None  # added in protocol version 2025-06


class Completion(WireStruct):
    """Suggested values for an argument, and whether the server has more values."""

    values: list[str]
    total: int | None = None
    has_more: bool | None = None


class CompleteResult(Result):
    """The result of completion/complete."""

    completion: Completion
