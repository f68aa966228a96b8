"""Every example is run, as its comment says, with a short job made of it.

Three run on the real model. For the others a small one with its tokenizer will do here, for some
with an engine that starts at once; `make test-long` runs them on the real one, as they are.
"""

import json
from pathlib import Path

import pytest
import run_folders
import tiny_jobs
import torch
from made_once import made_once
from safetensors.torch import load_file
from tiny_jobs import ppojob
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
SHORT = (
    "spec.steps.total=1",
    "spec.steps.validateEvery=null",
    "spec.checkpoint.every=null",
    "spec.algorithm.promptsPerStep=2",
    "spec.algorithm.samplesPerPrompt=4",
    "spec.data.maxValidationRows=4",
    "spec.rollout.kvCacheGib=0.25",
    "spec.roles.actorRollout.threadsPerRank=1",
)
SOME_CALL = ("spec.algorithm.promptsPerStep=4",)
"""Prompts enough that some begin with two worked calls: then a first response is one too."""
PLAIN = ("spec.rollout.engine=huggingface", "spec.rollout.kvCacheGib=null")
"""For a small model and an example that shows nothing of engines: vLLM takes long to start."""
GIVEN = (
    "spec.algorithm.samplesPerPrompt=null",
    "spec.rollout=null",
    "spec.steps.epochs=null",
    "spec.optimizer.warmupRatio=0",
)
"""For an example that generates nothing, and is as long as its data."""
GSM8K = [
    {"question": "Ann has 3 pens and buys 4 more. How many has she?", "answer": "3+4=7\n#### 7"},
    {"question": "A box holds 6 eggs. How many do 5 boxes hold?", "answer": "5*6=30\n#### 30"},
    {"question": "Tom had 9 nuts and ate 2. How many are left?", "answer": "9-2=7\n#### 7"},
    {"question": "Half of 18 birds flew off. How many stayed?", "answer": "18/2=9\n#### 9"},
]
"""Rows as GSM8K has them."""

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, fork_server: None) -> Path:
    """A folder with the model, the data and the examples, as their comments say."""

    def make(made: Path) -> None:
        ppojob(made, "model", "smollm2", "--output", "smollm2-135m")

    folder = tmp_path_factory.mktemp("home")
    (folder / "models").mkdir()
    real = made_once(tmp_path_factory, "smollm2", make) / "smollm2-135m"
    (folder / "models" / "smollm2-135m").symlink_to(real)
    fill(folder)
    return folder


@pytest.fixture(scope="module", params=["small", pytest.param("real", marks=pytest.mark.long)])
def any_home(request, home: Path, tmp_path_factory) -> Path:
    """The same, with the real model or a small one in its place."""
    if request.param == "real":
        return home
    folder = tmp_path_factory.mktemp("small-home")
    make_small(home / "models" / "smollm2-135m", folder / "models" / "smollm2-135m")
    fill(folder)
    return folder


@pytest.fixture(scope="module")
def engine(home: Path, any_home: Path) -> tuple[str, ...]:
    """Settings of the engine for an example that shows nothing of engines."""
    return () if any_home == home else PLAIN


