import math
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import run_folders
import tiny_jobs
import torch
from media_jobs import POINTS, PPO, SHARED, VLLM, media_job, row_of, write_table
from padded_reference import whole_logprobs
from safetensors.torch import load_file, save_file
from seeing_models import SEEING, whole_class
from tiers import first_in_test
from tiny_models import NAMES, ZOOMS, image, noise

from ppojob_api.v1alpha1.data import DataSpec
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.media.images import packed, unpacked
from ppojob_trainer.models.weight_files import own_name

COLORS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
USER = """
def ask(messages, query):
    assert messages[0]["content"] == "<image>?"
    return len(messages) > 4, f"{query} {len(messages)}", 0.25
"""


PROGRAM = """
import base64, json, os, urllib.request

def ask(messages):
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(address, body) as answer:
        return json.load(answer)["choices"][0]["message"]

def screen(text):
    \"\"\"An image that depends on what the model has said.\"\"\"
    wide, high = 8 + len(text) % 9, 8
    pixels = bytes(sum(text.encode()) * n % 251 for n in range(3 * wide * high))
    file = base64.b64encode(f"P6 {wide} {high} 255\\n".encode() + pixels).decode()
    return {"type": "image_url", "image_url": {"url": "data:image/ppm;base64," + file}}

def look(messages, query):
    \"\"\"Two turns behind the prompt, and then each in a context with the last two images.\"\"\"
    asked = {"type": "text", "text": query}
    shown = [messages[0]["content"][0]]
    for turn in range(4):
        said = ask(messages)
        shown.append(screen(said["content"]))
        messages = [*messages, said, {"role": "user", "content": [asked, shown[-1]]}]
        if turn:
            messages = [{"role": "user", "content": [*shown[-2:], asked]}]
    return len(said["content"]) / 8
"""
ZOOM = """
from verl.tools.schemas import ToolResponse

def zoom(part, images):
    width, height = images[0].size
    part = images[0].crop((0, 0, max(8, width * part // 40), height))
    return ToolResponse(image=[part], text=f"{len(images)}"), 0.25
"""


def write_rows(path: Path, **told: object) -> list[dict[str, Any]]:
    """Rows that ask for the colour of an image; images are of several sizes."""
    names, rows = list(COLORS), []
    for n in range(24):
        shown = image(COLORS[names[n % 3]], (16, 8 + n % 9))
        rows.append(row_of(n, "<image>?", names[n % 3], images=[{"bytes": shown, "path": None}]))
        rows[-1]["extra_info"] |= told
    write_table(path, rows)
    return rows


def make_folder(folder: Path, kind: str = "seeing", dropout: float = 0.1) -> dict[str, Any]:
    """Make a model, whose tower learns in a job of which this is a section, and rows for it."""
    tiny_jobs.make_tiny_folder(folder, dropout, kind)
    write_rows(folder / "train.parquet")
    return {"path": str(folder / "model"), "freezeVisionTower": False}


def image_job(folder: Path, **changes: object) -> dict[str, Any]:
    ranks = {"actorRollout": {"ranksPerReplica": 2}}
    return media_job(folder, {"maxPromptTokens": 96}, **{"roles": ranks, **changes})


def write_answers(path: Path, count: int, kind: str) -> None:
    """Rows that say the colours of two images, one after the other; or of one, and another."""
    names = list(COLORS)
    rows = []
    for n in range(count):
        said, other = names[n % 3], names[(n + 1 + n % 2) % 3]
        shown = [image(COLORS[name], (16, 8 + n % 9)) for name in (said, other)]
        asked = {"role": "user", "content": "<image>?"}
        told = [{"role": "assistant", "content": name} for name in (said, other)]
        if kind == "sft":
            row = {"prompt": [asked, told[0], {**asked, "content": "! <image>?"}, told[1]]}
        else:
            row, shown = {"prompt": [asked], "chosen": said, "rejected": other}, shown[:1]
        rows.append({**row, "images": [{"bytes": one, "path": None} for one in shown]})
    write_table(path, rows)


