"""completion/complete: suggestions for an argument of a prompt or a resource template.

The specification's limit of one hundred values is kept by whoever builds the result.
"""

from typing import ClassVar, Literal

from dovetail.wire.base import Params, Result, WireStruct


class PromptReference(WireStruct, tag_field="type", tag="ref/prompt"):
    """The prompt whose argument is being typed."""

    type: ClassVar[Literal["ref/prompt"]] = "ref/prompt"
    name: str
    title: str | None = None  # since 2025-06


class ResourceTemplateReference(WireStruct, tag_field="type", tag="ref/resource"):
    """The resource template whose variable is being typed."""

    type: ClassVar[Literal["ref/resource"]] = "ref/resource"
    uri: str


class CompletionArgument(WireStruct):
    """The argument and what was typed so far."""

    name: str
    value: str


class CompletionContext(WireStruct):
    """Arguments already settled; since 2025-06."""

    arguments: dict[str, str] | None = None


class CompleteParams(Params):
    """What to complete."""

    ref: PromptReference | ResourceTemplateReference
    argument: CompletionArgument
    context: CompletionContext | None = None  # since 2025-06


class Completion(WireStruct):
    """Suggestions, and whether there are more."""

    values: list[str]
    total: int | None = None
    has_more: bool | None = None


class CompleteResult(Result):
    """The answer to a completion request."""

    completion: Completion
