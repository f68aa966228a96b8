"""A tool as verl's users write one; it has to load unchanged, with verl installed or not."""

from typing import Any
from uuid import uuid4

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.utils.rollout_trace import rollout_trace_op


class Guess(BaseTool):
    """Says whether a guess is right."""

    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self._truths: dict[str, Any] = {}

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        return self.tool_schema

    async def create(self, instance_id: str | None = None, ground_truth: Any = None, **kwargs):
        instance_id = instance_id or str(uuid4())
        if ground_truth is None:
            ground_truth = kwargs.get("create_kwargs", {}).get("ground_truth")
        self._truths[instance_id] = ground_truth
        return instance_id, ToolResponse()

    @rollout_trace_op
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs):
        reward = await self.calc_reward(instance_id, guess=parameters["guess"])
        if parameters["guess"] == "fail":
            raise ValueError("no such guess")
        text = f"{self.name} {self.config['step']} {len(self._truths)} {reward}"
        return ToolResponse(text=text), reward, {"calls": 1}

    async def calc_reward(self, instance_id: str, **kwargs) -> float:
        return 1.0 if kwargs["guess"] == self._truths[instance_id] else 0.0

    async def release(self, instance_id: str, **kwargs) -> None:
        del self._truths[instance_id]
