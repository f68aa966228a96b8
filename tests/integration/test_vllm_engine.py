"""The real vLLM, in processes of its own (`vllm_facts.py`): what it promises, measured there."""

import json
from pathlib import Path
from typing import Any

import pytest
from engine_processes import run_together
from made_once import made_once
from tiny_models import FOR_ENGINES, MIXTURE, save_model
from transformers import Qwen3MoeForCausalLM

from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.layout_checks import NO_FLOAT16_IN_VLLM

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1_200)]

SCRIPT = Path(__file__).with_name("vllm_facts.py")
VARIANTS = ["tied float32", "tied bfloat16", "untied float32", "untied bfloat16"]
# Largest and mean |log-probability of vLLM - of a float32 forward|.
LIMITS = {"float32": (1e-5, 1e-6), "bfloat16": (1e-1, 1e-2)}

Facts = dict[str, Any]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for kind in ("tied", "untied", "one key head"):
        heads = {"num_key_value_heads": 1 if kind == "one key head" else 2}
        sizes = {**FOR_ENGINES, **heads, "tie_word_embeddings": kind == "tied"}
        save_model(folder / kind, seed=len(kind), **sizes)
    sizes = {**FOR_ENGINES, **MIXTURE, "head_dim": 32, "moe_intermediate_size": 64}
    save_model(folder / "mixture", Qwen3MoeForCausalLM, **sizes)
    return folder


@pytest.fixture(scope="module")
def found(models: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Facts]:
    """What is found of engines of one process, of four ranks, and of two."""

    def make(folder: Path) -> None:
        worlds = [
            ["--rank", str(rank), "--ranks", str(count), "--store", str(folder / f"store-{count}")]
            for count in (4, 2)
            for rank in range(count)
        ]
        run_together(SCRIPT, models, folder, [[], *worlds])

    made = made_once(tmp_path_factory, "facts", make)
    return [json.loads((made / f"facts-{n}.json").read_text()) for n in range(7)]


@pytest.fixture(scope="module")
def facts(found: list[Facts]) -> Facts:
    return found[0]


@pytest.fixture(scope="module")
def ranks(found: list[Facts]) -> list[Facts]:
    """What each rank of a world finds, with an engine of its own, and with a neighbour's."""
    return found[1:5]


@pytest.fixture(scope="module")
def behaviour(facts: Facts) -> Facts:
    return facts["behaviour"]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("moment", ["start", "update 1", "update 2", "update 3"])
def test_logprobs_are_those_of_the_trainer(facts: Facts, variant: str, moment: str) -> None:
    largest, mean = LIMITS[variant.split()[1]]
    found = facts[variant][moment]
    assert found["tokens"] >= 99
    assert found["max"] <= largest
    assert found["mean"] <= mean


@pytest.mark.parametrize("variant", VARIANTS)
def test_synchronised_weights_equal_a_fresh_engine_bit_by_bit(facts: Facts, variant: str) -> None:
    assert facts[variant]["first equal"]
    assert facts[variant]["fresh equal"]
    assert facts[variant]["versions"] == [3]


@pytest.mark.parametrize("dtype", LIMITS)
def test_merged_adapters_are_those_of_the_trainer(facts: Facts, dtype: str) -> None:
    found, (largest, mean) = facts["adapters"][dtype], LIMITS[dtype]
    assert found["trainer"]["max"] <= largest
    assert found["trainer"]["mean"] <= mean
    assert found["base"]["max"] > 10 * largest


@pytest.mark.parametrize("dtype", LIMITS)
def test_adapters_beside_weights_are_those_of_the_trainer(facts: Facts, dtype: str) -> None:
    found, (largest, mean) = facts["adapters beside"][dtype], LIMITS[dtype]
    for moment in ("first", "update"):
        assert found[moment]["max"] <= largest
        assert found[moment]["mean"] <= mean
    assert found["all again"]
    assert not found["aliased"]


