"""Models that a job cannot use, by `ppojob run`: exact lines, nothing started."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from golden_lines import read_lines
from refused_jobs import RefusedJob, check, edit
from safetensors.numpy import load_file, save_file

from ppojob_trainer.data import template_renderer
from ppojob_trainer.models.folder_checks import check_model_folder

LINES = read_lines(Path(__file__).with_suffix(".txt"))
EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
WEIGHTS = "model.safetensors"
FIRST = "model-00001-of-00002.safetensors"

Spoil = Callable[[RefusedJob], object]


def header(content: object, data: bytes = b"", *, length: int | None = None) -> Spoil:
    """Write weights with a header of one's own."""

    def spoil(wrong: RefusedJob) -> None:
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        size = struct.pack("<Q", len(text) if length is None else length)
        (wrong.model / "model.safetensors").write_bytes(size + text + data)

    return spoil


def header_above_the_limit(wrong: RefusedJob) -> None:
    header({}, length=100_000_001)(wrong)
    with (wrong.model / WEIGHTS).open("r+b") as file:
        file.truncate(100_000_100)


def tensor(*offsets: int, dtype: str = "U8", shape: tuple[object, ...] | None = None) -> object:
    sizes = [offsets[1] - offsets[0]] if shape is None else list(shape)
    return {"dtype": dtype, "shape": sizes, "data_offsets": list(offsets)}


def config(**changes: object) -> Spoil:
    return lambda wrong: wrong.edit("config.json", changes)


def write(name: str, content: bytes) -> Spoil:
    return lambda wrong: (wrong.model / name).write_bytes(content)


def without_weights(*names: str) -> Spoil:
    def spoil(wrong: RefusedJob) -> None:
        (wrong.model / "model.safetensors").unlink()
        for name in names:
            (wrong.model / name).write_bytes(b"PK")

    return spoil


def tensors(**changes: np.ndarray | None) -> Spoil:
    """Write weights anew with some of them changed; None takes one away."""

    def spoil(wrong: RefusedJob) -> None:
        path = wrong.model / "model.safetensors"
        content = {**load_file(path), **changes}
        save_file({name: value for name, value in content.items() if value is not None}, path)

    return spoil


def shards(change: Callable[[Path, dict[str, str]], object]) -> Spoil:
    """Cut the weights into two shards with an index, which `change` spoils."""

    def spoil(wrong: RefusedJob) -> None:
        path = wrong.model / "model.safetensors"
        content = load_file(path)
        path.unlink()
        names = sorted(content)
        index: dict[str, str] = {}
        for number, part in enumerate((names[:10], names[10:]), start=1):
            shard = f"model-{number:05d}-of-00002.safetensors"
            save_file({name: content[name] for name in part}, wrong.model / shard)
            index |= dict.fromkeys(part, shard)
        change(wrong.model, index)
        text = json.dumps({"weight_map": index})
        (wrong.model / "model.safetensors.index.json").write_text(text)

    return spoil


def cut(folder: Path, _: dict[str, str]) -> None:
    path = folder / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def embedding_of(rows: int) -> Spoil:
    """A smaller vocabulary, in the weights and in the configuration."""

    def spoil(wrong: RefusedJob) -> None:
        config(vocab_size=rows)(wrong)
        tensors(**{EMBEDDING: np.ones((rows, 64), np.float32)})(wrong)

    return spoil


def without_end(wrong: RefusedJob) -> None:
    wrong.edit("tokenizer_config.json", {"eos_token": None})
    for name in ("config.json", "generation_config.json"):
        wrong.edit(name, {"eos_token_id": None})
    (wrong.model / "special_tokens_map.json").unlink(missing_ok=True)


def without_pad(wrong: RefusedJob) -> None:
    wrong.edit("tokenizer_config.json", {"pad_token": None})
    wrong.edit("config.json", {"pad_token_id": None})
    (wrong.model / "special_tokens_map.json").unlink(missing_ok=True)


def template(source: str | None) -> Spoil:
    def spoil(wrong: RefusedJob) -> None:
        path = wrong.model / "chat_template.jinja"
        if source is None:
            path.unlink()
        else:
            path.write_text(source)

    return spoil


def beside(spoil: Spoil) -> Spoil:
    """Something that is told, and a mistake that keeps the job from starting."""

    def both(wrong: RefusedJob) -> None:
        spoil(wrong)
        wrong.set("spec.rollout.stopTokenIds", [5000])

    return both


