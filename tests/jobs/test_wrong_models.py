"""Models that a job cannot use, by `ppojob run`; of a folder alone: tests/unit/models."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from golden_lines import read_lines
from refused_jobs import RefusedJob, check, edit
from safetensors.numpy import load_file, save_file
from tiny_models import MIXTURE, save_policy
from transformers import GPT2LMHeadModel, Olmo3ForCausalLM, Qwen3MoeForCausalLM

from ppojob_trainer.data import template_renderer

LINES = read_lines(Path(__file__).with_suffix(".txt"))
EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
WEIGHTS = "model.safetensors"
ADAPTERS = "adapter_model.safetensors"

Spoil = Callable[[RefusedJob], object]


def tensors(folder: Path, **changes: np.ndarray) -> None:
    """Write weights anew, with some of them changed or more of them."""
    save_file({**load_file(folder / WEIGHTS), **changes}, folder / WEIGHTS)


def smaller_vocabulary(folder: Path, rows: int) -> None:
    """In the weights and in the configuration."""
    edit(folder / "config.json", {"vocab_size": rows})
    tensors(folder, **{EMBEDDING: np.ones((rows, 64), np.float32)})


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


def critic(spoil: Callable[[Path], object] | None = None, **settings: object) -> Spoil:
    """Judge by a critic of the policy's weights, whose folder is spoilt."""

    def spoil_critic(wrong: RefusedJob) -> None:
        folder = shutil.copytree(wrong.model, wrong.files / "critic")
        wrong.set("spec.algorithm.type", "ppo")
        wrong.set("spec.critic", {"path": str(folder), **settings})
        if spoil is not None:
            spoil(folder)

    return spoil_critic


def reference(spoil: Callable[[Path], object], **roles: object) -> Spoil:
    """Compare with another model over all tokens, one of the policy's weights that is spoilt."""

    def spoil_reference(wrong: RefusedJob) -> None:
        folder = shutil.copytree(wrong.model, wrong.files / "teacher")
        wrong.set("spec.algorithm.kl", {"in": "loss", "estimator": "full"})
        wrong.set("spec.reference", {"path": str(folder)})
        wrong.set("spec.roles", roles)
        spoil(folder)

    return spoil_reference


def teacher(spoil: Callable[[Path], object]) -> Spoil:
    """The same where it is one of several, of some data sources."""

    def spoil_teacher(wrong: RefusedJob) -> None:
        reference(spoil)(wrong)
        folder = str(wrong.files / "teacher")
        several = [{"path": folder, "dataSources": ["other"]}]
        wrong.set("spec.reference", {"path": str(wrong.model), "teachers": several})

    return spoil_teacher


def other_tokens(folder: Path) -> None:
    """Two tokens that have changed places."""
    path = folder / "tokenizer.json"
    text = path.read_text()
    for old, new in (('"a"', '"A!"'), ('"b"', '"a"'), ('"A!"', '"b"')):
        text = text.replace(old, new)
    path.write_text(text)


def beginning(spoil: Callable[[Path], object] | None = None, **settings: object) -> Spoil:
    """Begin with adapters of v_proj, of rank 2, whose folder is spoilt."""
    layer = "base_model.model.model.layers.{}.self_attn.v_proj.lora_{}.weight"

    def spoil_adapters(wrong: RefusedJob) -> None:
        folder = wrong.files / "adapters"
        folder.mkdir()
        (folder / "adapter_config.json").write_text("{}")
        edit(folder / "adapter_config.json", {"peft_type": "LORA", "r": 2, "lora_alpha": 16})
        matrices = {"A": np.ones((2, 64), np.float32), "B": np.ones((32, 2), np.float32)}
        named = {layer.format(n, kind): m for n in range(2) for kind, m in matrices.items()}
        save_file(named, folder / ADAPTERS)
        lora = {"path": str(folder), "rank": 2, "targetModules": ["v_proj"], **settings}
        wrong.set("spec.model.lora", lora)
        if spoil is not None:
            spoil(folder)

    return spoil_adapters