@pytest.mark.parametrize("kind", first_in_test(["sft", "dpo"]))
def test_answers_about_images_are_learnt(run_through, tmp_path: Path, kind: str):
    """The tower learns too. A reference sees what the policy does: at first both say the same."""
    tiny_jobs.make_tiny_folder(tmp_path, 0.1, "seeing")
    train, held_out = tmp_path / "train.parquet", tmp_path / "held-out.parquet"
    write_answers(train, 24, kind)
    write_answers(held_out, 7, kind)
    data = {"train": [{"path": str(train)}], "validation": [{"path": str(held_out)}]}
    job = media_job(
        tmp_path,
        {**data, "maxPromptTokens": 64, "maxResponseTokens": 64},
        model={"path": str(tmp_path / "model"), "freezeVisionTower": False},
        roles={"actorRollout": {"ranksPerReplica": 2}},
        algorithm={"type": kind, "promptsPerStep": 8},
        optimizer={"learningRate": 1e-2},
        rollout={},
        rewards=[],
        steps={"total": 6, "validateEvery": 6, "validateFirst": True},
        checkpoint={"every": 2},
    )
    (tmp_path / "calm").mkdir()
    calm = tiny_jobs.run_alone(tiny_jobs.write_manifest(tmp_path / "calm", tmp_path, **job))
    first, *_, last = [one["val/loss"] for one in run_folders.metrics(calm) if "val/loss" in one]
    assert last < 0.8 * first
    if kind == "dpo":
        assert first == pytest.approx(math.log(2), abs=1e-6)
    else:
        assert first == pytest.approx(loss_of_the_whole(tmp_path, held_out), abs=1e-5)
    _, after, kept = run_folders.kept(tmp_path / "model", calm)
    assert not kept

    killed = tmp_path / "killed"
    points = ("rpc.update.answer.before@3=kill", "rpc.measure_loss.answer.after@1=kill")
    run_through(tiny_jobs.write_manifest(tmp_path, tmp_path, **job), killed, *points, seconds=600)
    assert run_folders.without_clock(killed) == run_folders.without_clock(calm)
    exported = load_file(killed / "export" / "model.safetensors")
    assert all(torch.equal(exported[name], after[name]) for name in after)


@pytest.mark.long
def test_a_reward_model_learns_from_images_and_scores_by_them(tmp_path: Path) -> None:
    model = make_folder(tmp_path)
    train, held_out = tmp_path / "pairs.parquet", tmp_path / "held-out.parquet"
    write_answers(train, 24, "reward_model")
    write_answers(held_out, 7, "reward_model")
    data = {"train": [{"path": str(train)}], "validation": [{"path": str(held_out)}]}
    pairs = media_job(
        tmp_path,
        {**data, "maxPromptTokens": 64, "maxResponseTokens": 64},
        model=model,
        roles={"actorRollout": {"ranksPerReplica": 2}},
        algorithm={"type": "reward_model", "promptsPerStep": 8},
        optimizer={"learningRate": 1e-2},
        rollout={},
        rewards=[],
        steps={"total": 15, "validateEvery": 15, "validateFirst": True},
        checkpoint={},
    )
    (tmp_path / "pairs").mkdir()
    learnt = tiny_jobs.run_alone(tiny_jobs.write_manifest(tmp_path / "pairs", tmp_path, **pairs))
    first, *_, last = [one["val/loss"] for one in run_folders.metrics(learnt) if "val/loss" in one]
    assert first == pytest.approx(math.log(2), abs=1e-6)
    assert last < 0.8 * first
    scored = image_job(
        tmp_path,
        model=model,
        rewards=[],
        rewardModel={"path": str(learnt / "export")},
        steps={"total": 1},
        checkpoint={},
    )
    (tmp_path / "scored").mkdir()
    output = tiny_jobs.run_alone(tiny_jobs.write_manifest(tmp_path / "scored", tmp_path, **scored))
    *_, record = run_folders.metrics(output)
    assert record["critic/score/max"] > record["critic/score/min"]


