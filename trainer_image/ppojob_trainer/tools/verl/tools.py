"""Stand-ins for verl's classes that users' tool files import, in pods without verl."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict

from ppojob_trainer.tools.verl import agent_loops

Function = TypeVar("Function", bound=Callable[..., Any])


class _Form(BaseModel):
    """A JSON object with further entries."""

    model_config = ConfigDict(extra="allow")


class OpenAIFunctionPropertySchema(_Form):
    """Schema of an argument."""

    type: str | list[str] | None = None
    description: str | None = None
    enum: list[Any] | None = None


class OpenAIFunctionParametersSchema(_Form):
    """Schema of the arguments."""

    type: str = "object"
    properties: dict[str, OpenAIFunctionPropertySchema] = {}
    required: list[str] = []


class OpenAIFunctionSchema(_Form):
    """Schema of a function."""

    name: str
    description: str = ""
    parameters: OpenAIFunctionParametersSchema = OpenAIFunctionParametersSchema()
    strict: bool = False


class OpenAIFunctionToolSchema(_Form):
    """Schema of a tool."""

    type: str = "function"
    function: OpenAIFunctionSchema


class ToolResponse(_Form):
    """Answer of a tool; videos are not supported."""

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None


class BaseTool:
    """A tool: constructed once; created, executed and released for each call."""

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema) -> None:
        self.config = config
        self.tool_schema = tool_schema or self.get_openai_tool_schema()
        self.name = self.tool_schema.function.name

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        return self.tool_schema

    async def create(
        self, instance_id: str | None = None, **_created: Any
    ) -> tuple[str, ToolResponse]:
        return instance_id or "", ToolResponse()

    async def execute(
        self, _instance_id: str, _parameters: dict[str, Any], **_more: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        """Execute the call; subclasses must override it, as in verl."""
        raise NotImplementedError(f"{type(self).__name__} has no execute")

    async def calc_reward(self, _instance_id: str, **_more: Any) -> float:
        return 0.0

    async def release(self, _instance_id: str, **_more: Any) -> None:
        """End the call."""


class BaseInteraction:
    """A user simulator: constructed once, started and finalized for each row."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.name: str = config.get("name", "interaction_agent")

    async def start_interaction(self, instance_id: str | None = None, **_arguments: Any) -> str:
        return instance_id or ""

    async def generate_response(
        self, _instance_id: str, _messages: list[dict[str, Any]], **_arguments: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """Answer a turn; subclasses must override it, as in verl."""
        raise NotImplementedError(f"{type(self).__name__} has no generate_response")

    async def calculate_score(self, _instance_id: str | None = None, **_more: Any) -> float:
        return 0.0

    async def finalize_interaction(self, _instance_id: str | None = None, **_more: Any) -> None:
        """End the row."""


@dataclass(eq=False)  # users may keep them in sets
class FunctionTool:
    """A function that is registered as a tool."""

    name: str
    fn: Callable[..., Any]
    schema: Any  # schema for the model; None to derive it from the function

    async def call(self, parameters: dict[str, Any]) -> Any:
        result = self.fn(**parameters)
        return await result if asyncio.iscoroutinefunction(self.fn) else result


FUNCTION_TOOL_REGISTRY: dict[str, FunctionTool] = {}


def function_tool(name: Any = None, *, schema: Any = None) -> Any:
    """Register a function as a tool, optionally with another name; usable without brackets."""
    if callable(name):
        return _registered(name, name.__name__, schema)
    return lambda fn: _registered(fn, name or fn.__name__, schema)


def rollout_trace_op(function: Function) -> Function:
    """Return the function; verl would trace its calls."""
    return function


def _registered(fn: Callable[..., Any], name: str, schema: Any) -> Any:
    FUNCTION_TOOL_REGISTRY[name] = FunctionTool(name, fn, schema)
    return fn


_FORMS: dict[str, Any] = {form.__name__: form for form in _Form.__subclasses__()}
MODULES: Final[dict[str, dict[str, Any]]] = {
    "verl": {},
    "verl.interactions": {},
    "verl.interactions.base": {"BaseInteraction": BaseInteraction},
    "verl.tools": {},
    "verl.tools.schemas": _FORMS,
    "verl.tools.base_tool": {"BaseTool": BaseTool, **_FORMS},
    "verl.tools.function_tool": {
        "FUNCTION_TOOL_REGISTRY": FUNCTION_TOOL_REGISTRY,
        "FunctionTool": FunctionTool,
        "function_tool": function_tool,
        **_FORMS,
    },
    "verl.utils": {},
    "verl.utils.rollout_trace": {"rollout_trace_op": rollout_trace_op},
    **agent_loops.MODULES,
}
"""Contents of each module."""