def critic(spoil: Callable[[Path], object]) -> Spoil:
    """Judge by a critic of the policy's weights, whose folder is spoilt."""

    def spoil_critic(wrong: RefusedJob) -> None:
        folder = shutil.copytree(wrong.model, wrong.files / "critic")
        wrong.set("spec.algorithm.type", "ppo")
        wrong.set("spec.critic", {"path": str(folder)})
        spoil(folder)

    return spoil_critic


def judge(spoil: Callable[[Path], object]) -> Spoil:
    """Score by a reward model of the policy's weights, whose folder is spoilt."""

    def spoil_judge(wrong: RefusedJob) -> None:
        folder = shutil.copytree(wrong.model, wrong.files / "judge")
        wrong.set("spec.rewardModel", {"path": str(folder)})
        kind(architectures=["LlamaForSequenceClassification"], id2label={"0": "score"})(folder)
        head(1)(folder)
        spoil(folder)

    return spoil_judge


def kind(**changes: object) -> Callable[[Path], object]:
    return lambda folder: edit(folder / "config.json", changes)


def head(numbers: int) -> Callable[[Path], object]:
    def add(folder: Path) -> None:
        weights = load_file(folder / WEIGHTS)
        weights["score.weight"] = np.ones((numbers, 64), np.float32)
        save_file(weights, folder / WEIGHTS)

    return add


