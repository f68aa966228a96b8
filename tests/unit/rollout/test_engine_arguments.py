import sys

import pytest
from pydantic import TypeAdapter, ValidationError

from ppojob_api.problem import ReasonCode
from ppojob_trainer.rollout.engine_arguments import check_arguments, names, refusal

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


def test_settings_that_vllm_refuses_are_one_line_and_other_errors_are_not_theirs() -> None:
    room = "(4064), (0.17 GiB KV cache is needed, which is larger than 0.05 GiB). Based on the"
    refused = refusal(ValueError(f"with the model's max seq len {room} memory. Try"))
    assert refused is not None
    (line,) = refused.problems
    assert line.startswith("spec.rollout: got engine: vllm: with the model's max seq len (4064), ")
    assert "than 0.05 GiB); more by kvCacheGib or " in line
    with pytest.raises(ValidationError) as wrong:
        TypeAdapter(tuple[int, int]).validate_python(("a", "b"))
    assert str(refusal(wrong.value)).count("should be a valid integer") == 2
    assert refusal(ValueError("Free memory on device (1/139 GiB) is less than desired")) is None