def loss_of_the_whole(folder: Path, rows: Path) -> float:
    """What transformers' whole model says of the answers, with the pixels of all images."""
    model = folder / "model"
    whole, found = whole_class("qwen2_5_vl").from_pretrained(model), []
    spec = DataSpec.model_validate({"train": [{"path": str(rows)}]})
    with (
        ChatTokenizer(model) as chat,
        PromptDataset.open(spec, chat, given="sft") as data,
    ):
        for row in data.rows(range(len(data))):
            (answer,) = row.answers
            later = [one.file for part in answer for one in part.images]
            assert len(later) == 1
            shown = packed([*unpacked(row.images), *later])
            tokens, mask = (
                torch.tensor([one for part in answer for one in of(part)])
                for of in (
                    lambda part: part.tokens,
                    lambda part: [part.is_trained] * len(part.tokens),
                )
            )
            with torch.no_grad():
                said = whole_logprobs(whole, model, torch.tensor(row.token_ids), shown, tokens)
            found.append(said[mask])
    return -float(torch.cat(found).mean())


STOPS = [NAMES.index(sign) for sign in ".,:;!?+-*/"]
NUMBERS = ("layer_scalar", "std_bias", "std_scale", "put_min", "put_max")
"""Of Gemma 4, in names of what files hold and nobody trains."""


LONG = pytest.mark.long
LONG_OF_VLLM = [pytest.mark.vllm, pytest.mark.long]


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        pytest.param("seeing_tiles", {"algorithm": PPO}),
        pytest.param("seeing_squares", {}, marks=LONG),
        pytest.param("seeing_squares", {"rollout": VLLM}, marks=LONG_OF_VLLM),
        pytest.param("seeing_crops", {"rollout": VLLM}, marks=LONG_OF_VLLM),
        pytest.param("seeing_pooled", {}, marks=LONG),
        pytest.param("seeing_splits", {}, marks=LONG),
        pytest.param("seeing_grids", {}, marks=LONG),
        pytest.param("seeing_told", {"rollout": VLLM}, marks=LONG_OF_VLLM),
        pytest.param("seeing_3", {"rollout": VLLM}, marks=pytest.mark.vllm),
    ],
    ids=lambda one: one if isinstance(one, str) else "vllm" if "rollout" in one else "hf",
)
def test_a_killed_job_with_images_ends_as_an_undisturbed_one(
    run_twice, finished, tmp_path: Path, kind: str, changes
):
    """Over two ranks, one of which computes rows that the other owns; and with others apart.

    A critic sees the images too. The tower is frozen, or learns, and engines have it as it is.
    With vLLM, which takes long to load, in one rank, and undisturbed: what a kill may lose of what
    engines see is lost with the other one too.
    """
    learns = kind != "seeing_tiles"
    ranks = {"ranksPerReplica": 1 if learns else 2}
    # Policy and critic draw dropout of one state in one process, and of two apart.
    model = make_folder(tmp_path, kind, 0.1 if learns else 0.0) | {"freezeVisionTower": not learns}
    job = image_job(tmp_path, model=model, roles={"actorRollout": ranks}, **changes)
    if "rollout" in changes:
        calm = finished("calm", tmp_path, **job)
    else:
        manifest = tiny_jobs.write_manifest(tmp_path, tmp_path, **job)
        calm = run_twice(manifest, *POINTS, seconds=600)
    run_folders.assert_trained(calm, 3, limit=1e-6)
    before, _, kept = run_folders.kept(tmp_path / "model", calm)
    whole = whole_class(SEEING[kind]).from_pretrained(calm / "export")
    tower = {name for name in before if own_name(name).startswith("visual.")}
    if learns:  # but for biases of what is said behind the last layer, which nobody reads
        kept = {name for name in kept if before[name].any()}
    numbers = {name for name in before if name.endswith(NUMBERS)}
    assert kept == (numbers if learns else tower)
    assert whole.dtype == torch.float32

    roles = {"actorRollout": ranks, "rollout": {"replicas": ranks["ranksPerReplica"]}}
    if not learns:
        roles["critic"] = {"ranksPerReplica": 2, "colocateWith": "none"}
    (tmp_path / "apart").mkdir()
    apart = tiny_jobs.write_manifest(tmp_path / "apart", tmp_path, **{**job, "roles": roles})
    assert run_folders.result(tiny_jobs.run_alone(apart)) == run_folders.result(calm)


