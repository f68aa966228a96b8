"""Worlds of several real processes against one rank: the same updates, checkpoints, exports.

A layout is named by its shards, or by its copies of the model and the shards of each; behind `s`
stand the ranks that share tokens, behind `t` those that share matrix products. `make test` tries a
cover of layouts and cases (`training_cover.py`), `make test-long` all of them.
"""

import functools
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import training_cases
import training_ranks
import training_scenarios
from made_once import made_once
from torch import Tensor
from training_cases import (
    CASES,
    FAMILIES,
    LAYOUTS,
    VALUE_MODELS,
    VOCABULARY,
    rows_of_rank,
    rows_of_step,
    run_case,
)
from training_cover import COVER, SAVED, WHOLE, WORLDS, Cover
from training_ranks import alone, assert_equal, results, under

from ppojob_trainer.checkpoint.tensors import write_tensors
from ppojob_trainer.models.kinds import CRITIC
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.state_dict import hf_named_tensors
from ppojob_trainer.parallel.world import World

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(2_400)]

Parameters = list[Any]


def tried(found: Callable[[Cover], Iterable[Any]]) -> Parameters:
    """What the whole cross is tried with; what is not in the cover is marked `long`."""
    cover = set(found(COVER))
    return [
        pytest.param(
            *(one if isinstance(one, tuple) else (one,)),
            marks=() if one in cover else pytest.mark.long,
        )
        for one in found(WHOLE)
    ]


def layouts_of(scenario: str) -> Parameters:
    return tried(lambda cover: cover.layouts_of(scenario))


def layouts_with(case: str) -> Parameters:
    return tried(lambda cover: [one for one in cover.worlds if case in cover.cases_of(one)])


ALL_WORLDS = tried(lambda cover: cover.worlds)


def pairs(cover: Cover) -> list[tuple[str, str]]:
    """Cases whose numbers ranks agree upon, and layouts."""
    return [
        (name, layout)
        for layout in cover.worlds
        for name, case in cover.cases_of(layout).items()
        if not case.broken
    ]


def exact_pairs(cover: Cover) -> list[tuple[str, str]]:
    """Of these, the ones that give the numbers of one rank."""
    return [
        (name, layout)
        for name, layout in pairs(cover)
        if CASES[name].autocast == "none" and CASES[name].model != "dropout"
    ]


def saved(cover: Cover) -> list[tuple[str, str]]:
    return [(name, layout) for name in SAVED for layout in cover.writers_of(name)]