def test_bfloat16_does_not_round_away_small_adapters_beside_it(facts: Facts) -> None:
    found = facts["small adapters"]
    assert found["merged"] == 0.0
    assert found["beside"] == pytest.approx(1.0, abs=0.3)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_engine_keeps_no_hold_of_the_trainers_memory(facts: Facts, variant: str) -> None:
    assert not facts[variant]["aliased"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_requests_again_give_the_same_bits(facts: Facts, variant: str) -> None:
    assert facts[variant]["again"]


def test_ranks_each_hold_an_engine_inside_the_world_of_their_role(facts, ranks) -> None:
    """With other global seeds, and the same bits."""
    for rank in ranks:
        assert rank["float32"] == facts["tied float32"]["rows"]
        assert rank["bfloat16"] == facts["tied bfloat16"]["rows"]
        assert rank["sum over the world"] == 4.0
        assert rank["world after close"]
    assert not facts["world after close"]


def test_the_process_stays_as_it_was(facts: Facts, behaviour: Facts) -> None:
    assert behaviour["marks of start"] == []
    assert behaviour["marks of generate"] == []
    for variant in VARIANTS:
        assert facts[variant]["marks of load_weights"] == []


def test_a_prompt_is_prefilled_once_for_all_its_samples(behaviour: Facts) -> None:
    """64 of 70 tokens are whole blocks: the first of 8 samples computes, 7 find them."""
    assert behaviour["cached"] == [0] * 8 + [64] * 56
    assert behaviour["distinct"] == 64


def test_abort_keeps_what_was_drawn_and_spares_the_others(behaviour: Facts) -> None:
    aborted = behaviour["aborted"]
    assert (aborted["request_id"], aborted["finish_reason"]) == ("1", "abort")
    assert aborted["tokens"] == behaviour["unaborted prefix"]
    assert len(aborted["logprobs"]) == 5
    assert behaviour["spared"]


def test_a_text_ends_a_response_with_the_token_that_completes_it(behaviour: Facts) -> None:
    found, pair = behaviour["by texts"], behaviour["by texts"]["pair"]
    assert found["cut"][0][2] == "stop"
    assert len(found["cut"][0][0]) <= 4
    for (whole, _, reason), (tokens, logprobs, end) in zip(
        found["whole"], found["cut"], strict=True
    ):
        ends = [n + 2 for n in range(len(whole)) if whole[n : n + 2] == pair]
        assert tokens == whole[: min(ends, default=len(whole))]
        assert len(logprobs) == len(tokens)
        assert end == ("stop" if ends else reason)
    # Also where no further token was allowed.
    assert found["at the limit"][0][2] == "stop"


def test_what_does_not_fit_the_state_is_refused(behaviour: Facts) -> None:
    load, reset, generate, submit = behaviour["busy"]
    assert load == "RolloutError: load_weights: requests are in flight; finish or abort them first"
    assert reset.startswith("RolloutError: reset_cache: requests are in flight")
    assert generate.startswith("RolloutError: generate: the engine still holds requests")
    assert submit == "ValueError: request '0': the id is already in use"
    assert behaviour["born"] == "RolloutError: submit '0/0': the engine is asleep"
    assert behaviour["asleep"] == "RolloutError: submit '0': the engine is asleep"
    assert behaviour["awake"]


def test_requests_that_do_not_fit_are_refused(behaviour: Facts) -> None:
    token, length = behaviour["refused"]
    assert "got token 512: not in the model's vocabulary; allowed 0 to 511" in token
    assert "got 128 prompt tokens and up to 20 response tokens" in length


def test_a_model_without_numbers_is_named_by_its_request(behaviour: Facts) -> None:
    assert behaviour["no numbers"].startswith("RolloutError: request '0': got NaN for the prob")
    assert "weights of version 7" in behaviour["no numbers"]


def test_a_vllm_for_another_device_is_refused_in_a_line(facts: Facts) -> None:
    found = facts["other device"]
    assert found.startswith("ConfigError: spec.roles: got ranks that generate on cud")
    assert found.endswith("computes on cpu; the packages of requirements/cuda.txt")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_step_has_a_token_for_every_sequence(facts: Facts, device: str) -> None:
    tokens, sequences = facts["limits"][device]
    assert tokens >= sequences == 9000


def test_limits_of_tokens_and_memory_are_those_that_were_asked_for(facts: Facts) -> None:
    # The last one says that experts are told.
    assert facts["limits"]["cuda as asked"] == [96, 0.3, True, 3, True]
    # A prompt is computed whole there, and the longest has 128 tokens.
    assert facts["limits"]["cpu as asked"][0] == 128


def test_models_that_vllm_does_not_compute_in_float16_are_known(facts: Facts) -> None:
    # GLM-4.1V is GLM-4 to vLLM.
    refused = set(facts["without float16"]) & FAMILIES.keys()
    assert refused | {"glm4v", "glm_ocr"} == NO_FLOAT16_IN_VLLM


def test_weights_that_do_not_fit_end_the_engine(behaviour: Facts) -> None:
    missing = "load_weights: 1 tensors missing, first model.norm.weight"
    assert behaviour["missing"] == f"RolloutError: {missing}"
    assert behaviour["unusable"].endswith("the engine cannot be used: loading weights failed")
    assert "got 'model.nothing.weight': the model has no such tensor" in behaviour["unknown"]


def test_more_prompts_than_one_step_prefills_and_than_the_cache_holds(facts: Facts) -> None:
    pressure = facts["pressure"]
    assert pressure["many"]["max"] <= LIMITS["float32"][0]
    assert pressure["squeezed"]["max"] <= LIMITS["float32"][0]
    assert pressure["same tokens"] == pressure["rows"]


def test_neighbours_share_an_engine(ranks: list[Facts], found: list[Facts]) -> None:
    """Two engines of two ranks in one world draw what one rank draws, and all ranks the same."""
    first, *others = ranks
    assert all(facts == first for facts in others)
    assert found[5] == found[6]
    first = first | found[5]
    for kind in ("cut experts", "dealt experts"):
        same, total = first[kind]["experts of a forward pass"]
        assert same == total > 24 * 40
    for kind in ("tied", "one key head", "cut experts", "dealt experts", "adapters"):
        of_kind, (largest, mean) = first[kind], LIMITS["float32"]
        assert of_kind["tokens"] >= 99
        assert of_kind["max"] <= largest
        assert of_kind["mean"] <= mean
        assert of_kind["again"]