ENGINES = {
    "huggingface": {"roles": {"actorRollout": SHARED}},
    "vllm": {"rollout": VLLM, "roles": {"actorRollout": {"ranksPerReplica": 1}}},
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "engine"),
    [("seeing", "huggingface"), pytest.param("seeing_3", "vllm", marks=pytest.mark.vllm)],
)
def test_a_job_about_videos(run_twice, tmp_path: Path, kind: str, engine: str) -> None:
    """Over ranks that share the tokens of a row, and undisturbed by vLLM; the tower learns."""
    model = make_folder(tmp_path, kind)
    rows = write_rows(tmp_path / "train.parquet")
    for n, row in enumerate(rows):
        (shown,) = row.pop("images")
        frames = [shown["bytes"], noise(n, (16, 8 + n % 9)), shown["bytes"]]
        row["prompt"][0]["content"] = "<video>?"
        row["videos"] = [{"video": frames, "fps": 2.0, "min_pixels": 1}]
    write_table(tmp_path / "train.parquet", rows)
    job = image_job(tmp_path, model=model, **ENGINES[engine])
    job["data"]["maxPromptTokens"] = 64
    manifest = tiny_jobs.write_manifest(tmp_path, tmp_path, **job)
    if engine == "huggingface":
        calm = run_twice(manifest, *POINTS, seconds=600)
    else:
        calm = tiny_jobs.run_alone(manifest)
    run_folders.assert_trained(calm, 3, limit=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("ask", "huggingface"),
        ("look", "huggingface"),
        pytest.param("look", "vllm", marks=pytest.mark.vllm),
    ],
)
def test_a_conversation_about_an_image(run_twice, tmp_path: Path, name: str, engine: str) -> None:
    """Over ranks that share the tokens of a row (but with vLLM), with a tower that learns."""
    model, is_program = make_folder(tmp_path), name == "look"
    write_rows(tmp_path / "train.parquet", interaction_kwargs={"name": name, "query": "so"})
    (tmp_path / "users.py").write_text(PROGRAM if is_program else USER)
    user = {"name": name, "source": {"path": str(tmp_path / "users.py")}}
    user["interface"] = "openai" if is_program else "messages"
    spec = tiny_jobs.make_manifest(tmp_path)["spec"]
    job = image_job(
        tmp_path,
        agent={
            "interactions": [user],
            "toolSteps": 8,
            "turnTokens": 8 if is_program else 24,
            "toolRewards": "add",
        },
        rollout={
            **spec["rollout"],
            **ENGINES[engine].get("rollout", {}),
            "stopTokenIds": STOPS,
        },
        roles=ENGINES[engine]["roles"],
        model=model,
    )
    job["data"] |= {"maxPromptTokens": 32, "maxResponseTokens": 96}
    manifest = tiny_jobs.write_manifest(tmp_path, tmp_path, **job)
    points = ("rpc.act.answer.before@9=kill",) if is_program else ()
    calm = run_twice(manifest, *POINTS, *points, seconds=600)
    steps = run_folders.assert_trained(calm, 3, limit=1e-6)
    assert max(record["num_turns/max"] for record in steps) > 3
    if is_program:
        shown = [row["pictures"] for row in run_folders.rows(calm, 1)]
        assert max(record["num_contexts/max"] for record in steps) == 3
        assert max(map(len, shown)) == 5
        assert len({one["file"] for files in shown for one in files}) > 9


@pytest.mark.long
def test_a_tool_that_shows_a_row_a_part_of_its_image(run_twice, tmp_path: Path) -> None:
    """Over ranks that share the tokens of a row, with a tower that learns, and a critic apart."""
    model = make_folder(tmp_path, "seeing_caller")
    (tmp_path / "zoom.py").write_text(ZOOM)
    tool = {
        "name": "zoom",
        "description": "Shows a part of the image.",
        "parameters": {"type": "object", "properties": {"part": {"type": "integer"}}},
        "source": {"path": str(tmp_path / "zoom.py")},
    }
    spec = tiny_jobs.make_manifest(tmp_path)["spec"]
    stops = [len(NAMES) + number for number in range(len(ZOOMS))]
    job = image_job(
        tmp_path,
        algorithm=PPO,
        agent={"tools": [tool], "toolSteps": 4, "turnTokens": 24, "toolRewards": "add"},
        rollout={**spec["rollout"], "stopTokenIds": stops},
        roles={"actorRollout": SHARED, "critic": {"ranksPerReplica": 2, "colocateWith": "none"}},
        model=model,
    )
    job["data"] |= {"maxPromptTokens": 32, "maxResponseTokens": 96}
    manifest = tiny_jobs.write_manifest(tmp_path, tmp_path, **job)
    calm = run_twice(manifest, *POINTS, seconds=600)
    run_folders.assert_trained(calm, 3, limit=1e-6)
    shown = [row["pictures"] or [] for row in run_folders.rows(calm, 1)]
    assert max(map(len, shown)) > 1
    assert len({one["file"] for files in shown for one in files}) > 4


