import pytest

from ppojob_trainer.models.architectures import Sizes
from ppojob_trainer.rows.assignment import group_costs, linear_cost
from ppojob_trainer.rows.batch_index import BatchIndex


def sizes(**changed: object) -> Sizes:
    plain = {
        "model_type": "llama",
        "vocabulary": 0,
        "hidden": 4096,
        "inner": 8 * 4096 // 3,
        "layers": 32,
        "heads": 32,
        "key_heads": 32,
        "head_size": 128,
        "is_tied": False,
        "biased": frozenset(),
    }
    return Sizes(**{**plain, **changed})


def test_the_linear_cost_is_verls_for_its_model_and_grows_by_the_output_layer():
    assert linear_cost(sizes()) == pytest.approx(24576, rel=1e-3)
    layers, vocabulary = 32, 32000
    more = linear_cost(sizes(vocabulary=vocabulary)) - linear_cost(sizes())
    assert more == pytest.approx(vocabulary / (2 * layers), abs=1)


def literal_cost(prompt: int, lengths: tuple[int, ...], *, share: bool) -> int:
    """Pair by pair: a token costs 10, and each position it is multiplied with costs 1."""
    total = 0
    for row, length in enumerate(lengths):
        for token in range(prompt + length):
            if token < prompt and share and row > 0:
                continue
            total += 10
        whole = (prompt + length) ** 2
        total += whole - prompt**2 if share and row > 0 else whole
    return total


@pytest.mark.parametrize("share", [True, False])
def test_a_group_costs_what_its_tokens_and_pairs_cost(share):
    index = BatchIndex((7, 3), (2, 0, 5, 1, 1, 4), 3, (0, 0))
    expected = [literal_cost(7, (2, 0, 5), share=share), literal_cost(3, (1, 1, 4), share=share)]
    assert group_costs(index, 10, share_prompts=share) == expected
