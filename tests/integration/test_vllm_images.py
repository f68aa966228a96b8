"""vLLM is shown images, in processes of its own (`vllm_images.py`)."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from engine_processes import run_together
from made_once import made_once
from tiers import first_in_test

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

FILMED = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"]
FAMILIES = [*FILMED, "glm4v", "glm4v_moe", "internvl", "mistral3", "gemma3", "smolvlm"]
FAMILIES += ["gemma4", "gemma4_unified", "gemma4_told"]
SHORT = ("qwen2_5_vl", "qwen3_vl", "internvl", "gemma4_told")
"""Families of `make test`, which differ most in what they do with images."""
BRIEFLY = ("lfm2_vl", "glm_ocr", "lighton_ocr", "llava", "llava_next", "llava_onevision")
BRIEFLY += ("llava_lines", "aya_vision", "ovis2")
"""Families of which less is asked."""
SCRIPT = Path(tiny_models.__file__).with_name("vllm_images.py")
LARGEST = 1e-5
"""Difference of a log-probability in float32."""
OF_TOLD = 5e-5
"""The same where layers are told of tokens, which makes rounding larger: on text it is as large."""

Facts = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models, and what was found of them: of all where a `long` test is selected."""
    asked = [item for item in request.session.items if item.path == request.path]
    is_whole = any(item.get_closest_marker("long") for item in asked)
    names = [] if is_whole else [*SHORT, BRIEFLY[0]]
    return made_once(
        tmp_path_factory, "seeing", lambda folder: run_together(SCRIPT, folder, folder, [names])
    )


@pytest.fixture(scope="module")
def facts(folder: Path) -> Facts:
    return json.loads((folder / "facts-0.json").read_text())


@pytest.mark.parametrize("family", first_in_test(FAMILIES, *SHORT))
@pytest.mark.parametrize("moment", ["first", "later", "update", "squeezed"])
def test_logprobs_are_those_of_the_whole_model(facts: Facts, family: str, moment: str) -> None:
    """Of several sizes; of later turns with one more; after new weights; of rows begun again."""
    assert facts[family][moment] < (OF_TOLD if family == "gemma4_told" else LARGEST)
    assert facts[family]["another image"] > 0.1
    assert facts[family]["restarted"] > 0


@pytest.mark.parametrize("family", first_in_test(BRIEFLY))
def test_families_with_parts_of_others_say_what_the_whole_model_does(facts: Facts, family: str):
    """LFM2-VL, whose layers have states, so that each sample computes its prompt; and others."""
    found = facts[family]
    assert max(found[moment] for moment in ("first", "later", "update")) < LARGEST
    assert found["prompts"]
    assert found["restarted row"]


@pytest.mark.parametrize("family", first_in_test(FAMILIES, *SHORT))
def test_prompts_have_the_tokens_and_positions_that_they_were_given(facts: Facts, family: str):
    assert facts[family]["prompts"]
    assert facts[family]["restarted row"]
    assert min(facts[family]["cached turns"][6:]) >= 32  # of what was said before


@pytest.mark.parametrize("family", first_in_test(FAMILIES, *SHORT))
def test_a_prompt_is_computed_once_for_its_samples_and_no_other_image(facts: Facts, family: str):
    """Prompts 2 and 3 have the same tokens; of long ones the first of three samples computes."""
    cached, blocks = facts[family]["cached"], facts[family]["blocks"]
    for prompt in ("2", "3", "4", "5"):
        whole = blocks[f"{prompt}/0"]
        first, *others = sorted(cached[f"{prompt}/{sample}"] for sample in range(3))
        assert others == [whole, whole] != [first, first]


@pytest.mark.parametrize("family", first_in_test(FAMILIES, *SHORT))
def test_the_same_requests_again_give_the_same_bits(facts: Facts, family: str) -> None:
    """Whatever was seen in between, and after a sleep and other weights.

    Each phase shows the tower its four images anew, an image once: in another company the last
    bits of what it says may be others.
    """
    assert facts[family]["again"]
    assert facts[family]["shown"] == 4
    assert facts[family]["shown in four phases"] == 16
    assert facts[family]["back"]


@pytest.mark.parametrize("family", first_in_test(FILMED, *SHORT))
def test_videos_are_said_to_be_what_the_whole_model_says(facts: Facts, family: str) -> None:
    assert facts[family]["videos"] < LARGEST
    assert facts[family]["positions of videos"]
    assert facts[family]["other frames"]


@pytest.mark.long
def test_neighbours_share_an_engine_that_sees(folder: Path, tmp_path: Path) -> None:
    store = ["--store", str(tmp_path / "store")]
    commands = [["--rank", str(rank), *store] for rank in range(2)]
    first, second = run_together(SCRIPT, folder, tmp_path, commands)
    assert first == second
    for family, found in first.items():
        largest = max(found[moment] for moment in ("first", "later", "update"))
        assert largest < (OF_TOLD if family == "gemma4_told" else LARGEST)
    whole = first["qwen2_vl"]
    assert whole["squeezed"] < LARGEST
    assert whole["again"]
    assert whole["back"]