@pytest.mark.long
def test_a_teacher_sees_what_the_policy_saw(tmp_path: Path) -> None:
    """The policy itself says the same of each token, and one with other eyes does not."""
    make_folder(tmp_path)
    shutil.copytree(tmp_path / "model", tmp_path / "other")
    weights = load_file(tmp_path / "other" / "model.safetensors")
    vision = [name for name in weights if name.startswith("visual.")]
    assert vision
    changed = weights | {name: weights[name].roll(1, 0) for name in vision}
    save_file(changed, tmp_path / "other" / "model.safetensors", {"format": "pt"})
    found = {}
    for name in ("model", "other"):
        job = image_job(
            tmp_path,
            algorithm={"type": "distillation", "promptsPerStep": 4, "samplesPerPrompt": 2},
            reference={"teachers": [{"path": str(tmp_path / name), "dataSources": ["letters"]}]},
            roles={"actorRollout": SHARED},
            rewards=[],
            steps={"total": 1},
        )
        (tmp_path / f"by-{name}").mkdir()
        manifest = tiny_jobs.write_manifest(tmp_path / f"by-{name}", tmp_path, **job)
        rows = run_folders.rows(tiny_jobs.run_alone(manifest), 1, "advantages")
        found[name] = max(abs(row["advantage"]) for row in rows)
    assert found["model"] < 1e-5
    assert found["other"] > 1e-3


@pytest.mark.long
def test_rows_about_an_image_go_on_with_newer_weights(run_twice, tmp_path: Path) -> None:
    make_folder(tmp_path)
    spec = tiny_jobs.make_manifest(tmp_path)["spec"]
    job = image_job(
        tmp_path,
        rollout={**spec["rollout"], "maxStaleness": 2, "stopTokenIds": STOPS},
        roles={"actorRollout": {"ranksPerReplica": 2}, "rollout": {"replicas": 2}},
    )
    manifest = tiny_jobs.write_manifest(tmp_path, tmp_path, **job)
    calm = run_twice(manifest, *POINTS, seconds=600)
    first, *_ = (record for record in run_folders.metrics(calm) if record["step"])
    assert first["training/rollout_probs_diff_mean"] < 1e-6
    tables = [pq.read_table(step).to_pylist() for step in sorted((calm / "rollouts").iterdir())]
    versions = [{one["version"] for one in row["segments"]} for rows in tables for row in rows]
    assert max(map(len, versions)) > 1


@pytest.mark.long
@pytest.mark.vllm
def test_adapters_of_a_model_that_sees(tmp_path: Path) -> None:
    """Beside the weights in vLLM; a second job begins with those that the first has trained."""
    make_folder(tmp_path)
    lora = {"rank": 4, "targetModules": ["q_proj", "down_proj"]}
    for name, begun in (
        ("first", {}),
        ("second", {"path": str(tmp_path / "first/run/export/adapter")}),
    ):
        (tmp_path / name).mkdir()
        job = image_job(
            tmp_path,
            model={"path": str(tmp_path / "model"), "lora": {**lora, **begun}},
            optimizer={"learningRate": 0.05},
            rollout={**VLLM, "adapters": "beside"},
            roles={},
        )
        run = tiny_jobs.run_alone(tiny_jobs.write_manifest(tmp_path / name, tmp_path, **job))
        run_folders.assert_trained(run, 3)
    (part,) = {
        name.split(".layers.")[0]
        for name in load_file(run / "export/adapter/adapter_model.safetensors")
    }
    assert part == "base_model.model.model.language_model"
