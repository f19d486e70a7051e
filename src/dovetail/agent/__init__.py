"""An agent loop that uses the tools of a host, and adapters for model providers.

Each name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from dovetail.lazy import create_lazy_loader as _create_lazy_loader

if TYPE_CHECKING:
    from dovetail.agent.agent import Agent as Agent
    from dovetail.agent.agent import AgentEvent as AgentEvent
    from dovetail.agent.agent import FinishedEvent as FinishedEvent
    from dovetail.agent.agent import PausedEvent as PausedEvent
    from dovetail.agent.agent import TextEvent as TextEvent
    from dovetail.agent.agent import ToolCallEvent as ToolCallEvent
    from dovetail.agent.agent import ToolResultEvent as ToolResultEvent
    from dovetail.agent.budget import AgentUsage as AgentUsage
    from dovetail.agent.models.anthropic_model import AnthropicModel as AnthropicModel
    from dovetail.agent.models.factory import load_model as load_model
    from dovetail.agent.models.openai_model import OpenAIModel as OpenAIModel
    from dovetail.agent.models.preferences import ModelInfo as ModelInfo
    from dovetail.protocol.interfaces.language_model import Model as Model
    from dovetail.protocol.interfaces.language_model import ModelReply as ModelReply
    from dovetail.protocol.interfaces.language_model import Usage as Usage
    from dovetail.testing.scripted_model import ModelRequest as ModelRequest

_MODULE_BY_NAME = {
    "Agent": "dovetail.agent.agent",
    "AgentEvent": "dovetail.agent.agent",
    "AgentUsage": "dovetail.agent.budget",
    "AnthropicModel": "dovetail.agent.models.anthropic_model",
    "FinishedEvent": "dovetail.agent.agent",
    "Model": "dovetail.protocol.interfaces.language_model",
    "ModelInfo": "dovetail.agent.models.preferences",
    "ModelReply": "dovetail.protocol.interfaces.language_model",
    "ModelRequest": "dovetail.testing.scripted_model",
    "OpenAIModel": "dovetail.agent.models.openai_model",
    "PausedEvent": "dovetail.agent.agent",
    "TextEvent": "dovetail.agent.agent",
    "ToolCallEvent": "dovetail.agent.agent",
    "ToolResultEvent": "dovetail.agent.agent",
    "Usage": "dovetail.protocol.interfaces.language_model",
    "load_model": "dovetail.agent.models.factory",
}

__all__ = [*_MODULE_BY_NAME]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = _create_lazy_loader(__name__, _MODULE_BY_NAME)
