"""An agent loop over a host's tools, and adapters for model providers. Each name is loaded when it is first used."""

from typing import TYPE_CHECKING

from dovetail.lazy import create_lazy_loader

if TYPE_CHECKING:
    from dovetail.agent.agent import Agent as Agent
    from dovetail.agent.agent import Answered as Answered
    from dovetail.agent.agent import Called as Called
    from dovetail.agent.agent import Done as Done
    from dovetail.agent.agent import Paused as Paused
    from dovetail.agent.agent import Said as Said
    from dovetail.agent.budget import Spent as Spent
    from dovetail.agent.models.anthropic_model import AnthropicModel as AnthropicModel
    from dovetail.agent.models.factory import named as named
    from dovetail.agent.models.openai_model import OpenAIModel as OpenAIModel
    from dovetail.agent.models.preferences import Variant as Variant
    from dovetail.protocol.language_model import Model as Model
    from dovetail.protocol.language_model import Reply as Reply
    from dovetail.protocol.language_model import Usage as Usage

_HOMES = {
    "Agent": "dovetail.agent.agent",
    "Answered": "dovetail.agent.agent",
    "AnthropicModel": "dovetail.agent.models.anthropic_model",
    "Called": "dovetail.agent.agent",
    "Done": "dovetail.agent.agent",
    "Model": "dovetail.protocol.language_model",
    "OpenAIModel": "dovetail.agent.models.openai_model",
    "Paused": "dovetail.agent.agent",
    "Reply": "dovetail.protocol.language_model",
    "Said": "dovetail.agent.agent",
    "Spent": "dovetail.agent.budget",
    "Usage": "dovetail.protocol.language_model",
    "Variant": "dovetail.agent.models.preferences",
    "named": "dovetail.agent.models.factory",
}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = create_lazy_loader(__name__, _HOMES)
