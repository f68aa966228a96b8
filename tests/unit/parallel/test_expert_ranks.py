import subprocess
import sys
from pathlib import Path

import expert_worlds
import pytest
import torch
import training_cases
import training_scenarios
from expert_worlds import COVER, SAVED, TRIED
from made_once import made_once
from tiers import first_in_test
from torch import Tensor
from training_cases import CASES, EXPERT_LAYOUTS
from training_ranks import alone, assert_equal, results, under

from ppojob_trainer.checkpoint.tensors import write_tensors
from ppojob_trainer.parallel.world import World

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1_200)]

PAIRS = [(layout, name) for layout, names in TRIED.items() for name in names]
SHORT = [pair for pair in PAIRS if pair[0] in COVER]
SAVES = first_in_test(
    [(layout, name) for layout in EXPERT_LAYOUTS for name in SAVED],
    *((layout, name) for layout, names in COVER.items() for name in names),
)


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that the worlds left behind: all of them where a `long` test is selected."""
    asked = [item for item in request.session.items if item.path == request.path]
    is_whole = any(item.get_closest_marker("long") for item in asked)

    def make(root: Path) -> None:
        training_cases.save_models(root, {CASES[name].model for _, name in PAIRS})
        (root / "1").mkdir()
        for name in SAVED:
            saved = training_scenarios.run_checkpoint(root, World.alone(), name)
            write_tensors(root / "1" / f"checkpoint-{name}-0.safetensors", saved)
            expert_worlds.run_export(root, World.alone(), name)
        layouts = EXPERT_LAYOUTS if is_whole else COVER
        program = [sys.executable, expert_worlds.__file__, str(root)]
        program += ["whole" if is_whole else "cover", *layouts]
        done = subprocess.run(program, capture_output=True, text=True, timeout=1_000)
        assert done.returncode == 0, done.stderr[-4_000:]

    return made_once(tmp_path_factory, "expert-worlds", make)


def of_all(folder: Path, layout: str, name: str, prefix: str = "") -> dict[str, Tensor]:
    """What ranks have, each of its own experts; what several of them have is the same."""
    found: dict[str, Tensor] = {}
    for rank in range(EXPERT_LAYOUTS[layout].size if layout != "1" else 1):
        for key, tensor in under(results(folder, layout, name, rank), prefix).items():
            assert torch.equal(found.setdefault(key, tensor), tensor), key
    return found


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], bound: float) -> None:
    """Each tensor differs by at most so much of its norm; biases of keys hardly have a gradient."""
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        most = 5 * bound if name.endswith("k_proj.bias") else bound
        assert (tensor - expected[name]).norm() <= most * expected[name].norm(), name


@pytest.mark.parametrize(("layout", "name"), first_in_test(PAIRS, *SHORT))
def test_shared_experts_are_the_same_update(folder, layout, name):
    expected = alone(folder, name)
    gradients = of_all(folder, layout, name, "gradient/")
    assert_close(gradients, under(expected, "gradient/"), 2e-5)
    # AdamW makes whole steps of a gradient that is all but zero.
    weights = of_all(folder, layout, name, "weight/")
    assert_close(weights, under(expected, "weight/"), 1e-4)
    for key, value in of_all(folder, layout, name, "stats/").items():
        torch.testing.assert_close(value, expected[f"stats/{key}"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", SAVED)
def test_the_same_layout_gives_the_same_bits(folder, name):
    """Also where weights and moments leave the device in between."""
    assert_equal(results(folder, "e2", f"again-{name}"), results(folder, "e2", name))
    for rank in range(2):
        found = results(folder, "e2", f"offloaded-{name}", rank)
        assert_equal(under(found, "offloaded/bits/"), under(found, "plain/bits/"))


@pytest.mark.parametrize(("layout", "name"), SAVES)
def test_a_restored_world_goes_on_bit_for_bit(folder, layout, name):
    found = results(folder, layout, f"checkpoint-{name}", 1)
    assert_equal(under(found, "restored/"), under(found, "went_on/"))


@pytest.mark.parametrize(("layout", "name"), SAVES)
def test_layouts_take_up_the_checkpoints_of_others(folder, layout, name):
    checkpoint = training_scenarios.checkpoint_of(folder, layout, name)
    engine = training_scenarios.restored_engine(checkpoint, folder, World.alone(), CASES[name])
    expected = of_all(folder, layout, f"checkpoint-{name}", "checkpoint/")
    assert_equal(training_scenarios.state_of(engine), expected)
    writer = "1" if layout == "e2" else "e2"
    written = of_all(folder, writer, f"checkpoint-{name}", "checkpoint/")
    found = of_all(folder, layout, "foreign", f"checkpoint-of-{writer}-{name}/")
    assert_equal(found, written)


@pytest.mark.parametrize(("layout", "name"), SAVES)
def test_an_export_has_the_bytes_of_one_rank(folder, layout, name):
    expected, found = (
        {path.name: path.read_bytes() for path in (folder / f"export-of-{one}-{name}").rglob("*.*")}
        for one in ("1", layout)
    )
    assert found == expected


@pytest.mark.parametrize("name", SAVED)
def test_a_rank_may_have_no_token_for_its_experts(folder, name):
    expected = expert_worlds.run_one_sided(folder, World.alone(), name)
    first = [key for key in expected if ".experts.0." in key]
    assert all(expected[key].any() for key in first)
    assert_close(of_all(folder, "e2", f"one-sided-{name}"), expected, 2e-5)


@pytest.mark.parametrize(("layout", "name"), SAVES)
def test_a_rank_puts_its_own_experts_together_alone(folder, layout, name):
    whole = int(expert_worlds.run_gathered(folder, World.alone(), name)["most"])
    dims = EXPERT_LAYOUTS[layout]
    (all_of_it,) = results(folder, "1", f"checkpoint-{name}")["held/bytes"].tolist()
    held = 0
    for rank in range(dims.size):
        most = int(results(folder, layout, f"gathered-{name}", rank)["most"])
        assert most == whole // dims.expert
        held += int(results(folder, layout, f"checkpoint-{name}", rank)["held/bytes"])
    assert all_of_it <= held / dims.replicate < 1.1 * all_of_it  # both ends have the embedding