def shorter_embedding(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    weights[EMBEDDING] = weights[EMBEDDING][:50].copy()
    save_file(weights, folder / WEIGHTS)
    kind(vocab_size=50)(folder)


def judge_template(source: str) -> Spoil:
    return judge(lambda folder: (folder / "chat_template.jinja").write_text(source))


def longer_than_the_judge(wrong: RefusedJob) -> None:
    judge(lambda _: None)(wrong)
    wrong.set("spec.rewardModel.maxTokens", 257)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"

CASES: dict[str, Spoil] = {
    "path missing": lambda wrong: wrong.set("spec.model.path", "/no/such/model"),
    "a hub's name is no path": lambda wrong: wrong.set("spec.model.path", "org/model"),
    "path is a file": lambda wrong: wrong.set("spec.model.path", str(wrong.train)),
    "path of a long name": lambda wrong: wrong.set("spec.model.path", "m" * 300),
    "no config": lambda wrong: (wrong.model / "config.json").unlink(),
    "config is no JSON": write("config.json", b'{"model_type": "llama",\n  bad}'),
    "config is a list": write("config.json", b"[1, 2]"),
    "config is no UTF-8": write("config.json", b'{"a": "\xff"}'),
    "config is nested deeply": write("config.json", b"[" * 100_000),
    "sizes missing": config(hidden_size=None, num_hidden_layers="two"),
    "architecture": config(model_type="gpt2"),
    "no architecture": config(model_type=None),
    "a classifier": config(architectures=["LlamaForSequenceClassification"]),
    "windows": config(layer_types=["sliding_attention", "full_attention"], sliding_window=32),
    "pickle only": without_weights("pytorch_model.bin", "optimizer.pt"),
    "no weights": without_weights(),
    "shard missing": shards(lambda folder, _: next(folder.glob("*2.safetensors")).unlink()),
    "shard cut": shards(cut),
    "tensor not in its shard": shards(lambda _, index: index.update({NORM: FIRST})),
    "index leads out of the folder": shards(lambda _, index: index.update({NORM: "../x"})),
    "index without a map": shards(lambda _, index: index.clear()),
    "no header": write(WEIGHTS, b"1234"),
    "header longer than the file": header({}, length=10**12),
    "header above the limit": header_above_the_limit,
    "header is no JSON": header(b'{"a": 1'),
    "one name twice": header(b'{"a": {}, "a": {}}'),
    "no tensor": header({"a": 7}),
    "dtype": header({"a": tensor(0, 4, dtype="F99")}, bytes(4)),
    "shape": header({"a": tensor(0, 4, shape=(2, -2))}, bytes(4)),
    "offsets": header({"a": tensor(4, 0, shape=(4,))}, bytes(4)),
    "size": header({"a": tensor(0, 4, dtype="F32", shape=(2, 3))}, bytes(4)),
    "overlap": header({"a": tensor(0, 4), "b": tensor(2, 6)}, bytes(6)),
    "gap": header({"a": tensor(0, 4), "b": tensor(6, 8)}, bytes(8)),
    "bytes left over": header({"a": tensor(0, 4)}, bytes(9)),
    "tensor missing": tensors(**{NORM: None}),
    "tensors missing": config(num_hidden_layers=3),
    "another shape": tensors(**{NORM: np.ones(32, np.float32)}),
    "other shapes": config(intermediate_size=128),
    "no tokenizer": lambda wrong: (wrong.model / "tokenizer.json").unlink(),
    "tokenizer damaged": write("tokenizer.json", b"{}"),
    "vocabulary above the embedding": embedding_of(90),
    "no end token": without_end,
    "stop token above the embedding": lambda wrong: wrong.set(
        "spec.rollout.stopTokenIds", [3, 5000]
    ),
    "stop tokens in place of an end token": beside(without_end),
    "no pad token, and nothing to pad": beside(without_pad),
    "no chat template": template(None),
    "template missing": lambda wrong: wrong.set("spec.model.chatTemplate", "/no/such.jinja"),
    "template is no Jinja": template("{% for m in messages %}\n{{ m.content }"),
    "template raises": template("{{ raise_exception('no users') }}"),
    "template reads attributes": template("{{ ''.__class__.__mro__ }}"),
    "remote code": config(auto_map={"AutoModelForCausalLM": "modeling_mine.Mine"}),
    "quantised": config(quantization_config={"quant_method": "awq", "bits": 4}),
    "integers for weights": tensors(**{NORM: np.ones(64, np.int8)}),
    "pointer file": write(WEIGHTS, POINTER),
    "shard beside (a warning)": beside(lambda wrong: (wrong.model / "b.safetensors").touch()),
    "tensor too many (a warning)": beside(tensors(**{"a.weight": np.ones(1, np.float32)})),
    "critic: no such folder": critic(shutil.rmtree),
    "critic: another kind": critic(kind(architectures=["LlamaForQuestionAnswering"])),
    "critic: several labels": critic(
        kind(architectures=["LlamaForTokenClassification"], id2label={"0": "a", "1": "b"})
    ),
    "critic: a head of two numbers": critic(head(2)),
    "critic: another vocabulary": critic(shorter_embedding),
    "critic: too short": critic(kind(max_position_embeddings=71)),
    "reward model: no such folder": judge(shutil.rmtree),
    "reward model: a language model": judge(kind(architectures=["LlamaForCausalLM"])),
    "reward model: no tokenizer": judge(lambda folder: (folder / "tokenizer.json").unlink()),
    "reward model: template is no Jinja": judge_template("{% for m in messages %}\n{{ m.content }"),
    "reward model: template refuses": judge_template("{{ raise_exception('no users') }}"),
    "reward model: longer than the model": longer_than_the_judge,
    "context too short": lambda wrong: wrong.set("spec.data.maxResponseTokens", 400),
}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_model_is_refused(name: str, wrong: RefusedJob) -> None:
    CASES[name](wrong)
    check(wrong, LINES[name])


def test_every_line_has_its_case() -> None:
    assert LINES.keys() == CASES.keys()


def test_a_template_that_does_not_end(wrong: RefusedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_renderer, "RENDER_SECONDS", 0.5)
    long = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    template(long)(wrong)
    (line,) = wrong.refused()
    assert line.startswith("model/chat_template.jinja: got no text after 0.5 s: ")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_weights_that_are_no_numbers_end_the_job_before_a_step(wrong: RefusedJob, start) -> None:
    tensors(**{NORM: np.full(64, np.nan, np.float32)})(wrong)
    run = start(wrong.write_manifest(), wrong.output)
    assert run.wait() == 2
    (line,) = [wrong.bare(line) for line in run.lines if "NaN" in line]
    assert f"spec.model.path: got 64 values that are NaN or infinite in {NORM} of model" in line
    assert not list(wrong.output.glob("checkpoints/step-*"))


def test_a_good_model_has_no_problem_and_its_facts_are_known(wrong: RefusedJob) -> None:
    wrong.edit("config.json", {"auto_map": {"AutoModelForCausalLM": "modeling_mine.Mine"}})
    report = check_model_folder(wrong.model, trust_remote_code=True)
    assert (report.errors, report.warnings) == ([], [])
    assert (report.vocabulary, report.context_tokens) == (99, 256)
    weights = load_file(wrong.model / WEIGHTS)
    assert report.parameters == sum(weight.size for weight in weights.values())
