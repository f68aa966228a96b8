"""vLLM's own models of the families that differ most from llama say what transformers says."""

import json
from pathlib import Path

import pytest
import tiny_models
from engine_processes import run_together
from family_models import is_half_in_vllm
from made_once import made_once
from tiers import first_in_test

from ppojob_trainer.models.families import FAMILIES, MULTIMODAL
from ppojob_trainer.models.layout_checks import NOT_IN_VLLM

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = Path(tiny_models.__file__).with_name("vllm_family.py")
OLD = ("llama", "qwen2", "qwen3", "qwen3_moe", *NOT_IN_VLLM)
NEW = [name for name in FAMILIES if name not in OLD]
NEW += [*MULTIMODAL, "ernie4_5_moe of 300B", "gemma4_text of 26B"]
DEALT = ("deepseek_v3", "gpt_oss", "granitemoehybrid")
"""Mixtures whose experts vLLM reads or computes otherwise than Qwen3's."""
SHORT = (
    *("gemma3_text", "gemma4_text", "qwen3_5_text", "nemotron_h", "lfm2", "cohere2", "phi3"),
    *("deepseek_v3", "gpt_oss", "granitemoehybrid", "glm4_moe", "olmo3", "qwen3_vl"),
    *("falcon_h1", "llama4_text", "mistral4"),
)
"""Families of `make test`, which vLLM computes most unlike others."""
Differences = dict[str, float | str]


@pytest.fixture(scope="module")
def found(request, tmp_path_factory) -> list[Differences]:
    """The largest difference of each family, or what went wrong: of one rank, and of two."""
    items = [item for item in request.session.items if item.path == request.path]
    asked = {item.callspec.params["family"] for item in items}

    def make(folder: Path) -> None:
        dealt = [name for name in DEALT if name in asked]
        ranks = [[*dealt, "--rank", str(n), "--store", str(folder / "store")] for n in range(2)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VLLM_CACHE_ROOT", str(folder / "cache"))
            families = [name for name in NEW if name in asked]
            found = run_together(SCRIPT, folder, folder, [families, *ranks[: 2 * bool(dealt)]])
        # What vLLM keeps of a class that it has another process look at.
        assert not (folder / "cache" / "modelinfos").exists()
        (folder / "found.json").write_text(json.dumps(found))

    made = made_once(tmp_path_factory, "families", make)
    return json.loads((made / "found.json").read_text())


@pytest.mark.parametrize("family", first_in_test(NEW, *SHORT))
def test_logprobs_are_those_of_transformers(family: str, found: list[Differences]) -> None:
    difference = found[0][family]
    assert isinstance(difference, float), difference
    # In bfloat16 that of transformers itself is 0.02, and 0.07 where experts part.
    is_half = family in FAMILIES and is_half_in_vllm(family)
    assert difference < (0.1 if is_half else 1e-4)


@pytest.mark.parametrize("family", DEALT)
def test_ranks_with_whole_experts_say_the_same(family: str, found: list[Differences]) -> None:
    _, first, second = found
    assert first[family] == second[family] < 1e-4