def judge(spoil: Callable[[Path], object] | None = None, **settings: object) -> Spoil:
    """Score by a reward model of the policy's weights, whose folder is spoilt."""

    def spoil_judge(wrong: RefusedJob) -> None:
        folder = shutil.copytree(wrong.model, wrong.files / "judge")
        wrong.set("spec.rewardModel", {"path": str(folder), **settings})
        kind = {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "score"}}
        edit(folder / "config.json", kind)
        tensors(folder, **{"score.weight": np.ones((1, 64), np.float32)})
        if spoil is not None:
            spoil(folder)

    return spoil_judge


def served(spoil: Callable[[Path], object] | None = None, **settings: object) -> Spoil:
    """Have the job serve a judge of the policy's weights, whose folder is spoilt."""

    def spoil_served(wrong: RefusedJob) -> None:
        folder = shutil.copytree(wrong.model, wrong.files / "judge")
        wrong.set("spec.judge", {"path": str(folder), **settings})
        if spoil is not None:
            spoil(folder)

    return spoil_served


def judge_template(source: str) -> Spoil:
    return judge(lambda folder: (folder / "chat_template.jinja").write_text(source))


CASES: dict[str, Spoil] = {
    "path missing": lambda wrong: wrong.set("spec.model.path", "/no/such/model"),
    "tokenizer damaged": lambda wrong: (wrong.model / "tokenizer.json").write_text("{}"),
    "vocabulary above the embedding": lambda wrong: smaller_vocabulary(wrong.model, 90),
    "no end token": without_end,
    "stop token above the embedding": lambda wrong: wrong.set(
        "spec.rollout.stopTokenIds", [3, 5000]
    ),
    "stop tokens in place of an end token": beside(without_end),
    "no pad token, and nothing to pad": beside(without_pad),
    "no chat template": template(None),
    "positions of layers of several kinds": lambda wrong: [
        save_policy(wrong.model, 0.0, model_class=Olmo3ForCausalLM),
        wrong.set("spec.model.ropeScaling", {"type": "yarn", "factor": 2.0}),
    ],
    "overrides of config.json": lambda wrong: wrong.set(
        "spec.model.configOverrides",
        {
            "rms_norm_eps": 0,
            "rope_theta": "500000",
            "hidden_size": 128,
            "initializer_range": 0.1,
            "max_position_embeddings": 512,
            "model_type": "qwen2",
            "text_config": {"rms_norm_eps": 1e-5},
        },
    ),
    "overrides of a mixture": lambda wrong: [
        save_policy(wrong.model, 0.0, model_class=Qwen3MoeForCausalLM, **MIXTURE),
        wrong.set(
            "spec.model.configOverrides",
            {"num_experts_per_tok": 7, "norm_topk_prob": 1, "sliding_window": 8},
        ),
    ],
    "template missing": lambda wrong: wrong.set("spec.model.chatTemplate", "/no/such.jinja"),
    "template is no Jinja": template("{% for m in messages %}\n{{ m.content }"),
    "template raises": template("{{ raise_exception('no users') }}"),
    "tensor too many (a warning)": beside(
        lambda wrong: tensors(wrong.model, **{"a.weight": np.ones(1, np.float32)})
    ),
    "critic: another vocabulary": critic(lambda folder: smaller_vocabulary(folder, 50)),
    "critic: too short": critic(
        lambda folder: edit(folder / "config.json", {"max_position_embeddings": 71})
    ),
    "reference: other tokens": reference(other_tokens),
    "reference: fewer tokens": reference(lambda folder: smaller_vocabulary(folder, 90)),
    "reference: no model": reference(shutil.rmtree),
    "teacher: longer prompts than the model": lambda wrong: [
        wrong.set("spec.algorithm.kl", {"in": "loss"}),
        wrong.set("spec.data.teacherPromptKey", "prompt"),
        wrong.set("spec.data.maxTeacherPromptTokens", 249),
    ],
    "teacher: fewer tokens": teacher(lambda folder: smaller_vocabulary(folder, 90)),
    "reference: more tokens over tensor ranks": reference(
        lambda folder: smaller_vocabulary(folder, 128),
        actorRollout={"ranksPerReplica": 2, "parallelism": {"tensor": 2}},
    ),
    "reward model: no tokenizer": judge(lambda folder: (folder / "tokenizer.json").unlink()),
    "reward model: template is no Jinja": judge_template("{% for m in messages %}\n{{ m.content }"),
    "reward model: template refuses": judge_template("{{ raise_exception('no users') }}"),
    "judge: no chat template": served(lambda one: (one / "chat_template.jinja").unlink()),
    "judge: longer than the model": served(maxTokens=257),
    "judge: no room for a text": served(maxTokens=200, kvCacheGib=0.00005, dtype="float32"),
    "judge: no room for its answers": lambda wrong: [
        served(maxTokens=200)(wrong),
        wrong.set("spec.rewards", [{"function": "judge"}]),
    ],
    "reward model: longer than the model": judge(maxTokens=257),
    "adapters of no layer": lambda wrong: wrong.set(
        "spec.model.lora", {"rank": 4, "targetModules": ["q_proj", "v_prj", "lm_head"]}
    ),
    "critic: adapters of no layer": critic(lora={"rank": 4, "targetModules": ["score"]}),
    "begin: no adapters": beginning(lambda folder: (folder / "adapter_config.json").unlink()),
    "begin: another rank and alpha": beginning(rank=4, alpha=8),
    "begin: other modules": beginning(targetModules=["q_proj", "v_proj"]),
    "begin: more than adapters": beginning(
        lambda folder: save_file(
            {**load_file(folder / ADAPTERS), "score.weight": np.ones((1, 64), np.float32)},
            folder / ADAPTERS,
        )
    ),
    "begin: of another kind": beginning(
        lambda folder: edit(
            folder / "adapter_config.json",
            {
                "peft_type": "LOHA",
                "alpha_pattern": {"v_proj": 4},
                "init_lora_weights": "pissa_niter_4",
            },
        )
    ),
    "begin: a file that is cut": beginning(lambda folder: os.truncate(folder / ADAPTERS, 100)),
    "more ranks share heads than there are": lambda wrong: wrong.set(
        "spec.roles.actorRollout", {"ranksPerReplica": 3, "parallelism": {"sequence": 3}}
    ),
    "heads that ranks cannot share": lambda wrong: wrong.set(
        "spec.roles.actorRollout", {"ranksPerReplica": 4, "parallelism": {"tensor": 4}}
    ),
    "fewer layers than ranks": lambda wrong: wrong.set(
        "spec.roles.actorRollout", {"ranksPerReplica": 3, "parallelism": {"pipeline": 3}}
    ),
    "ranks that share experts of none": lambda wrong: wrong.set(
        "spec.roles.actorRollout", {"ranksPerReplica": 3, "parallelism": {"expert": 3}}
    ),
    "context too short": lambda wrong: wrong.set("spec.data.maxResponseTokens", 400),
    "fewer learnt positions than tokens": lambda wrong: [
        save_policy(wrong.model, 0.0, model_class=GPT2LMHeadModel),
        wrong.set("spec.data.maxResponseTokens", 400),
    ],
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
    assert line.startswith("model/chat_template.jinja: got no text: ")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_weights_that_are_no_numbers_end_the_job_before_a_step(wrong: RefusedJob, start) -> None:
    tensors(wrong.model, **{NORM: np.full(64, np.nan, np.float32)})
    run = start(wrong.write_manifest(), wrong.output)
    assert run.wait() == 2
    (line,) = [wrong.bare(line) for line in run.lines if "NaN" in line]
    assert f"spec.model.path: got 64 values that are NaN or infinite in {NORM} of model" in line
    assert not list(wrong.output.glob("checkpoints/step-*"))