def make_small(real: Path, folder: Path) -> None:
    """A model of two narrow layers and random weights, with the tokenizer of the real one."""
    sizes = {
        "num_hidden_layers": 2,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    config = AutoConfig.from_pretrained(real, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(real).save_pretrained(folder)


def fill(folder: Path) -> None:
    """Make what all examples read."""
    ppojob(folder, "data", "addition", "--output", "data/addition")
    larger = ("--digits", "2", "--rows", "663")
    ppojob(folder, "data", "addition", *larger, "--output", "data/addition-of-two")
    (folder / "examples").symlink_to(ROOT / "examples")


def run_short(home: Path, output: Path, name: str, *settings: str) -> list[dict[str, float]]:
    """Run an example as a short job; the metrics of its first validation and its one step."""
    options = [part for setting in (*SHORT, *settings) for part in ("--set", setting)]
    ppojob(home, "run", f"examples/{name}.yaml", "--output", str(output), "--plain", *options)
    run_folders.wait_until_gone(output)
    metrics = run_folders.metrics(output)
    assert [record["step"] for record in metrics] == [0, 1]
    return metrics


def test_addition_grpo(home: Path, output: Path):
    first, last = run_short(home, output, "addition-grpo")
    assert "val-core/ppojob/addition/acc/mean@1" in first
    assert "val-core/ppojob/addition/acc/mean@1" in last
    assert list(output.glob("tensorboard/events.*"))
    export_is_the_saved_model(output)


def test_addition_ppo(any_home: Path, engine: tuple[str, ...], tmp_path: Path):
    _, step = run_short(
        any_home,
        tmp_path / "run",
        "addition-ppo",
        *engine,
        "spec.algorithm.miniBatchPrompts=1",
        "spec.critic.warmupSteps=0",
        "spec.roles.reference.threadsPerRank=1",
        "spec.roles.critic.threadsPerRank=1",
    )
    for name in ("critic/vf_loss", "critic/vf_explained_var", "critic/values/mean"):
        assert name in step
    assert "actor/pg_loss" in step
    assert len(list((tmp_path / "run" / "logs").glob("*.log"))) == 5


@pytest.mark.long
def test_addition_prime(any_home: Path, engine: tuple[str, ...], tmp_path: Path):
    _, step = run_short(any_home, tmp_path / "run", "addition-prime", *engine)
    for name in ("dpo_loss", "reward", "dpo_acc", "dpo_acc_abs", "grad_norm"):
        assert f"reward_model/{name}" in step


def test_custom_reward(any_home: Path, engine: tuple[str, ...], tmp_path: Path):
    first, _ = run_short(any_home, tmp_path / "run", "custom-reward", *engine)
    assert "val-core/ppojob/addition/acc/mean@1" in first
    assert first["val-aux/ppojob/addition/characters/mean@1"] > 0


@pytest.mark.long
def test_judge(any_home: Path, engine: tuple[str, ...], tmp_path: Path):
    _, step = run_short(any_home, tmp_path / "run", "judge", *engine)
    assert {"rewards/judge/mean", "rewards/addition/mean"} <= step.keys()


def test_custom_algorithm(any_home: Path, engine: tuple[str, ...], tmp_path: Path):
    run, batch = tmp_path / "run", ("spec.algorithm.miniBatchPrompts=1",)
    _, step = run_short(any_home, run, "custom-algorithm", *batch, *engine)
    assert step["actor/pg_loss"] >= 0.0
    assert "actor/ppo_kl" in step


@pytest.mark.long
def test_reward_model(any_home: Path, engine: tuple[str, ...], tmp_path: Path):
    folder = any_home / "models" / "reward-model"
    if not folder.exists():
        tiny_jobs.make_classifier(any_home / "models" / "smollm2-135m", folder)
    settings = ("spec.roles.rewardModel.threadsPerRank=1", *engine)
    _, step = run_short(any_home, tmp_path / "run", "reward-model", *settings)
    assert step["critic/score/max"] > step["critic/score/min"]
    assert step["actor/reward_kl_penalty_coeff"] == 0.01


@pytest.mark.long
def test_calculator(home: Path, tmp_path: Path):
    form = ("--prompt-form", "calculator", "--digits", "3", "--rows", "40")
    ppojob(home, "data", "multiply", *form, "--output", "data/calculator")
    first, step = run_short(home, tmp_path / "run", "calculator", *SOME_CALL)
    assert "val-core/multiply/acc/mean@1" in first
    assert step["tool_call_counts/max"] > 0
    assert step["tool/failed_share"] < 1


@pytest.mark.long
def test_search_r1(home: Path, tmp_path: Path):
    ppojob(home, "data", "facts", "--prompt-form", "worked", "--output", "data/facts")
    ppojob(home, "index", "data/facts/corpus.jsonl", "--output", "indices/facts")
    first, step = run_short(home, tmp_path / "run", "search-r1", *SOME_CALL)
    assert "val-core/searchR1_facts/acc/mean@1" in first
    assert step["tool_call_counts/max"] > 0
    assert step["response/given_share"] > 0


def run_gsm8k(
    home: Path, output: Path, name: str, data: str, *options: str, settings: tuple[str, ...] = ()
) -> dict[str, float]:
    source = home / "grade-school-math"
    source.mkdir(exist_ok=True)
    for part in ("train", "test"):
        lines = "".join(json.dumps(row) + "\n" for row in GSM8K)
        (source / f"{part}.jsonl").write_text(lines)
    ppojob(home, "data", "gsm8k", *options, "--input", str(source), "--output", data)
    first, _ = run_short(
        home,
        output,
        name,
        "spec.model.path=models/smollm2-135m",  # what this machine has
        "spec.roles.actorRollout.gpusPerReplica=0",
        f"spec.data.maxResponseTokens={128 if options else 32}",
        "spec.algorithm.miniBatchPrompts=2",
        "spec.checkpoint.best=null",
        "spec.optimizer.warmupSteps=0",
        *settings,
    )
    return first


def test_gsm8k_grpo(any_home: Path, engine: tuple[str, ...], tmp_path: Path):
    first = run_gsm8k(any_home, tmp_path / "run", "gsm8k-grpo", "data/gsm8k", settings=engine)
    assert "val-core/openai/gsm8k/acc/mean@1" in first


def test_gsm8k_sft(any_home: Path, tmp_path: Path):
    first = run_gsm8k(any_home, tmp_path / "run", "gsm8k-sft", "data/gsm8k", settings=GIVEN)
    assert first["val/loss"] > 0
    export_is_the_saved_model(tmp_path / "run")


@pytest.mark.parametrize("name", ["addition-dpo", "addition-reward-model"])
def test_pairs(any_home: Path, tmp_path: Path, name: str):
    settings = (*GIVEN, "spec.algorithm.promptsPerStep=4", "spec.optimizer.warmupSteps=0")
    first, last = run_short(any_home, tmp_path / "run", name, *settings)
    assert first["val/rewards/margins"] == pytest.approx(0.0, abs=1e-6)
    assert last["train/grad_norm"] > 0


@pytest.mark.long
def test_addition_distillation(home: Path, any_home: Path, engine: tuple[str, ...], tmp_path: Path):
    teacher = any_home / "runs" / "addition-grpo" / "export"
    if not teacher.exists():
        make_small(home / "models" / "smollm2-135m", teacher)
    settings = ("spec.algorithm.samplesPerPrompt=1", *engine)
    first, step = run_short(any_home, tmp_path / "run", "addition-distillation", *settings)
    assert "val-core/ppojob/addition/acc/mean@1" in first
    assert step["distillation/loss"] > 0
    assert step["actor/grad_norm"] > 0


@pytest.mark.long
def test_addition_self_distillation(any_home: Path, engine: tuple[str, ...], tmp_path: Path):
    settings = ("spec.algorithm.samplesPerPrompt=1", *engine)
    first, step = run_short(any_home, tmp_path / "run", "addition-self-distillation", *settings)
    assert "val-core/ppojob/addition/acc/mean@1" in first
    assert step["distillation/loss"] > 0


@pytest.mark.long
def test_gsm8k_interaction(any_home: Path, engine: tuple[str, ...], tmp_path: Path):
    data = ("data/gsm8k-with-user", "--with-user")
    run = tmp_path / "run"
    first = run_gsm8k(any_home, run, "gsm8k-interaction", *data, settings=engine)
    assert "val-core/openai/gsm8k/acc/mean@1" in first
    assert first["val-aux/num_turns/mean"] >= 2


def test_house(any_home: Path, engine: tuple[str, ...], tmp_path: Path):
    first, step = run_short(any_home, tmp_path / "run", "house", *engine)
    assert first["val-aux/house/moves/mean@1"] >= 1
    assert 0.0 < step["critic/turns_compared"] <= 1.0


def test_shell(any_home: Path, engine: tuple[str, ...], tmp_path: Path):
    first, step = run_short(any_home, tmp_path / "run", "shell", *engine)
    assert {name for name in first if name.endswith("/mean@1")} >= {
        f"val-aux/shell/{kind}/reward/mean@1" for kind in ("write", "copy")
    }
    assert 0.0 <= step["critic/score/mean"] <= 1.0


@pytest.mark.long
def test_ledger(any_home: Path, engine: tuple[str, ...], tmp_path: Path):
    first, step = run_short(any_home, tmp_path / "run", "ledger", *engine)
    assert 0.0 <= first["val-aux/ledger/right/mean@1"] <= 1.0
    assert step["num_contexts/max"] == 3


@pytest.mark.long
def test_receipt(any_home: Path, engine: tuple[str, ...], tmp_path: Path):
    first, step = run_short(any_home, tmp_path / "run", "receipt", *engine)
    assert 0.0 <= first["val-aux/receipt/right/mean@1"] <= 1.0
    assert (step["num_turns/max"], step["num_contexts/max"], step["tool/failed_share"]) == (7, 1, 0)


def export_is_the_saved_model(output: Path) -> None:
    """transformers loads the export as it is, with the bits of the last checkpoint."""
    (shard,) = (output / "checkpoints" / "latest").glob("*/rank-00000/model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(output / "export", dtype=torch.float32)
    weights = dict(model.named_parameters())
    saved = load_file(shard)
    assert saved.keys() == weights.keys()
    for name, tensor in saved.items():
        assert torch.equal(weights[name], tensor), name
    tokenizer = AutoTokenizer.from_pretrained(output / "export")
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "1 + 2 + 3"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "<|im_start|>user\n1 + 2 + 3<|im_end|>\n<|im_start|>assistant\n"
