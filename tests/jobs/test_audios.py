from pathlib import Path

import pytest
import run_folders
import tiny_jobs
import torch
from hearing_models import assert_decoder_alone_learnt, tone_file
from media_jobs import POINTS, PPO, SHARED, VLLM, media_job, row_of, write_table
from safetensors.torch import load_file, save_file
from seeing_models import whole_class
from tiny_models import image

PITCHES = {"low": 200, "middle": 900, "high": 4000}
COLORS = ("red", "green", "blue")
HEARD = {"audioKey": "audio", "maxPromptTokens": 160}
BY_HUGGINGFACE = {"algorithm": PPO, "roles": {"actorRollout": SHARED}}


def write_rows(folder: Path, count: int) -> None:
    """Rows that ask for the pitch of a tone; tones are of several lengths and forms."""
    rows = []
    for n in range(count):
        name, seconds = list(PITCHES)[n % 3], 0.2 + n % 9 / 20
        audio = tone_file(PITCHES[name], seconds, (16_000, 22_050)[n % 2], ("WAV", "FLAC")[n % 2])
        rows.append(row_of(n, "<audio>?", name, audio=[{"bytes": audio, "path": None}]))
    write_table(folder / "train.parquet", rows)


def write_rows_of_both(folder: Path, count: int) -> None:
    """Rows with a tone, with a square, and with both."""
    rows = []
    for n in range(count):
        color, pitch = COLORS[n % 3], list(PITCHES.values())[n % 3]
        asked = ("<audio>?", "<image>?", "<image>?<audio>", "<audio><image>")[n % 4]
        audio = {"bytes": tone_file(pitch, 0.2 + n % 9 / 4), "path": None}
        seen = {"bytes": image(color, (16, 8 + n % 5 * 8)), "path": None}
        shown = {"audios": [audio] * ("<audio>" in asked), "images": [seen] * ("<image>" in asked)}
        rows.append(row_of(n, asked, color, **shown))
    write_table(folder / "train.parquet", rows)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        pytest.param("hearing", BY_HUGGINGFACE),
        pytest.param("hearing", {"rollout": VLLM}, marks=[pytest.mark.vllm, pytest.mark.long]),
        pytest.param("omni 2.5", BY_HUGGINGFACE, marks=pytest.mark.long),
        pytest.param("omni 3", {"rollout": VLLM}, marks=[pytest.mark.vllm, pytest.mark.long]),
    ],
    ids=["huggingface", "vllm", "omni_huggingface", "omni_vllm"],
)
def test_a_killed_job_with_audios_ends_as_an_undisturbed_one(run_twice, tmp_path, kind, changes):
    """Over ranks that share tokens, with a critic that hears too; and undisturbed by vLLM."""
    tiny_jobs.make_tiny_folder(tmp_path, 0.1, kind)
    if kind == "hearing":
        write_rows(tmp_path, 24)
        job = media_job(tmp_path, HEARD, **changes)
    else:
        write_rows_of_both(tmp_path, 24)
        job = media_job(tmp_path, {"maxPromptTokens": 240}, **changes)
    manifest = tiny_jobs.write_manifest(tmp_path, tmp_path, **job)
    if "rollout" in changes:
        calm = tiny_jobs.run_alone(manifest)
    else:
        calm = run_twice(manifest, *POINTS, seconds=600)
    assert_decoder_alone_learnt(tmp_path / "model", calm, steps=3)
    model_type = {"hearing": "qwen2_audio", "omni 2.5": "qwen2_5_omni", "omni 3": "qwen3_omni_moe"}
    whole = whole_class(model_type[kind]).from_pretrained(calm / "export")
    assert kind != "hearing" or whole.dtype == torch.float32
    assert kind != "omni 2.5" or whole.speaker_map


def tell_apart(path: Path) -> None:
    """Let an encoder that nobody has trained say of two tones what differs, and little else."""
    weights = load_file(path)
    for name, weight in weights.items():
        if name.startswith("audio_tower.") and name.endswith("bias"):
            weight.zero_()
        if name == "multi_modal_projector.linear.weight":
            weight.mul_(20.0)
    save_file(weights, path, {"format": "pt"})


@pytest.mark.long
def test_a_job_learns_what_it_hears(tmp_path: Path):
    """By GRPO: of three pitches no answer that is deaf to them gets more than a third."""
    tiny_jobs.make_tiny_folder(tmp_path, 0.0, "hearing")
    tell_apart(tmp_path / "model" / "model.safetensors")
    write_rows(tmp_path, 48)
    job = media_job(
        tmp_path,
        {**HEARD, "maxResponseTokens": 8},
        algorithm={"type": "grpo", "promptsPerStep": 12, "samplesPerPrompt": 8},
        optimizer={"learningRate": 3e-3},
        steps={"total": 60},
        checkpoint={"every": 60},
    )
    run = tiny_jobs.run_alone(tiny_jobs.write_manifest(tmp_path, tmp_path, **job))
    scores = [one["critic/score/mean"] for one in run_folders.metrics(run) if one["step"]]
    assert scores[0] < 0.1
    assert sum(scores[-5:]) / 5 > 0.5
