import base64
import io
import json
import textwrap
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
import tiny_jobs
import torch
from hearing_models import (
    RATE,
    TOKEN,
    audio_form,
    features_of,
    processor_of,
    save_hearing_model,
    tone,
    tone_file,
)
from prompt_files import PromptFiles, good_row
from tiny_models import AUDIO

from ppojob_api.problem import ReasonCode
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.media import image_forms
from ppojob_trainer.data.media.images import audio_of, packed, packed_audio, unpacked
from ppojob_trainer.models.layout_checks import check_layouts
from ppojob_trainer.models.vision_tower import VisionTower

pytestmark = pytest.mark.processes

WAVE, SHORT = tone_file(440, 0.5), tone_file(300, 0.2)
LONG = tone_file(440, 1.2)
PIPED = bytearray(tone_file(440, 0.5, kind="FLAC"))
PIPED[21] &= 0xF0  # the number of its samples has 36 bits, and 0 says that nobody knows it
PIPED[22:26] = bytes(4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that hears audios of a second, with its tokenizer."""
    folder = tmp_path_factory.mktemp("hearing")
    save_hearing_model(folder / "model")
    return folder


def spoken(*parts: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": list(parts)}]


def test_prompts_and_features_are_those_of_the_models_processor(folder: Path, files: PromptFiles):
    """In every form that a row may have them in, and of every length."""
    (folder / "tone.flac").write_bytes(tone_file(440, 0.5, kind="FLAC"))
    path = str(folder / "tone.flac")
    array = {"array": tone(440, 0.5).astype(float).tolist(), "sampling_rate": RATE, "path": None}
    says = {"type": "text", "text": "?"}
    rows = [
        good_row("<audio>a<audio>", audios=[{"bytes": WAVE}, {"bytes": SHORT}]),
        good_row("<audio>?", audios=[path]),
        good_row("<audio>?", audios=array),
        {**good_row("x"), "prompt": spoken({"type": "audio", "audio_url": path}, says)},
        {**good_row("x"), "prompt": spoken({"type": "audio"}, says), "audios": [WAVE.hex()]},
        good_row("none"),
    ]
    rows[4]["audios"] = [path]
    processor = processor_of(folder / "model")
    table = files.table("a.parquet", rows[0])
    lines = files.lines("b.jsonl", *rows[1:])
    with files.open(table, lines, maxPromptTokens=256) as dataset:
        found = [dataset[number] for number in range(6)]
        assert dataset.warnings == []
    assert found[5].images == b""
    heard = [[audio_of(one) for one in unpacked(row.images)] for row in found]
    for row in heard[1:5]:  # FLAC has 16 bits a sample, and so has WAV
        np.testing.assert_allclose(row[0], tone(440, 0.5), atol=2**-15)
    for row, parts, said in (
        (0, 2, [{"type": "audio"}, {"type": "text", "text": "a"}, {"type": "audio"}]),
        (3, 1, [{"type": "audio"}, says]),
    ):
        text = processor.apply_chat_template(spoken(*said), add_generation_prompt=True)
        made = processor(text=text, audio=heard[row], sampling_rate=RATE, return_tensors="pt")
        assert made["input_ids"][0].tolist() == list(found[row].token_ids)
        assert list(found[row].token_ids).count(TOKEN) > parts
    assert found[1].token_ids == found[2].token_ids == found[3].token_ids == found[4].token_ids


@pytest.mark.parametrize("samples", [321, 479, 640, 641, 8000, 15999, 16000])
def test_an_audio_of_any_length_has_its_tokens_and_features(folder: Path, samples: int) -> None:
    audio = packed_audio(tone(440, 1.0)[:samples])
    form = audio_form(folder / "model")
    made = processor_of(folder / "model")(
        text=AUDIO, audio=[audio_of(audio)], sampling_rate=RATE, return_tensors="pt"
    )
    assert form.tokens_of(audio) == (TOKEN, made["input_ids"][0].tolist())
    assert form.tokens_of(audio)[1]
    tower = VisionTower(folder / "model", form, torch.device("cpu"), torch.float32)
    (said,) = tower.encode([audio])
    assert len(said) == len(form.tokens_of(audio)[1])
    ours = tower._process(audio)
    theirs = features_of(folder / "model", [audio])
    assert torch.equal(ours["pixel_values"], theirs["input_features"])
    assert torch.equal(ours["pixel_values"], made["input_features"])
    assert int(ours["frames"]) == int(made["feature_attention_mask"].sum())


def test_channels_are_averaged_and_then_the_pace_is_changed(files: PromptFiles) -> None:
    left, right = (tone(pitch, 0.5, 44_100)[:22_031] for pitch in (440, 300))
    both, file = np.stack([left, right], axis=1), io.BytesIO()
    soundfile.write(file, both, 44_100, format="WAV", subtype="FLOAT")
    expected = soxr.resample(both.mean(axis=1), 44_100, RATE, quality="HQ")
    expected = np.append(expected, np.float32(0.0))  # of 7,993 samples and a part
    array = {"array": both.T.tolist(), "sampling_rate": 44_100}
    url = f"data:audio/wav;base64,{base64.b64encode(file.getvalue()).decode()}"
    rows = [good_row("<audio>", audios=[one]) for one in ({"bytes": file.getvalue()}, array, url)]
    tables = [files.table(f"{n}.parquet", one) for n, one in enumerate(rows)]
    for table in tables:
        with files.open(table, maxPromptTokens=256) as dataset:
            assert dataset[0].images == packed([packed_audio(expected)])


def test_another_column_may_hold_the_audios(files: PromptFiles) -> None:
    table = files.table("a.parquet", good_row("<audio>", audio={"bytes": SHORT}))
    with files.open(table, audioKey="audio", maxPromptTokens=256) as dataset:
        assert len(unpacked(dataset[0].images)) == 1
    report = files.report(table, maxPromptTokens=256)
    assert report.errors == []
    with files.open(table, maxPromptTokens=256) as dataset:
        (told,) = map(str, dataset.warnings)
        assert "nothing from the column audios" in told


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"audios": [{"bytes": b"RIFF"}]}, "audios: got bytes that are not an audio: "),
        ({"audios": [{"bytes": tone_file(440, 0.5, kind="FLAC")[:2000]}]}, "audios: got "),
        (
            {"audios": [{"bytes": tone_file(440, 0.5, kind="OGG")[:-100]}]},
            "audios: got an audio of 0 seconds: too short for one token",
        ),
        (
            {"audios": ["data:audio/wav;base64,UklG?"]},
            'audios: got "data:audio/wav;base64,UklG?": ',
        ),
        ({"audios": [{"path": "nowhere.wav"}]}, 'audios: got "nowhere.wav": No such file'),
        ({"audios": [{"bytes": bytes(PIPED)}]}, "audios: got an audio of "),
        ({"audios": ["a\0.wav"]}, 'audios: got "a\\u0000.wav": it cannot be read; '),
        ({"audios": [7]}, "audios: got int: it is not an audio"),
        (
            {"audios": [{"bytes": LONG}]},
            "audios: got an audio of 1.2 seconds: the model takes at most 1 seconds; "
            "a shorter audio",
        ),
        (
            {"audios": [{"bytes": tone_file(440, 0.01)}]},
            "audios: got an audio of 0.01 seconds: too short ",
        ),
        (
            {"audios": [{"array": [0.1] * 900}]},
            "audios: got null: the sampling_rate of the array is required",
        ),
        ({"audios": [{"array": [[[0.1]]], "sampling_rate": RATE}]}, "audios: got an array: it is"),
        (
            {"audios": [{"array": [float("nan")] * 900, "sampling_rate": RATE}]},
            "audios: got a sample that is not finite: ",
        ),
        ({"audios": [{"bytes": WAVE}] * 2}, "prompt: got 1 mark <audio>: the row has 2 audios; "),
        ({"prompt": spoken({"type": "image", "image": "a.png"})}, "prompt[0].content[0]: got "),
        ({"prompt": spoken("a"), "audios": None}, 'prompt[0].content[0]: got "a": parts of '),
        (
            {"prompt": spoken({"type": "audio", "audio": "a.wav"}), "audios": ["b.wav"]},
            "prompt: got 1 audio in parts of messages: the row has others in audios; ",
        ),
    ],
)
def test_what_is_no_audio_is_refused(files: PromptFiles, changes: dict[str, object], told: str):
    row = {**good_row("<audio>"), **changes}
    (error,) = files.errors(files.table("a.parquet", row), maxPromptTokens=256)
    assert error.startswith(f"a.parquet:0:{told}")


def test_the_template_in_the_docs_writes_what_transformers_does(folder: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "data-and-rewards.md").read_text()
    told = textwrap.dedent(page.partition("  ```jinja\n")[2].partition("  ```\n")[0])
    heard, asked = {"type": "audio"}, {"type": "text", "text": " What? \n"}
    answered = {"role": "assistant", "content": "It <b>."}
    chats = [
        spoken(heard, asked),
        [{"role": "system", "content": "Be brief."}, *spoken(asked, heard, heard)],
        [*spoken(heard), answered, {"role": "user", "content": "And?\n"}, answered, *spoken(heard)],
    ]
    with (
        ChatTokenizer(folder / "model") as theirs,
        ChatTokenizer(folder / "model", chat_template=told) as ours,
    ):
        for is_open in (True, False):
            texts = ours.render_chats(chats, open_turn=is_open)
            assert texts == theirs.render_chats(chats, open_turn=is_open)
            assert all(isinstance(one, str) for one in texts)


def test_folders_with_unknown_settings_hear_nothing(tmp_path: Path) -> None:
    save_hearing_model(tmp_path)
    path = tmp_path / "preprocessor_config.json"
    told = json.loads(path.read_text())
    assert image_forms.why_no_media(tmp_path) == ""
    for changes in ({"dither": 0.1}, {"chunk_length": 2}, {"feature_extractor_type": "Other"}):
        path.write_text(json.dumps(told | changes))
        assert image_forms.read_form(tmp_path) is None
        assert "WhisperFeatureExtractor" in image_forms.why_no_media(tmp_path)
    path.unlink()  # as transformers 5 writes a whole processor
    (tmp_path / "processor_config.json").write_text(json.dumps({"feature_extractor": told}))
    assert image_forms.read_form(tmp_path) is not None


def test_what_is_said_of_a_vision_tower_and_of_images_has_no_effect(folder: Path) -> None:
    """An encoder of audios stays as it is. Who reads the same tokens has to hear alike."""
    data = tiny_jobs.make_manifest(folder)["spec"]["data"] | {"maxImagePixels": 4000}
    model = {"path": str(folder / "model"), "freezeVisionTower": False}
    spec = tiny_jobs.config_of(folder, data=data, model=model).spec
    fields = ["spec.model.freezeVisionTower", "spec.data.maxImagePixels"]
    found = [(one.where, one.reason_code) for one in check_layouts(spec)]
    assert found == [(field, ReasonCode.NO_EFFECT) for field in fields]
    assert image_forms.why_no_images(spec)("tiny") == ""
    assert not image_forms.all_take_images(spec)  # no tool shows it images
