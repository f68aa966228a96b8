import sys

import pytest

from ppojob_api.problem import ReasonCode
from ppojob_trainer.rollout.engine_arguments import check_arguments, names

WRONG = {
    "max_model_len": (ReasonCode.CONFLICT, "spec.rollout.maxModelTokens in its place"),
    "aux_output_config": (ReasonCode.CONFLICT, "spec.algorithm.routerReplay in its place"),
    "logprobs_mode": (ReasonCode.CONFLICT, "remove it"),
    "quantization": (ReasonCode.NOT_IN_THIS_VERSION, "remove it"),
    "speculative_config": (ReasonCode.NOT_IN_THIS_VERSION, "remove it"),
    "hf_token": (ReasonCode.CONFLICT, "HF_TOKEN in spec.pods[].env in its place"),
    "stream_intervall": (ReasonCode.UNKNOWN_FIELD, "write stream_interval"),
    "zzz": (ReasonCode.UNKNOWN_FIELD, "a field of vLLM's EngineArgs"),
}


@pytest.mark.parametrize(("name", "told"), WRONG.items())
def test_a_name_that_is_not_to_be_had_is_told_with_what_to_write(name, told) -> None:
    (problem,) = check_arguments({name: 1})
    assert (problem.reason_code, problem.allowed) == told
    assert problem.where == f"spec.rollout.engineArguments.{name}"


def test_names_are_those_of_the_installed_vllm() -> None:
    assert list(check_arguments({"compilation_config": {}, "async_scheduling": False})) == []
    assert {"model", "seed", "stream_interval"} <= names()
    assert "vllm" not in sys.modules
