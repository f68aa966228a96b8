"""Model folders that cannot be used, by what the checks say: word for word in bad_folders.txt."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from family_models import FAMILY_MODELS
from golden_lines import read_lines
from refused_jobs import edit
from safetensors.numpy import load_file, save_file
from tiny_models import MIXTURE, save_policy
from transformers import Qwen3MoeForCausalLM

from ppojob_trainer.models.folder_checks import check_model_folder
from ppojob_trainer.models.kinds import CRITIC, POLICY, REWARD, ModelKind
from ppojob_trainer.models.problems import ModelReason

EXPECTED = read_lines(Path(__file__).parent / "bad_folders.txt")
NORM = "model.norm.weight"
WEIGHTS = "model.safetensors"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"

Spoil = Callable[[Path], object]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    save_policy(folder, dropout=0.1)
    return folder


def config(**changes: object) -> Spoil:
    return lambda folder: edit(folder / "config.json", changes)


def mixture(**changes: object) -> Spoil:
    """A mixture of experts in place of the model."""

    def spoil(folder: Path) -> None:
        save_policy(folder, 0.0, model_class=Qwen3MoeForCausalLM, **MIXTURE)
        edit(folder / "config.json", changes)

    return spoil


def no_turns(folder: Path) -> None:
    """gpt-oss, both of whose layers have a window."""
    kind, options = FAMILY_MODELS["gpt_oss"]
    save_policy(folder, 0.0, model_class=kind, **options)
    edit(folder / "config.json", {"layer_types": ["sliding_attention", "sliding_attention"]})


def old_temperatures(folder: Path) -> None:
    """Llama 4 as transformers 4.51 saved it."""
    kind, options = FAMILY_MODELS["llama4_text"]
    save_policy(folder, 0.0, model_class=kind, **options)
    edit(folder / "config.json", {"attn_temperature_tuning": 4})


def write(name: str, content: bytes) -> Spoil:
    return lambda folder: (folder / name).write_bytes(content)


def without_weights(*names: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        for name in names:
            (folder / name).write_bytes(b"PK")

    return spoil


def tensors(**changes: np.ndarray | None) -> Spoil:
    """Write weights anew with some of them changed; None takes one away."""

    def spoil(folder: Path) -> None:
        content = {**load_file(folder / WEIGHTS), **changes}
        kept = {name: value for name, value in content.items() if value is not None}
        save_file(kept, folder / WEIGHTS)

    return spoil


def shards(change: Callable[[Path, dict[str, str]], object]) -> Spoil:
    """Cut the weights into two shards with an index, which `change` spoils."""

    def spoil(folder: Path) -> None:
        content = load_file(folder / WEIGHTS)
        (folder / WEIGHTS).unlink()
        names = sorted(content)
        index: dict[str, str] = {}
        for number, part in enumerate((names[:10], names[10:]), start=1):
            shard = f"model-{number:05d}-of-00002.safetensors"
            save_file({name: content[name] for name in part}, folder / shard)
            index |= dict.fromkeys(part, shard)
        change(folder, index)
        text = json.dumps({"weight_map": index})
        (folder / "model.safetensors.index.json").write_text(text)

    return spoil


def cut(folder: Path, _: dict[str, str]) -> None:
    path = folder / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def replaced_by_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


CASES: dict[str, Spoil] = {
    "no folder": shutil.rmtree,
    "a file for a folder": replaced_by_a_file,
    "no config": lambda folder: (folder / "config.json").unlink(),
    "a run": lambda folder: [
        shutil.copytree(folder, folder / "export"),
        (folder / "config.json").unlink(),
    ],
    "a checkpoint": lambda folder: [
        (folder / WEIGHTS).unlink(),
        (folder / "manifest.json").write_text("{}"),
    ],
    "config is no JSON": write("config.json", b'{"model_type": "llama",\n  bad}'),
    "config is a list": write("config.json", b"[1, 2]"),
    "config is no UTF-8": write("config.json", b'{"a": "\xff"}'),
    "sizes missing": config(hidden_size=None, num_hidden_layers="two"),
    "architecture": config(model_type="bloom"),
    "no architecture": config(model_type=None),
    "a classifier": config(architectures=["LlamaForSequenceClassification"]),
    "windows": config(layer_types=["sliding_attention", "full_attention"], sliding_window=32),
    "windows of some layers of a Mistral": config(
        model_type="mistral", layer_types=["sliding_attention", "full_attention"]
    ),
    "angles by the longest row": config(
        rope_parameters={"full_attention": {"rope_type": "dynamic", "factor": 2.0}}
    ),
    "no experts": mixture(num_local_experts=None, moe_intermediate_size="wide"),
    "more experts for a token than there are": mixture(num_experts_per_tok=7),
    "widths of experts": mixture(hidden_size=60, moe_intermediate_size=12),
    "activation of experts and biases": mixture(hidden_act="gelu", mlp_bias=True),
    "layers without experts in no turn": mixture(decoder_sparse_step=0),
    "windows of a mixture": mixture(
        use_sliding_window=True, sliding_window=32, max_window_layers=28
    ),
    "pickle only": without_weights("pytorch_model.bin", "optimizer.pt"),
    "no weights": without_weights(),
    "shard missing": shards(lambda folder, _: next(folder.glob("*2.safetensors")).unlink()),
    "shard cut": shards(cut),
    "index leads out of the folder": shards(lambda _, index: index.update({NORM: "../x"})),
    "index without a map": shards(lambda _, index: index.clear()),
    "no header": write(WEIGHTS, b"1234"),
    "tensor missing": tensors(**{NORM: None}),
    "tensors missing": config(num_hidden_layers=3),
    "another shape": tensors(**{NORM: np.ones(32, np.float32)}),
    "two shapes": tensors(
        **{
            name: np.ones(32, np.float32)
            for name in (NORM, "model.layers.1.input_layernorm.weight")
        }
    ),
    "other shapes": config(intermediate_size=128),
    "remote code": config(
        model_type="mine", auto_map={"AutoModelForCausalLM": "modeling_mine.Mine"}
    ),
    "windows by no turns": no_turns,
    "temperatures as before": old_temperatures,
    "quantised": config(quantization_config={"quant_method": "awq", "bits": 4}),
    "integers for weights": tensors(**{NORM: np.ones(64, np.int8)}),
    "pointer file": write(WEIGHTS, POINTER),
    "shard beside (a warning)": lambda folder: (folder / "b.safetensors").touch(),
    "tensor too many (a warning)": tensors(**{"a.weight": np.ones(1, np.float32)}),
}
OTHER_KINDS: dict[str, tuple[ModelKind, Spoil]] = {
    "no critic": (CRITIC, config(architectures=["LlamaForQuestionAnswering"])),
    "critic of two labels": (
        CRITIC,
        config(architectures=["LlamaForTokenClassification"], id2label={"0": "a", "1": "b"}),
    ),
    "critic of two numbers": (CRITIC, tensors(**{"score.weight": np.ones((2, 64), np.float32)})),
    "no folder of a critic": (CRITIC, shutil.rmtree),
    "no reward model": (REWARD, config(architectures=["LlamaForCausalLM"])),
    "no folder of a reward model": (REWARD, shutil.rmtree),
}


@pytest.mark.parametrize("name", [*CASES, *OTHER_KINDS])
def test_bad_folders(name: str, policy: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(policy, tmp_path / "model")
    kind, spoil = OTHER_KINDS[name] if name in OTHER_KINDS else (POLICY, CASES[name])
    spoil(folder)
    report = check_model_folder(folder, kind)
    found = [f"{p.reason_code} {p}" for p in (*report.errors, *report.warnings)]
    assert [line.replace(f"{tmp_path}/", "") for line in found] == EXPECTED[name]


def test_every_line_has_its_case() -> None:
    assert EXPECTED.keys() == CASES.keys() | OTHER_KINDS.keys()


def test_a_path_that_is_too_long_is_told() -> None:
    (problem,) = check_model_folder(Path("m" * 300)).errors
    assert problem.where == "spec.model.path"
    assert "File name too long" in problem.why


def test_a_good_model_has_no_problem_and_its_facts_are_known(policy: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(policy, tmp_path / "model")
    edit(folder / "config.json", {"auto_map": {"AutoModelForCausalLM": "modeling_mine.Mine"}})
    report = check_model_folder(folder)
    assert not report.errors
    (warning,) = report.warnings
    assert warning.reason_code == ModelReason.REMOTE_CODE
    assert (report.vocabulary, report.context_tokens) == (99, 256)
    weights = load_file(folder / WEIGHTS)
    assert report.parameters == sum(weight.size for weight in weights.values())
