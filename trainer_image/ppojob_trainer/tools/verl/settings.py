"""Settings of a job by verl's names, for agent loops."""

from collections.abc import Mapping
from typing import Any

from ppojob_api.run_config import RunConfig
from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.tools.wire import LoopSettings


def loop_settings(config: RunConfig, agents: Mapping[str, AgentSpec]) -> LoopSettings:
    """Return what agent loops read of a job; `agents` are all of the job, by name."""
    model = config.spec.model
    settings = {
        name: _settings(config, agent) for name, agent in agents.items() if agent.agent_loops
    }
    return LoopSettings(model.path, model.tokenizer_path, model.chat_template, settings)


def _settings(config: RunConfig, agent: AgentSpec) -> dict[str, Any]:
    spec = config.spec
    return {
        "data": {
            "max_prompt_length": spec.data.max_prompt_tokens,
            "max_response_length": spec.data.max_response_tokens,
            "apply_chat_template_kwargs": dict(spec.data.apply_chat_template_kwargs),
            "tool_config_path": None,
        },
        "actor_rollout_ref": {"model": {"path": spec.model.path}, "rollout": _rollout(spec, agent)},
        "trainer": {"experiment_name": config.name},
    }


def _rollout(spec: PPOJobSpec, agent: AgentSpec) -> dict[str, Any]:
    drawn, data = spec.rollout, spec.data
    return {
        "name": drawn.engine,
        "mode": "async",
        "prompt_length": data.max_prompt_tokens,
        "response_length": data.max_response_tokens,
        "max_model_len": data.max_prompt_tokens + data.max_response_tokens,
        "temperature": drawn.temperature,
        "top_p": drawn.top_p,
        "top_k": drawn.top_k,
        "calculate_log_probs": False,
        "n": spec.algorithm.samples_per_prompt,
        "multi_turn": {
            "enable": True,
            "max_assistant_turns": agent.max_assistant_turns,
            "max_user_turns": agent.max_user_turns,
            "max_parallel_calls": agent.max_parallel_calls,
            "max_tool_response_length": agent.max_tool_response_characters,
            "tool_response_truncate_side": agent.tool_response_truncate_side,
            "format": agent.format,
            "tool_config_path": None,
            "interaction_config_path": None,
            "function_tool_path": None,
        },
        "agent": {"num_workers": spec.roles.tools.cpu, "default_agent_loop": agent.default},
    }
