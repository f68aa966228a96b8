import pytest
import torch

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec, LossAggregation
from ppojob_api.v1alpha1.training import CriticSpec
from ppojob_trainer.engine.objective import Aggregation, Denominators
from ppojob_trainer.engine.value_objective import ValueObjective

MODES = LossAggregation.__args__


def with_values(rows):
    noise = torch.randn(3, rows.num_tokens, generator=torch.Generator().manual_seed(3))
    rows.values, rows.returns = noise[0], noise[1]
    return rows, (noise[0] + noise[2]).requires_grad_()


def test_a_hand_computed_case(make_rows):
    rows, values = with_values(make_rows())
    rows.mask[:] = False
    rows.mask[:3] = True
    rows.values[:3] = torch.tensor([1.0, 1.0, 1.0])
    rows.returns[:3] = torch.tensor([2.0, 2.0, 0.0])
    values = torch.full((rows.num_tokens,), float("nan"))
    values[:3] = torch.tensor([1.25, 1.75, 2.0])
    parts = ValueObjective(0.5, Aggregation("token_mean"))(
        (values.requires_grad_(),), rows, Denominators.of(rows)
    )
    # (0.75^2 + 0.5^2 + 2^2) / 2 / 3: inside the clip, held by it, far from the return
    assert parts.loss.item() == pytest.approx(4.8125 / 6)
    assert parts.terms == {"critic/vf_loss": parts.loss.item()}
    assert parts.token_sums == {"critic/vf_clipfrac": 1.0, "critic/vpred_mean": 5.0}
    assert parts.tokens == 3
    (gradient,) = torch.autograd.grad(parts.loss, values)
    assert gradient[:3].tolist() == pytest.approx([-0.25, 0.0, 2 / 3])
    assert not gradient[3:].any()


@pytest.mark.parametrize("mode", MODES)
def test_parts_add_up_to_the_mini_batch(make_rows, parts_add_up, mode):
    rows, values = with_values(make_rows(groups=4))
    parts_add_up(ValueObjective(0.5, Aggregation(mode, 9)), (values,), rows)


def test_rows_without_trained_tokens_have_no_gradient(make_rows):
    rows, _ = with_values(make_rows())
    rows.mask[:] = True
    rows.mask[rows.token_index(torch.tensor([2, 8]))] = False
    rows.advantages[:] = 0.0
    objective = ValueObjective(0.5, Aggregation("token_mean"))
    assert objective.rows_with_gradient(rows).tolist() == [0, 1, 3, 4, 5, 6, 7]


def test_it_is_what_the_job_asks_for():
    algorithm = AlgorithmSpec(
        type="ppo",
        prompts_per_step=4,
        samples_per_prompt=1,
        loss_aggregation="sequence_mean_token_sum_norm",
    )
    objective = ValueObjective.of(CriticSpec(value_clip=0.2), algorithm, max_response_tokens=32)
    assert objective == ValueObjective(0.2, Aggregation("sequence_mean_token_sum_norm", 32))
    assert objective.area == "critic"
