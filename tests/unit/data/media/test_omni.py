import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_jobs
import torch
import transformers
from hearing_models import tone, tone_file
from omni_models import (
    FILMED,
    HEARD,
    SHOWN,
    SPEAKING,
    TOKEN,
    heard_by,
    omni_form,
    omni_inputs,
    save_omni_model,
)
from prompt_files import PromptFiles, good_row
from refused_jobs import edit
from tiny_models import noise
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from video_reference import frames_of

from ppojob_api.problem import ReasonCode
from ppojob_trainer.data.media.image_forms import all_take_images, read_form, why_no_media
from ppojob_trainer.data.media.images import (
    audio_of,
    is_image,
    opened,
    packed,
    packed_audio,
    packed_clip,
    unpacked,
)
from ppojob_trainer.models.layout_checks import check_layouts
from ppojob_trainer.models.vision_tower import VisionTower

pytestmark = pytest.mark.processes

WAVE, LONG = tone_file(440, 0.5), tone_file(300, 1.9)


@pytest.fixture(scope="module", params=SPEAKING)
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder as the hub's, of a model that hears audios of three seconds."""
    folder = tmp_path_factory.mktemp("omni")
    save_omni_model(folder / "model", request.param, speaks=True)
    return folder


def processor_of(folder: Path) -> transformers.ProcessorMixin:
    """transformers' processor, whose videos are a matter of torchvision and not tried here."""
    is_third = "qwen3_omni_moe" in (folder / "config.json").read_text()
    processor = object.__new__(
        transformers.Qwen3OmniMoeProcessor if is_third else transformers.Qwen2_5OmniProcessor
    )
    processor.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    processor.feature_extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    processor.image_processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
    processor.video_processor = SimpleNamespace(merge_size=2, temporal_patch_size=2)
    for kind in ("audio", "image", "video"):
        setattr(processor, f"{kind}_token", f"<|{kind.upper()}|>")
    return processor


def test_prompts_are_those_of_the_models_processor(folder: Path, files: PromptFiles) -> None:
    """Of audios and images in any order; a mark of what the row has none of is text."""
    images = [{"bytes": noise(1, (40, 20))}, {"bytes": noise(2, (16, 33))}]
    audios = [{"bytes": LONG}, {"bytes": WAVE}]
    rows = [
        good_row("<audio>a<image>b<audio><image>", audios=audios, images=images),
        good_row("<image><audio>?", audios=audios[:1], images=images[:1]),
        good_row("<audio>?<image>", audios=audios[1:]),
        good_row("none"),
    ]
    processor = processor_of(folder / "model")
    with files.open(files.table("a.parquet", *rows), maxPromptTokens=500) as found:
        taken = [found[number] for number in range(len(rows))]
    for row, told in zip(taken, rows, strict=True):
        seen = [opened(one) for one in unpacked(row.images) if is_image(one)]
        heard = [one for one in map(audio_of, unpacked(row.images)) if one is not None]
        assert len(seen) + len(heard) == len(unpacked(row.images))
        said = told["prompt"][0]["content"]
        if heard:
            said = said.replace("<audio>", "<|audio_bos|><|AUDIO|><|audio_eos|>")
        if seen:
            said = said.replace("<image>", "<|vision_bos|><|IMAGE|><|vision_eos|>")
        text = processor.tokenizer.apply_chat_template(
            [{"role": "user", "content": said}], add_generation_prompt=True, tokenize=False
        )
        made = processor(text=text, images=seen or None, audio=heard or None)
        assert made["input_ids"][0] == list(row.token_ids)
    assert "You are a helpful assistant." in processor.tokenizer.decode(taken[3].token_ids)


@pytest.mark.parametrize("samples", [321, 479, 641, 3200, 6399, 6401, 31_999, 32_001, 48_000])
def test_an_audio_of_any_length_has_its_tokens_and_features(folder: Path, samples: int) -> None:
    """Those of all of its pieces, of 40 or of 100 frames here, to the bit."""
    audio = packed_audio(tone(440, 3.0)[:samples])
    form, model = omni_form(folder / "model"), folder / "model"
    made = processor_of(model)(text="<|AUDIO|>", audio=[audio_of(audio)])
    assert form.tokens_of(audio) == (TOKEN, made["input_ids"][0])
    tower = VisionTower(model, form, torch.device("cpu"), torch.float32)
    (said,) = tower.encode([audio])
    assert len(said) == len(form.tokens_of(audio)[1])
    ours, (theirs, mask) = tower._process(audio), heard_by(model, [audio])
    frames = int(ours["frames"])
    assert frames == int(mask.sum())
    assert torch.equal(ours["pixel_values"][..., :frames], theirs[..., :frames])


