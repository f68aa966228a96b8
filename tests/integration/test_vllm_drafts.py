"""Drafts change no draw, in the real vLLM, in processes of its own (`vllm_draft_facts.py`)."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from engine_processes import run_together
from made_once import made_once
from tiny_models import FOR_ENGINES, MIXTURE, save_model
from transformers import Qwen3MoeForCausalLM

pytestmark = [pytest.mark.long, pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("vllm_draft_facts.py")
ENGINES = ["float32", "bfloat16", "squeezed", "adapters", "experts"]

Facts = dict[str, Any]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Facts]:
    """What one engine after the other draws, and what two ranks of one do."""

    def make(folder: Path) -> None:
        models = folder / "models"
        save_model(models / "tied", seed=4, **FOR_ENGINES, tie_word_embeddings=True)
        sizes = {**FOR_ENGINES, **MIXTURE, "head_dim": 32, "moe_intermediate_size": 64}
        save_model(models / "mixture", Qwen3MoeForCausalLM, **sizes)
        ranks = [["--rank", str(n), "--store", str(folder / "store")] for n in range(2)]
        run_together(SCRIPT, models, folder, [[], *ranks])

    made = made_once(tmp_path_factory, "drafts", make)
    return [json.loads((made / f"facts-{n}.json").read_text()) for n in range(3)]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_tokens_with_the_same_bits(engine: str, found: list[Facts]) -> None:
    """Tokens, log-probabilities, ends and experts, however rows are drawn."""
    facts = found[0][engine]
    assert facts["with"] == facts["without"]
    told = facts["counts with"]
    assert told["guesses"] > told["kept"] > 100
    drawn = sum(len(tokens) for tokens, *_ in facts["with"])
    assert told["passes"] + told["kept"] >= drawn
    assert "passes" not in facts["counts without"]


def test_what_an_engine_counts(found: list[Facts]) -> None:
    """Rows run together where there is room; in a small cache they wait, and give way."""
    roomy, tight = (found[0][engine]["counts without"] for engine in ("float32", "squeezed"))
    drawn = sum(len(tokens) for tokens, *_ in found[0]["float32"]["without"])
    assert roomy["rows"] == tight["rows"] == len(found[0]["float32"]["without"])
    # A row is no longer running behind the step in which it ends.
    assert roomy["running"] == drawn - roomy["rows"]
    assert "preempted" not in roomy
    assert roomy["waiting"] == 0 < roomy["used"] < roomy["blocks"]
    # The rows of a prompt share its whole blocks.
    assert 0.3 < roomy["found"] / roomy["looked_up"] < 1
    assert tight["preempted"] > 0
    assert tight["waiting"] > 0
    assert tight["steps"] > roomy["steps"]
    assert 0.5 < tight["used"] / tight["blocks"] < 1


@pytest.mark.parametrize("engine", ["float32", "bfloat16", "squeezed"])
def test_no_draw_hangs_on_the_company(engine: str, found: list[Facts]) -> None:
    facts = found[0][engine]
    assert facts["alone with"] == facts["alone without"]
    assert facts["again with"] == facts["with"]
    tokens = [row[0] for row in facts["with"]]
    assert [row[0] for row in facts["alone with"]] == tokens[: len(facts["alone with"])]


def test_rows_of_a_form_have_it(found: list[Facts]) -> None:
    """And the log-probabilities of a forward, normalised over the tokens that the form allows."""
    facts = found[0]["of a form"]
    ended = [text for text, end in zip(facts["texts"], facts["ends"], strict=True) if end == "stop"]
    assert len(set(ended)) > 1
    assert all(re.fullmatch(facts["form"], text) for text in ended)
    assert facts["off"] < 1e-5


def test_more_rows_than_may_have_guesses_have_none(found: list[Facts]) -> None:
    few, many = found[0]["in company"]["guesses"]
    assert few > 50
    assert many == 0


def test_rows_that_have_guesses_once_others_have_ended_draw_the_same(found: list[Facts]) -> None:
    facts = found[0]["in company"]
    told = facts["counts"]
    everywhere = found[0]["float32"]["counts with"]
    assert everywhere["guesses"] > told["guesses"] > told["kept"] > 10
    whole = [row[0] for row in found[0]["float32"]["without"]]
    assert facts["tokens"] == [
        tokens[: len(own)] for tokens, own in zip(whole, facts["tokens"], strict=True)
    ]
    assert sum(map(len, facts["tokens"])) < sum(map(len, whole))


def test_a_text_ends_a_row_within_a_pass(found: list[Facts]) -> None:
    facts = found[0]["ended"]
    assert facts["whole with"] == facts["whole without"]
    assert facts["by texts with"] == facts["by texts without"]
    ends = [row[2] for row in facts["by texts with"]]
    assert ends.count("stop") > [row[2] for row in facts["whole with"]].count("stop")


def test_a_row_that_is_taken_out_keeps_what_it_drew(found: list[Facts]) -> None:
    facts = found[0]["ended"]
    tokens, logprobs, reason = facts["aborted with"]
    whole = facts["whole with"][2]
    assert reason == "abort"
    assert 3 < len(tokens) == len(logprobs) < len(whole[0])
    assert (tokens, logprobs) == (whole[0][: len(tokens)], whole[1][: len(tokens)])
    assert facts["spared with"] == facts["spared without"]


def test_ranks_of_an_engine_draft_the_same(found: list[Facts]) -> None:
    alone, first, second = found
    assert first == second
    assert first["with"] == first["without"]
    assert first["counts with"]["kept"] > 100
    assert [row[0] for row in first["with"]] == [row[0] for row in alone["float32"]["with"]]
