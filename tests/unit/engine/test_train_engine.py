import pytest
import torch
from padded_reference import gradients, padded_logprobs, relative_difference

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec, KlSpec
from ppojob_api.v1alpha1.policy_loss import FlowrlSpec, PolicyLossSpec
from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.engine.loss_scale import LossScale
from ppojob_trainer.engine.optimizer import learning_rate
from ppojob_trainer.engine.policy_objective import PolicyObjective
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.metrics.pass_statistics import step_statistics
from ppojob_trainer.models import log_partition

OPTIMIZER = OptimizerSpec(learning_rate=1e-2, weight_decay=0.1, gradient_clip=0.5)
TOTAL = 10


def objective(**options) -> PolicyObjective:
    return PolicyObjective.of(
        AlgorithmSpec(type="grpo", prompts_per_step=3, samples_per_prompt=3, **options)
    )


def build(model, *, optimizer=OPTIMIZER, temperature=1.0, **training) -> TrainEngine:
    spec = TrainingSpec(**{"autocast": "none", "logprob_chunk_tokens": 8, **training})
    head = PolicyHead(LogprobSettings(temperature, spec.logprob_chunk_tokens, "gradient"))
    return TrainEngine(model, head, spec, optimizer, TOTAL)


def weights(model) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def gradient(model, rows, goal, **training) -> dict[str, torch.Tensor]:
    build(model, optimizer=OptimizerSpec(gradient_clip=0.0), **training).update(rows, goal)
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def test_logprobs_equal_the_padded_forward_in_row_order(make_model, make_rows):
    model, rows = make_model(), make_rows(groups=4)
    got = build(model, micro_batch_tokens=20, temperature=0.9).predict(rows)
    expected = padded_logprobs(model, rows, temperature=0.9)
    for ours, theirs in zip(got, expected, strict=True):
        assert not ours.requires_grad
        torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_updates_equal_adamw_stepped_by_hand(make_model, make_rows, tied):
    schedule = {"warmup_steps": 2, "schedule": "cosine"}
    optimizer = OPTIMIZER.model_copy(update=schedule)
    ours, theirs = make_model(tied=tied), make_model(tied=tied)
    engine = build(ours, optimizer=optimizer)
    goal = objective()
    by_hand = torch.optim.AdamW(theirs.parameters(), lr=1.0, weight_decay=0.1, foreach=False)
    for step in range(4):
        rows = make_rows(seed=step)
        stats = step_statistics([engine.update(rows, goal)])
        logprobs, entropy = padded_logprobs(theirs, rows)
        loss = -((logprobs - logprobs.detach()).exp() * rows.advantages)[rows.mask].mean()
        by_hand.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        by_hand.param_groups[0]["lr"] = learning_rate(optimizer, step, TOTAL)
        by_hand.step()
        assert stats["actor/grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
        assert stats["actor/lr"] == learning_rate(optimizer, step, TOTAL)
        assert stats["actor/pg_loss"] == pytest.approx(loss.item(), rel=1e-4)
        mean_entropy = entropy[rows.mask].mean().item()
        assert stats["actor/entropy"] == pytest.approx(mean_entropy, rel=1e-4)
        assert stats["actor/skipped"] == 0.0
    assert relative_difference(weights(ours), weights(theirs)) < 1e-4


@pytest.mark.parametrize(
    "training",
    [
        {"micro_batch_tokens": 1},
        {"micro_batch_tokens": 25},
        {"share_prompts": False, "micro_batch_tokens": 40},
        {"activation_checkpointing": True},
        {"mlp_tile_tokens": 4},
        {"mlp_tile_tokens": 4, "activation_checkpointing": True},
        {"logprob_chunk_tokens": 0},
        {"skip_zero_gradient_groups": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("loss", ["clip", "trajectory_balance", "flowrl"])
def test_how_it_is_computed_changes_no_gradient(make_model, make_rows, training, loss):
    rows = make_rows(groups=4, old=True)
    rows.advantages[rows.token_index(torch.arange(3, 6))] = 0.0
    chosen = PolicyLossSpec(type=loss)
    goal = objective(loss_aggregation="sequence_mean_token_mean", policy_loss=chosen)
    models = [make_model() for _ in range(2)]
    if loss == "flowrl":
        models = [with_partition(one) for one in models]
    expected = gradient(models[0], rows, goal)
    assert relative_difference(gradient(models[1], rows, goal, **training), expected) < 1e-5


def with_partition(model):
    """With a network for log Z, of which nothing is 0."""
    log_partition.add_log_partition(model)
    log_partition.draw_log_partition(model, seed=0)
    with torch.no_grad():
        for weight in log_partition.log_partition_of(model).parameters():
            weight.add_(0.1 * torch.rand(weight.shape, generator=torch.Generator().manual_seed(1)))
    return model


def test_a_partition_is_learnt_from_the_mean_state_of_the_prompt(make_model, make_rows):
    """Against transformers' model and torch's layers, row by row."""
    rows = make_rows(groups=4)
    rows.mask[:] = True
    options = {"beta": 0.7, "ratio_limit": 10.0}
    chosen = PolicyLossSpec(type="flowrl", flowrl=FlowrlSpec(**options))
    goal = objective(loss_aggregation="sequence_mean_token_mean", policy_loss=chosen)
    ours, theirs = (with_partition(make_model()) for _ in range(2))
    got = gradient(ours, rows, goal)

    network = log_partition.log_partition_of(theirs)
    layers = zip(network.inner, network.norms, strict=True)
    inner = [part for layer, norm in layers for part in (layer, torch.nn.GELU(), norm)]
    by_hand = torch.nn.Sequential(*inner, network.output)
    logprobs, _ = padded_logprobs(theirs, rows)
    columns = (logprobs, rows.ref_logprobs, rows.advantages)
    losses = []
    for group, *own in zip(
        rows.row_groups.tolist(),
        *(torch.split(column, rows.lengths.tolist()) for column in columns),
        strict=True,
    ):
        states = theirs.base_model(rows.prompts[group][None]).last_hidden_state
        policy, reference, advantages = (column.mean() for column in own)
        log_z = by_hand(states[0].mean(dim=0)).squeeze()
        losses.append((log_z + policy - reference - options["beta"] * advantages).square())
    expected = gradients(theirs, torch.stack(losses).mean())
    assert relative_difference(got, expected) < 1e-4
    of_network = [name for name in expected if name.startswith("log_partition")]
    assert relative_difference(*({n: one[n] for n in of_network} for one in (got, expected))) < 1e-4


@pytest.mark.parametrize(("training", "calls"), [({}, 1), ({"activation_checkpointing": True}, 2)])
def test_checkpointed_layers_run_again_in_the_backward_pass(make_model, make_rows, training, calls):
    model = make_model()
    engine = build(model, **training)
    seen: list[int] = []
    model.base_model.layers[0].self_attn.register_forward_hook(lambda *_: seen.append(1))
    engine.update(make_rows(), objective())
    assert len(seen) == calls


def test_rows_without_signal_are_not_computed_but_counted(make_model, make_rows):
    rows = make_rows(groups=3)
    rows.mask[:] = True
    rows.advantages[rows.token_index(torch.arange(3, 6))] = 0.0
    seen: list[int] = []

    def run(goal, **training):
        model = make_model()
        engine = build(model, **training)
        seen.clear()
        model.base_model.embed_tokens.register_forward_hook(
            lambda _, args, __: seen.append(args[0].numel())
        )
        engine.update(rows, goal)
        return sum(seen)

    kept = rows.select([0, 1, 2, 6, 7, 8])
    expected = int(kept.prompt_lengths.sum()) + kept.num_tokens - kept.num_rows
    everything = int(rows.prompt_lengths.sum()) + rows.num_tokens - rows.num_rows
    assert run(objective()) == expected
    assert run(objective(), skip_zero_gradient_groups=False) == everything
    assert run(objective(entropy_coefficient=0.1)) == everything
    assert run(objective(kl=KlSpec(in_="loss", estimator="k3"))) == everything


def test_an_update_without_any_signal_still_decays_weights(make_model, make_rows):
    model, rows = make_model(), make_rows()
    rows.advantages[:] = 0.0
    before = weights(model)
    goal = objective()
    measured = build(model).update(rows, goal)
    for name, tensor in weights(model).items():
        torch.testing.assert_close(tensor, before[name] * (1 - 1e-2 * 0.1))
    assert measured.values["actor/grad_norm"] == 0.0
    assert measured.values["actor/loss"] == 0.0
    assert measured.tokens == 0
    with_signal = build(make_model()).update(make_rows(), goal)
    stats, alone = step_statistics([measured, with_signal]), step_statistics([with_signal])
    assert stats.keys() == alone.keys()
    for name in with_signal.token_sums:
        assert stats[name] == alone[name], "an update that computes nothing says nothing"


def test_a_gradient_that_is_not_finite_changes_nothing_but_the_schedule(make_model, make_rows):
    model, rows = make_model(), make_rows()
    engine = build(model)
    engine.update(rows, objective())
    before, state = weights(model), engine.state_tensors()
    state = {name: tensor.clone() for name, tensor in state.items()}
    broken = make_rows()
    broken.advantages[int(broken.mask.nonzero()[0])] = float("nan")
    measured = engine.update(broken, objective())
    assert measured.values["actor/skipped"] == 1.0
    assert relative_difference(weights(model), before) == 0.0
    after = engine.state_tensors()
    assert int(after.pop("updates")) == 2
    for name, tensor in after.items():
        assert torch.equal(tensor, state[name]), name
    assert engine.update(rows, objective()).values["actor/skipped"] == 0.0


@pytest.mark.parametrize("autocast", ["none", "float16"])
def test_a_loaded_state_goes_on_bit_for_bit(make_model, make_rows, autocast):
    options = {"attention_dropout": 0.2}
    goal = objective(entropy_coefficient=0.01)
    undisturbed = make_model(**options)
    engine = build(undisturbed, autocast=autocast)
    torch.manual_seed(4)
    for step in range(2):
        engine.update(make_rows(seed=step), goal)
    saved = {name: tensor.clone() for name, tensor in engine.state_tensors().items()}
    saved_weights = weights(undisturbed)
    saved_generator = torch.get_rng_state()
    for step in range(2, 4):
        expected = engine.update(make_rows(seed=step), goal)

    resumed = make_model(seed=77, **options)
    resumed.load_state_dict(saved_weights, strict=False)
    other = build(resumed, autocast=autocast)
    other.load_state(saved)
    assert other.state_boxes().keys() == saved.keys()
    torch.set_rng_state(saved_generator)
    for step in range(2, 4):
        got = other.update(make_rows(seed=step), goal)
    assert got == expected
    for name, tensor in weights(resumed).items():
        assert torch.equal(tensor, weights(undisturbed)[name]), name
    for name, tensor in other.state_tensors().items():
        assert torch.equal(tensor, engine.state_tensors()[name]), name


def test_dropout_is_at_work_in_updates_only(make_model, make_rows):
    rows = make_rows()
    model = make_model(attention_dropout=0.3)
    engine = build(model)
    first, second = engine.predict(rows)[0], engine.predict(rows)[0]
    assert torch.equal(first, second)
    models = [make_model(attention_dropout=0.3) for _ in range(2)]
    one, two = (gradient(model, rows, objective()) for model in models)
    assert relative_difference(one, two) > 1e-2


def test_the_same_update_gives_the_same_bits(make_model, make_rows):
    results = []
    for _ in range(2):
        model = make_model()
        build(model, autocast="bfloat16").update(make_rows(), objective())
        results.append(weights(model))
    for name, tensor in results[0].items():
        assert torch.equal(tensor, results[1][name]), name


@pytest.mark.parametrize(("autocast", "limit"), [("bfloat16", 0.05), ("float16", 0.005)])
def test_autocast_keeps_weights_and_moments_in_float32(make_model, make_rows, autocast, limit):
    model = make_model(initializer_range=0.05)
    engine = build(model, autocast=autocast)
    measured = engine.update(make_rows(), objective()).values
    exact = build(make_model(initializer_range=0.05)).update(make_rows(), objective())
    norm, exact_norm = measured["actor/grad_norm"], exact.values["actor/grad_norm"]
    assert norm == pytest.approx(exact_norm, rel=limit)
    assert norm != exact_norm
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    state = engine.state_tensors()
    assert state["model.embed_tokens.weight/exp_avg"].dtype == torch.float32


def test_float16_keeps_gradients_that_are_too_small_for_its_numbers(make_model, make_rows):
    rows = make_rows()
    rows.advantages *= 1e-6
    ours, exact = (
        gradient(make_model(initializer_range=0.05), rows, objective(), autocast=autocast)
        for autocast in ("float16", "none")
    )
    assert relative_difference(ours, exact) < 0.02


def test_the_scale_of_losses_falls_where_gradients_are_too_large(make_model, make_rows):
    model, rows = make_model(), make_rows()
    engine = build(model, autocast="float16")
    rows.advantages *= 1e8
    before = weights(model)
    scales = []
    for _ in range(40):
        measured = engine.update(rows, objective())
        scales.append(measured.state["actor/loss_scale"])
        if not measured.values["actor/skipped"]:
            break
        assert relative_difference(weights(model), before) == 0.0
    assert len(scales) > 5
    assert scales == [65_536.0 / 2**n for n in range(len(scales))]


def test_a_scale_doubles_after_400_finite_updates_in_a_row():
    scale = LossScale()
    scale.update(is_finite=False)
    values = []
    for _ in range(801):
        scale.update(is_finite=True)
        values.append(scale.value / 32_768.0)
    assert values == [1.0] * 399 + [2.0] * 400 + [4.0] * 2
    for _ in range(60):
        scale.update(is_finite=False)
    assert scale.value == 2.0**-24