def read(cover: Cover) -> list[tuple[str, str, str]]:
    return [
        (name, writer, reader)
        for name, writer in saved(cover)
        for reader in cover.worlds
        if cover.reads(reader, name, writer)
    ]


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the worlds left behind that the selected tests look at: a cover, or the whole cross."""
    asked = [item for item in request.session.items if item.path == request.path]
    is_whole = any(item.get_closest_marker("long") for item in asked)
    layouts = {
        item.callspec.params.get("layout") if hasattr(item, "callspec") else None for item in asked
    }
    # Who has no layout of its own reads what others left behind.
    selected = [] if None in layouts else [layout for layout in WORLDS if layout in layouts]

    def make(root: Path) -> None:
        training_cases.save_models(root, None if is_whole else COVER.models)
        (root / "1").mkdir()
        for name in SAVED:
            saved = training_scenarios.run_checkpoint(root, World.alone(), name)
            write_tensors(root / "1" / f"checkpoint-{name}-0.safetensors", saved)
        training_scenarios.run_export(root, World.alone())
        program = [sys.executable, training_ranks.__file__, str(root)]
        program += ["whole" if is_whole else "cover", *selected]
        done = subprocess.run(program, capture_output=True, text=True, timeout=2_000)
        assert done.returncode == 0, done.stderr[-4_000:]

    return made_once(tmp_path_factory, "worlds", make)


@functools.cache
def nudged(folder: Path, name: str, direction: int) -> dict[str, Tensor]:
    """The gradients of one rank whose weights are a rounding away, in one of some directions."""
    case = replace(CASES[name].alone, nudged=direction)
    return under(run_case(case, folder, World.alone()), "gradient/")


def is_rounding(folder: Path, name: str, key: str, error: Tensor) -> bool:
    """Whether a gradient of one rank differs by half as much, in any of some directions."""
    gradient = alone(folder, name)[f"gradient/{key}"]
    return any(
        error <= 2.0 * (nudged(folder, name, direction)[key] - gradient).norm()
        for direction in range(1, 9)
    )


@functools.cache
def scored_alone(folder: Path) -> list[list[float]]:
    return training_scenarios.scores_alone(folder, max(dims.size for dims in LAYOUTS.values()))


@pytest.mark.parametrize(("name", "layout"), tried(exact_pairs))
def test_any_cut_of_a_mini_batch_is_the_same_update(folder, name, layout):
    expected, found = alone(folder, name), results(folder, layout, name)
    gradients = under(expected, "gradient/")
    for key, gradient in under(found, "gradient/").items():
        error, bound = (gradient - gradients[key]).norm(), 1e-5 * gradients[key].norm()
        # Some models multiply the rounding of float32: is it that?
        assert error <= bound or is_rounding(folder, name, key, error), key
    weights = under(expected, "weight/")
    for key, weight in under(found, "weight/").items():
        # AdamW makes whole steps of a gradient that is all but zero.
        assert (weight - weights[key]).norm() <= 1e-4 * weights[key].norm(), key
    statistics = under(expected, "stats/")
    for key, value in under(found, "stats/").items():
        # The last gradients are those behind a step, which some families and towers multiply.
        is_multiplied = name in FAMILIES or CASES[name].seeing
        limit = 1e-5 if key == "actor/grad_norm" and not is_multiplied else 1e-4
        torch.testing.assert_close(value, statistics[key], rtol=limit, atol=1e-6)


@pytest.mark.parametrize("layout", layouts_with("adapters_beside_nf4"))
def test_matrices_in_four_bits_have_the_bits_of_one_rank(folder, layout):
    expected = under(alone(folder, "adapters_beside_nf4"), "base/")
    assert expected
    assert_equal(under(results(folder, layout, "adapters_beside_nf4"), "base/"), expected)


@pytest.mark.parametrize(("name", "layout"), tried(exact_pairs))
def test_every_rank_predicts_its_rows(folder, name, layout):
    expected = alone(folder, name)["logprobs"]
    everything = rows_of_step(long=CASES[name].long)
    for rank in range(LAYOUTS[layout].size):
        rows = rows_of_rank(CASES[name].owners, rank, LAYOUTS[layout])
        place = everything.token_index(rows)
        found = results(folder, layout, name, rank)["logprobs"]
        torch.testing.assert_close(found, expected[place], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "layout"), tried(pairs))
def test_ranks_agree_on_statistics_and_weights(folder, name, layout):
    first = results(folder, layout, name)
    for rank in range(1, LAYOUTS[layout].size):
        other = results(folder, layout, name, rank)
        for prefix in ("stats/", "weight/"):
            assert_equal(under(other, prefix), under(first, prefix))


@pytest.mark.parametrize("layout", layouts_with("dropout_recomputed"))
def test_dropout_is_drawn_again_where_a_layer_is_computed_again(folder, layout):
    found, again = (results(folder, layout, name) for name in ("dropout", "dropout_recomputed"))
    assert_equal(again, found)
    plain = alone(folder, "dropout")["gradient/model.norm.weight"]
    assert not torch.allclose(found["gradient/model.norm.weight"], plain, rtol=1e-3)


@pytest.mark.parametrize("layout", ALL_WORLDS)
def test_heads_and_tokens_change_places_and_gradients_go_back(folder, layout):
    for rank in range(LAYOUTS[layout].size):
        found = results(folder, layout, "exchange", rank)
        for name in ("back", "query", "key", "value"):
            torch.testing.assert_close(found[name], found[f"expected/{name}"])


@pytest.mark.parametrize("layout", layouts_of("memory"))
def test_ranks_that_share_tokens_share_what_is_kept_of_them(folder, layout):
    share = {"s2": 0.55, "s4": 0.3}[layout]
    (whole,) = training_scenarios.run_memory(folder, World.alone()).values()
    for rank in range(LAYOUTS[layout].size):
        assert results(folder, layout, "memory", rank)["kept"] < share * whole


@pytest.mark.parametrize(
    ("name", "layout"),
    tried(
        lambda cover: [
            (name, layout)
            for name in ("offloaded", "offloaded_adapters", "offloaded_nf4")
            for layout in ("1", *cover.layouts_of(name))
        ]
    ),
)
def test_what_leaves_the_device_comes_back_to_the_bit(folder, name, layout):
    for rank in range(LAYOUTS[layout].size):
        if layout == "1":
            scenario = training_scenarios.SCENARIOS[name]
            found = scenario(folder, World.alone())
        else:
            found = results(folder, layout, name, rank)
        assert found["offloaded/held"] == 0 < found["plain/held"]
        assert_equal(under(found, "offloaded/bits/"), under(found, "plain/bits/"))


@pytest.mark.parametrize(
    ("name", "layout"),
    tried(
        lambda cover: [
            (name, layout)
            for name in ("kept_whole", "kept_whole_adapters")
            for layout in cover.layouts_of(name)
        ]
    ),
)
def test_layers_that_stay_whole_for_their_backward_pass_change_no_bit(folder, name, layout):
    for rank in range(LAYOUTS[layout].size):
        found = results(folder, layout, name, rank)
        assert_equal(under(found, "kept/bits/"), under(found, "given_back/bits/"))
        given_back, kept = found["given_back/whole"].tolist(), found["kept/whole"].tolist()
        assert set(given_back) == {0}
        assert max(kept) > 0
        assert kept[-1] == 0


@pytest.mark.parametrize("layout", layouts_of("memory_of_passes"))
def test_a_stage_keeps_a_micro_batch_for_each_stage_from_it_on(folder, layout):
    dims = LAYOUTS[layout]
    for rank in range(dims.size):
        found = results(folder, layout, "memory_of_passes", rank)
        stages = dims.pipeline - dims.place(rank, "pipeline")[0]
        kept = found["of_6"] / found["of_1"]
        assert stages - 0.3 < kept < stages + 0.05


@pytest.mark.parametrize("layout", ALL_WORLDS)
def test_the_same_layout_gives_the_same_bits(folder, layout):
    assert_equal(results(folder, layout, "again"), results(folder, layout, "small_micro_batches"))


@pytest.mark.parametrize("layout", layouts_with("bfloat16"))
def test_autocast_stays_close(folder, layout):
    expected, found = alone(folder, "bfloat16"), results(folder, layout, "bfloat16")
    torch.testing.assert_close(
        found["stats/actor/grad_norm"], expected["stats/actor/grad_norm"], rtol=0.05, atol=0
    )
    assert found["weight/model.norm.weight"].dtype == torch.float32


@pytest.mark.parametrize("layout", layouts_with("a_gradient_that_is_not_finite"))
def test_all_ranks_skip_a_gradient_that_is_not_finite_on_one(folder, layout):
    start = dict(hf_named_tensors(load_model(folder / "tied")))
    for rank in range(LAYOUTS[layout].size):
        found = results(folder, layout, "a_gradient_that_is_not_finite", rank)
        assert found["stats/actor/skipped"] == 1.0
        assert_equal(under(found, "weight/"), start)


@pytest.mark.parametrize(
    ("name", "layout"), tried(lambda cover: [one for one in saved(cover) if one[1] != "1"])
)
def test_a_restored_world_goes_on_bit_for_bit(folder, name, layout):
    found = results(folder, layout, f"checkpoint-{name}", 1)
    assert_equal(under(found, "restored/"), under(found, "went_on/"))


@pytest.mark.parametrize(("name", "layout"), tried(saved))
def test_one_rank_takes_up_the_checkpoint_of_any_layout(folder, name, layout):
    checkpoint = training_scenarios.checkpoint_of(folder, layout, name)
    engine = training_scenarios.restored_engine(checkpoint, folder, World.alone(), CASES[name])
    expected = under(results(folder, layout, f"checkpoint-{name}"), "checkpoint/")
    assert_equal(training_scenarios.state_of(engine), expected)


@pytest.mark.parametrize(("name", "writer", "reader"), tried(read))
def test_layouts_take_up_the_checkpoints_of_others(folder, name, writer, reader):
    expected = under(results(folder, writer, f"checkpoint-{name}"), "checkpoint/")
    found = results(folder, reader, "foreign_checkpoints", LAYOUTS[reader].size - 1)
    assert_equal(under(found, f"checkpoint-of-{writer}-{name}/"), expected)


def test_ranks_write_their_parts_only(folder):
    """And of copies of the model the first one does."""
    sizes = {
        layout: [
            entry.size_bytes
            for entry in training_scenarios.entries_of(
                folder / f"checkpoint-of-{layout}-even", "optimizer"
            )
        ]
        for layout in COVER.worlds
    }
    assert {layout: len(files) for layout, files in sizes.items()} == {
        layout: LAYOUTS[layout].size // LAYOUTS[layout].replicate for layout in COVER.worlds
    }
    totals = [sum(files) for files in sizes.values()]
    assert max(totals) < 1.5 * min(totals)  # each file says what its parts are


@pytest.mark.parametrize("layout", ALL_WORLDS)
def test_a_rank_holds_its_share(folder, layout):
    """Of weights and moments; tensor ranks hold norms besides, both ends of a pipeline the
    embedding, an eighth of this model, and its stages as many layers as divide among them.
    """
    (whole,) = results(folder, "1", "checkpoint-even")["held/bytes"]
    dims = LAYOUTS[layout]
    held = [
        float(results(folder, layout, "checkpoint-even", rank)["held/bytes"]) / float(whole)
        for rank in range(dims.size)
    ]
    if dims.pipeline > 1:
        assert max(held) <= 0.75 / dims.shard
        assert sum(held) <= dims.replicate * 1.13
    else:
        assert max(held) <= 1.04 / (dims.shard * dims.sequence * dims.tensor)


@pytest.mark.parametrize("layout", layouts_of("heads"))
def test_a_cut_output_layer_says_what_the_whole_one_does(folder, layout):
    found = results(folder, layout, "heads", LAYOUTS[layout].size - 1)
    whole, cut = under(found, "whole/"), under(found, "cut/")
    told = {"logprobs", "entropy", "squares", "certainty", "reverse_kl", "forward_kl", "jsd"}
    assert told | {"hidden", "weight"} == whole.keys()
    for name, expected in whole.items():
        assert (cut[name] - expected).norm() <= 1e-5 * expected.norm(), name
    assert not under(found, "same/")["kl"].any()  # to the bit


@pytest.mark.parametrize("layout", layouts_of("export"))
def test_an_export_of_several_ranks_has_the_bytes_of_one(folder, layout):
    """Of merged weights, of those without adapters, and of the adapters apart; and of a tower."""

    def files(name: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (folder / name).rglob("*.*")}

    found = files(f"export-of-{layout}")
    assert len([name for name in found if name.startswith("model-0")]) > 1
    assert "adapter_model.safetensors" in found
    assert found == files("export-of-1")
    assert files(f"export-of-{layout}-seeing") == files("export-of-1-seeing")


def value_models(cover: Cover) -> list[tuple[str, str]]:
    return [(name, layout) for name in VALUE_MODELS for layout in cover.layouts_of(name)]


@functools.cache
def critic_alone(folder: Path, name: str) -> dict[str, Tensor]:
    return training_scenarios.run_value_model(folder, World.alone(), **VALUE_MODELS[name])


@pytest.mark.parametrize(("name", "layout"), tried(value_models))
def test_a_new_value_head_is_the_same_under_any_layout(folder, name, layout):
    """Also beside adapters, which begin as nothing."""
    model_name = VALUE_MODELS[name].get("model_name", "tied")
    expected = dict(hf_named_tensors(load_model(folder / model_name, kind=CRITIC)))
    assert expected["model.embed_tokens.weight"].shape[0] == VOCABULARY
    assert_equal(under(results(folder, layout, name, 1), "model/"), expected)


@pytest.mark.parametrize(("name", "layout"), tried(value_models))
def test_a_critic_is_updated_as_by_one_rank(folder, name, layout):
    expected, found = critic_alone(folder, name), results(folder, layout, name, 1)
    torch.testing.assert_close(found["norms"], expected["norms"], rtol=1e-5, atol=0)
    torch.testing.assert_close(found["values"], expected["values"], rtol=0, atol=1e-4)
    assert expected["values"].std() > 0.1
    trained = under(found, "trained/")
    assert trained.keys() == under(expected, "trained/").keys()
    assert {"score.weight", "score.bias"} <= trained.keys()
    assert ("model.norm.weight" in trained) == ("lora" not in VALUE_MODELS[name])


@pytest.mark.parametrize("layout", ALL_WORLDS)
def test_what_one_rank_is_refused_reaches_all(folder, layout):
    for rank in range(LAYOUTS[layout].size):
        found = results(folder, layout, "refusal", rank)
        told = bytes(found["told"].tolist()).decode()
        assert "got 'no tools' from the chat template" in told
        # They still meet: nobody was left in a collective that others had skipped.
        torch.testing.assert_close(found["scores"], torch.tensor(scored_alone(folder)[rank]))


@pytest.mark.parametrize("layout", ALL_WORLDS)
def test_all_ranks_refuse_what_one_of_them_has_read(folder, layout):
    for rank in range(LAYOUTS[layout].size):
        told = bytes(results(folder, layout, "bad_values", rank)["told"].tolist()).decode()
        assert told.startswith("spec.model.path: got 1 values that are NaN or infinite in model.no")
        assert "\n" not in told  # rows of zeros are fine where others of the tensor are not


def test_collectives_go_in_the_order_of_ranks(folder):
    for rank in range(3):
        found = results(folder, "p3", "collectives", rank)
        assert found["sum"].tolist() == pytest.approx([0.1 + 0.2, 1e16], rel=1e-6)
        assert found["largest"] == 6
