import json
from pathlib import Path

import pytest
import torch
from bad_specs import changed_job
from click.testing import CliRunner
from run_progress import progress_behind
from safetensors.torch import load_file

from ppojob_api.run_config import resolve
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_cli.main import main
from ppojob_trainer.checkpoint.identity import Identity
from ppojob_trainer.checkpoint.store import CheckpointStore
from ppojob_trainer.checkpoint.tensors import Shard

WEIGHTS = {
    "model.norm.weight": torch.arange(8.0),
    "model.layers.0.mlp.up_proj.weight": torch.randn(6, 8, generator=torch.Generator()),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with a checkpoint behind step 4, as a cluster leaves it."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 9}))
    (model / "tokenizer.json").write_text("{}")
    checkpoint(tmp_path / "run", {"path": str(model)})
    return tmp_path / "run"


def checkpoint(run: Path, model: dict[str, object], **sections: dict[str, object]) -> None:
    """A checkpoint behind step 4 of a job with this model."""
    spec = changed_job([])["spec"] | {"model": model} | sections
    if "critic" in sections:
        spec["algorithm"] = {"type": "ppo", "promptsPerStep": 4, "samplesPerPrompt": 2}
    job = PPOJob.model_validate({**changed_job([]), "spec": spec})
    store = CheckpointStore(run / "checkpoints", Identity("u", resolve(job).trajectory_json()))
    pending = store.begin(4)
    path = "actorRollout/rank-00000/model.safetensors"
    entry = Shard.of(path, WEIGHTS, role="actorRollout", rank=0).write(pending)
    store.complete(pending, progress_behind(4), [entry])


def refused(run: Path, output: Path, *options: str) -> str:
    command = ["export", str(run), "--output", str(output), *options]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 2
    return done.output


@pytest.mark.parametrize(("option", "name"), [("--checkpoint", "latest"), ("--step", "4")])
def test_the_policy_of_a_checkpoint(option: str, name: str, run: Path, tmp_path: Path) -> None:
    output = tmp_path / "for" / "readers" / "export"
    arguments = ["export", str(run), option, name, "--output", str(output)]
    for before in ("", ", in place of the one that was there"):
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
        assert done.output == f"{output}: the model after step 4{before}\n"
    exported = load_file(output / "model.safetensors")
    assert exported.keys() == WEIGHTS.keys()
    for name, weight in WEIGHTS.items():
        assert torch.equal(exported[name], weight)
    assert (output / "tokenizer.json").exists()


@pytest.mark.parametrize("name", ["7", "best"])
def test_a_checkpoint_that_is_not_there(name: str, run: Path, tmp_path: Path) -> None:
    said = refused(run, tmp_path / "export", "--checkpoint", name)
    assert said.startswith(f'--checkpoint: got "{name}": ')
    assert said.endswith("; one of latest, 4\n")


def test_the_model_that_a_job_began_with_stays(run: Path, tmp_path: Path) -> None:
    said = refused(run, tmp_path / "run" / ".." / "model")
    assert f"the job began with {tmp_path / 'model'}" in said
    assert (tmp_path / "model" / "tokenizer.json").exists()


def test_adapters_that_a_job_began_with_stay_in_their_export(run: Path, tmp_path: Path) -> None:
    export = tmp_path / "export"
    adapter = export / "adapter"
    adapter.mkdir(parents=True)
    (export / "config.json").write_text("{}")
    (adapter / "adapter_config.json").write_text("{}")
    lora = {"rank": 8, "path": str(adapter)}
    checkpoint(tmp_path / "later", {"path": str(tmp_path / "model"), "lora": lora})
    said = refused(tmp_path / "later", export)
    assert f"the job began with {adapter}" in said
    assert (adapter / "adapter_config.json").exists()


@pytest.mark.parametrize("options", [["--critic"], []])
def test_neither_the_policy_s_nor_the_critic_s_beginning_is_written_over(run, tmp_path, options):
    """Whichever of the two is written."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text((tmp_path / "model" / "config.json").read_text())
    model, critic = {"path": str(tmp_path / "model")}, {"path": str(other)}
    model["tokenizerPath"] = str(tmp_path)
    checkpoint(tmp_path / "ppo", model, critic=critic)
    target = tmp_path / "model" if options else other
    assert f"the job began with {target}" in refused(tmp_path / "ppo", target, *options)
    assert (target / "config.json").exists()


@pytest.mark.parametrize("of", ["reference", "judge", "rewardModel"])
def test_no_other_model_of_the_job_is_written_over(run: Path, tmp_path: Path, of: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text((tmp_path / "model" / "config.json").read_text())
    model = {"path": str(tmp_path / "model"), "tokenizerPath": str(tmp_path)}
    checkpoint(tmp_path / "job", model, **{of: {"path": str(other)}})
    assert f"the job began with {other}" in refused(tmp_path / "job", other)
    assert (other / "config.json").exists()


def test_a_run_that_is_not_there_is_told_from_one_without_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    output = tmp_path / "export"
    assert "there is no such folder" in refused(tmp_path / "none", output)
    said = refused(tmp_path / "new", output)
    assert said.startswith(f"RUN: got {tmp_path / 'new'}: it holds no checkpoint")


def test_nothing_but_an_export_is_replaced(run: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("years of work")
    assert "it is not empty, and has no config.json" in refused(run, tmp_path / "full")
    said = refused(run, run / "checkpoints", "--adapters")
    assert "it is not empty, and has no adapter_config.json" in said
    said = refused(run, tmp_path / "full" / "thesis.tex" / "export")
    assert "a folder that can be written" in said
    assert (tmp_path / "full" / "thesis.tex").exists()


def test_what_a_run_has_not_trained_cannot_be_written(run: Path, tmp_path: Path) -> None:
    for option in ("--adapters", "--critic"):
        assert refused(run, tmp_path / "x", option).startswith(f"{option}: got ")


def test_a_damaged_checkpoint_is_refused_by_name(run: Path, tmp_path: Path) -> None:
    shard = run / "checkpoints" / "step-000004" / "actorRollout/rank-00000/model.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert "actorRollout/rank-00000/model.safetensors" in refused(run, tmp_path / "export")
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize("field", ["tokenizerPath", "chatTemplate"])
def test_what_goes_along_with_the_model_is_there(field: str, run: Path, tmp_path: Path) -> None:
    checkpoint(tmp_path / "other", {"path": str(tmp_path / "model"), field: "/gone"})
    said = refused(tmp_path / "other", tmp_path / "export")
    assert said.startswith(f'spec.model.{field}: got "/gone": ')
    assert not (tmp_path / "export").exists()


def test_a_configuration_that_was_changed_is_refused_by_name(run: Path, tmp_path: Path) -> None:
    config = run / "checkpoints" / "step-000004" / "config.json"
    config.write_bytes(config.read_bytes().replace(b"float32", b"float33"))
    assert refused(run, tmp_path / "export").startswith("step-000004/config.json: got sha256")