@pytest.mark.parametrize(("kind", "pace"), [("2.5", 3), ("2.5", 25), ("3", 13)])
def test_positions_are_those_of_the_thinker(tmp_path: Path, kind: str, pace: int) -> None:
    """Of frames at any pace; of Qwen3-Omni those at whole positions, which transformers rounds."""
    thinker = save_omni_model(tmp_path, kind)
    edit(tmp_path / "config.json", {"position_id_per_seconds": pace})
    thinker.config.position_id_per_seconds = pace
    form = omni_form(tmp_path)
    assert form.video is not None
    draw, is_third = random.Random(pace), kind == "3"
    for trial in range(16):
        ids: list[int] = [5] * draw.randint(1, 3)
        shown: list[bytes] = []
        paces: list[float] = []
        for shape in draw.choices((HEARD, SHOWN, FILMED), k=draw.randint(1, 5)):
            ids += [*shape, *[7] * draw.randint(0, 3)]
            if shape is HEARD:
                shown.append(packed_audio(tone(300, draw.uniform(0.03, 2.9))))
            elif shape is SHOWN:
                shown.append(noise(trial, (draw.randint(8, 30), draw.randint(8, 30))))
            else:
                # Of the last two the order of products decides where a clip is.
                drawn = (0.5, 1.0, 2.0) if is_third else (draw.uniform(0.3, 7.0), 0.6, 1.2)
                fps, count = draw.choice(drawn), draw.randint(1, 9)
                times = [n / fps for n in range(count)]
                frames = frames_of(count, (8 * draw.randint(1, 2), 8 * draw.randint(1, 3)))
                shown += map(packed_clip, form.video.clips(frames, times, fps))
                paces.append(2 / fps)
        whole = torch.tensor([form.expanded(ids, packed(shown))])
        given = omni_inputs(tmp_path, whole, packed(shown))
        heard = given.get("feature_attention_mask")
        expected, _ = thinker.get_rope_index(
            whole,
            given.get("image_grid_thw"),
            given.get("video_grid_thw"),
            given["attention_mask"],
            audio_seqlens=None if heard is None else heard.sum(-1),
            second_per_grids=torch.tensor(paces),
        )
        assert form.positions(whole[0].tolist(), packed(shown)) == expected[:, 0].tolist()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"audios": [{"bytes": tone_file(440, 3.2)}]},
            "audios: got an audio of 3.2 seconds: the model takes at most 3 seconds; ",
        ),
        ({"audios": [{"bytes": WAVE}] * 2}, "prompt: got 1 mark <audio>: the row has 2 audios; "),
        (
            {"prompt": [{"role": "user", "content": [{"type": "video", "video": "a.mp4"}]}]},
            "prompt[0].content[0]: got ",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused(files: PromptFiles, changes: dict[str, object], told: str):
    row = {**good_row("<audio>"), **changes}
    (error,) = files.errors(files.table("b.parquet", row), maxPromptTokens=500)
    assert error.startswith(f"b.parquet:0:{told}")


def test_columns_that_no_mark_shows_are_told_of(files: PromptFiles) -> None:
    """Each kind by itself: the row shows an image, and of its audio nothing."""
    row = good_row("<image>", images=[{"bytes": noise(1)}], audio={"bytes": WAVE})
    row["prompt"][0]["content"] += "<audio>"
    with files.open(files.table("c.parquet", row), maxPromptTokens=500) as dataset:
        (told,) = map(str, dataset.warnings)
    assert "nothing from the column audios" in told


@pytest.mark.parametrize("kind", SPEAKING)
def test_folders_with_unknown_settings_show_nothing(tmp_path: Path, kind: str) -> None:
    save_omni_model(tmp_path, kind)
    path = tmp_path / "preprocessor_config.json"
    told = json.loads(path.read_text())
    assert why_no_media(tmp_path) == ""
    for changes in ({"dither": 0.1}, {"feature_extractor_type": "Other"}):
        path.write_text(json.dumps(told | changes))
        assert read_form(tmp_path) is None
        assert "WhisperFeatureExtractor" in why_no_media(tmp_path)
    path.write_text(json.dumps(told))
    config = json.loads((tmp_path / "config.json").read_text())
    audio = config["audio_config"]
    positions = {"max_source_positions": 12}  # fewer than a piece has
    for changes in ({"n_window": 41}, positions):
        edit(tmp_path / "config.json", {"audio_config": {**audio, **changes}})
        assert read_form(tmp_path) is None


def test_towers_stay_as_they_are(folder: Path) -> None:
    """How large images are seen may be said."""
    data = tiny_jobs.make_manifest(folder)["spec"]["data"] | {"maxImagePixels": 4000}
    model = {"path": str(folder / "model"), "freezeVisionTower": False}
    spec = tiny_jobs.config_of(folder, data=data, model=model).spec
    (found,) = check_layouts(spec)
    assert (found.where, found.reason_code) == (
        "spec.model.freezeVisionTower",
        ReasonCode.NO_EFFECT,
    )
    assert all_take_images(spec)  # tools may show it images
