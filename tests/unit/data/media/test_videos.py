import json
import struct
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from prompt_files import PromptFiles, good_row
from seeing_models import TIMED, VIDEOS, form_of, save_seeing_model
from tiny_models import IMAGE, NAMES, PATCH, VIDEO, VIDEO_TEMPLATE, image, save_tokenizer
from video_reference import frames_of, own_function, size_of_frames

from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.media.image_cells import BadImage
from ppojob_trainer.data.media.image_forms import read_form
from ppojob_trainer.data.media.image_grids import QwenImages
from ppojob_trainer.data.media.images import clip_of, opened, packed, unpacked
from ppojob_trainer.data.media.video_cells import decode, read_videos
from ppojob_trainer.data.media.video_forms import QwenVideo

pytestmark = pytest.mark.processes

CLIP = NAMES.index(VIDEO)
SMALL = frames_of(4, (24, 16))
RED = image("red")
UNIT = 2 * PATCH


def as_it_is(size: tuple[int, int], count: int) -> tuple[int, int]:
    return size


def saved(folder: Path, kind: str) -> Path:
    save_seeing_model(folder / "model", kind)
    save_tokenizer(folder / "model", template=VIDEO_TEMPLATE)
    return folder / "model"


def cell(frames: list[bytes], **told: object) -> dict[str, object]:
    return {"video": [{"bytes": one} for one in frames], "min_pixels": 1, **told}


def test_a_mark_becomes_a_run_of_tokens(tmp_path: Path) -> None:
    """Between images in any order; marks of what a row has none of are text."""
    model = saved(tmp_path, "qwen2_5_vl")
    rows = [
        good_row("a<image><video>b<video>", images=[{"bytes": RED}], videos=[cell(SMALL)] * 2),
        good_row("<image>?<video>", images=None, videos=[cell(frames_of(5, (16, 16)))]),
    ]
    with ChatTokenizer(model) as chat:
        files = PromptFiles(tmp_path, chat)
        table = files.table("a.parquet", *rows)
        with files.open(table) as dataset:
            read = dataset.rows([0, 1])
            first, second = (chat.decode(row.token_ids) for row in read)
            clips = [clip_of(one) for one in unpacked(dataset[0].images)]
            (warned,) = dataset.warnings
        assert f"a~~~~{VIDEO * 12}b{VIDEO * 12}\n" in first
        assert f"<image>?{VIDEO * 12}\n" in second
        assert [None if clip is None else clip.number for clip in clips] == [None, 0, 1, 0, 1]
        assert [opened(one).tobytes() for one in clips[1].frames] == [
            opened(one).tobytes() for one in SMALL[:2]
        ]
        assert "<image>: the model gets the placeholder only" in warned
        length = max(len(row.token_ids) for row in read)
        assert files.report(table, maxPromptTokens=length).train_rows == 2
        assert files.report(table, maxPromptTokens=length - 1).train_rows == 1


@pytest.mark.parametrize(("count", "fps"), [(4, 2.0), (3, 0.7), (1, 30.0)])
def test_clips_are_told_their_time_as_the_processor_does(tmp_path: Path, count: int, fps: float):
    path = "qwen3_vl/processing_qwen3_vl.py"
    reference = SimpleNamespace(
        video_processor=SimpleNamespace(merge_size=2, temporal_patch_size=2),
        video_token=VIDEO,
        vision_start_token="",
        vision_end_token="",
    )
    times = own_function(path, "_calculate_timestamps")
    reference._calculate_timestamps = lambda *told: times(None, *told)
    whole = count + count % 2  # as qwen-vl-utils hands them over
    told = SimpleNamespace(fps=fps, frames_indices=list(range(whole)))
    grid = torch.tensor([[whole // 2, 4, 6]])
    given = {"video_grid_thw": grid, "video_metadata": [told]}
    expected = own_function(path, "replace_video_token")(reference, given, 0)
    model = saved(tmp_path, "qwen3_vl")
    with ChatTokenizer(model) as chat:
        files = PromptFiles(tmp_path, chat)
        row = good_row("Look:<video>!", videos=[cell(frames_of(count, (24, 16)), fps=fps)])
        with files.open(files.table("a.parquet", row)) as dataset:
            assert f"Look:{expected}!" in chat.decode(dataset[0].token_ids)


SIZES = [(2, 16, 16), (6, 40, 20), (8, 9, 35), (8, 200, 150), (4, 64, 3), (2, 100, 99)]


@pytest.mark.parametrize(("count", "width", "height"), SIZES)
def test_frames_are_as_large_as_the_processor_has_them(tmp_path, count, width, height):
    for kind in ("qwen2_vl", "qwen3_vl"):
        is_timed = kind in TIMED
        form = form_of(saved(tmp_path / kind, kind))
        name = "qwen3_vl/video_processing_qwen3_vl.py"
        limits = {"min_pixels": 4 * PATCH**2, "max_pixels": 128 * PATCH**2}
        if not is_timed:
            name = name.replace("3", "2")
            limits["max_pixels"] = 64 * PATCH**2
        counted = {"num_frames": count} if is_timed else {}
        resize = own_function(name, "smart_resize")
        down, across = resize(height=height, width=width, factor=UNIT, **limits, **counted)
        assert form.video is not None
        assert form.video.target_size(count, width, height) == (across, down)


@pytest.mark.parametrize(
    ("count", "width", "height", "told"),
    [
        (4, 72, 40, {}),
        (5, 99, 71, {}),
        (4, 72, 40, {"min_pixels": 1, "max_pixels": 4 * UNIT**2}),
        (4, 72, 40, {"resized_width": 40, "resized_height": 15}),
        (1, 30, 30, {"resized_width": 3, "resized_height": 3}),
        (3, 3, 300, {"min_pixels": 1}),
        (3, 400, 300, {"total_pixels": 300 * UNIT**2}),
    ],
)
def test_frames_of_lists_are_as_large_as_qwen_vl_utils_has_them(count, width, height, told):
    video = QwenVideo(CLIP, UNIT, 2, 1, 10**9, None, None)
    form = QwenImages(NAMES.index(IMAGE), "Qwen2", 1, 10**9, PATCH, 2, video)
    frames = [{"bytes": one} for one in frames_of(count, (width, height))]
    (clips,) = read_videos({"video": frames, **told}, form)
    assert form.size_of(clips[0]) == size_of_frames(told, count, width, height, UNIT)


def test_processors_may_bound_all_frames(tmp_path: Path) -> None:
    """By `cap_pixels_per_frame` of transformers."""
    frames = frames_of(4, (64, 64))
    for kind, most in (("qwen2_vl", 10), ("qwen3_vl", 5)):
        folder = saved(tmp_path / kind, kind)
        settings = {"cap_pixels_per_frame": True, "max_video_tokens": 20 if most == 10 else 5}
        size = {"shortest_edge": 4 * PATCH**2, "longest_edge": 1000 * PATCH**2}
        told = json.dumps({**settings, "size": size})
        (folder / "video_preprocessor_config.json").write_text(told)
        bound = read_form(folder)
        (clips,) = read_videos(cell(frames), bound)
        width, height = bound.size_of(clips[0])
        assert (most - 4) * UNIT**2 < width * height <= most * UNIT**2


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl"])
@pytest.mark.parametrize("fps", [2.0, 0.5, 29.97])
def test_positions_go_on_from_the_highest(tmp_path: Path, kind: str, fps: float):
    """Within a video they are transformers'.

    Behind one Qwen's own code, verl and vLLM go on from the highest; transformers 5 does not count
    the times there.
    """
    path = "qwen2_5_vl/modeling_qwen2_5_vl.py"
    within = own_function(path, "get_vision_position_ids")
    form = form_of(saved(tmp_path, kind))
    (clips,) = read_videos(cell(frames_of(12, (24, 16)), fps=fps), form)
    ids = form.expanded([5, 6, CLIP, 7, 8], packed(clips))
    interval = 1.0
    if kind == "qwen2_5_vl":
        interval = 2 * torch.tensor([2 / fps])[0]
    seen = within(None, 2, torch.tensor([6, 4, 6]), 1, 2, interval)
    behind = int(seen.max()) + 1 + torch.arange(2)
    expected = torch.cat([torch.arange(2).expand(3, 2), seen, behind.expand(3, 2)], dim=1)
    assert form.positions(ids, packed(clips)) == expected.tolist()


def written_file(path: Path) -> Path:
    """A video of two seconds whose n-th frame is as red as its number."""
    code = cv2.VideoWriter.fourcc(*"mp4v")
    writer = cv2.VideoWriter(str(path), code, 10.0, (32, 32))
    for number in range(20):
        blue_green_red = np.full((32, 32, 3), (0, 0, 12 * number), np.uint8)
        writer.write(blue_green_red)
    writer.release()
    return path


@pytest.mark.parametrize(
    ("told", "places"),
    [
        ({}, [0, 6, 13, 19]),
        ({"fps": 4}, [0, 3, 5, 8, 11, 14, 16, 19]),
        ({"fps": 4, "max_frames": 5}, [0, 6, 13, 19]),
        ({"fps": 1, "min_frames": 2}, [0, 19]),
        ({"nframes": 6}, [0, 4, 8, 11, 15, 19]),
        ({"video_start": 0.5, "video_end": 1.5}, [5, 8, 12, 15]),
        ({"video_start": 1.5, "video_end": 9.0, "fps": 5}, [15, 16, 18, 19]),
    ],
)
@pytest.mark.parametrize("is_path", [True, False])
def test_frames_of_a_file_are_those_of_qwen_vl_utils(tmp_path: Path, told, places, is_path: bool):
    file = written_file(tmp_path / "a.mp4")
    form = form_of(saved(tmp_path, "qwen3_vl"))
    content = f"file://{file}" if is_path else file.read_bytes()
    (packed_clips,) = read_videos({"video": content, **told}, form)
    clips = [clip_of(one) for one in packed_clips]
    frames = [opened(one) for clip in clips for one in clip.frames]
    found = [np.asarray(one)[:, :, 0].mean() / 12 for one in frames]
    assert np.abs(np.array(found) - places).max() < 0.5
    pairs = zip(places[::2], places[1::2], strict=True)
    assert [clip.text for clip in clips] == [
        f"<{(first / 10 + last / 10) / 2:.1f} seconds>" for first, last in pairs
    ]


@pytest.mark.parametrize(
    ("told", "refused"),
    [
        ({"video_start": 1.5, "video_end": 1.0}, "0 frames are between video_start and video_end"),
        ({"video_start": 0, "video_end": 0}, "video_end sets which frames"),
        ({"nframes": 4, "fps": 2.0}, "both set the number"),
        ({"nframes": 40}, "40 frames are requested, and it has 20"),
    ],
)
def test_parts_that_a_file_does_not_have_are_refused(tmp_path: Path, told, refused: str):
    file = str(written_file(tmp_path / "a.mp4"))
    with pytest.raises(BadImage, match=refused):
        decode(file, told, as_it_is)


def test_a_file_has_the_frames_that_are_in_it(tmp_path: Path) -> None:
    """Matroska tells the length of its audio, of which OpenCV makes a number of frames."""
    content = written_file(tmp_path / "a.mkv").read_bytes()
    length = b"\x44\x89\x88"
    assert content.count(length + struct.pack(">d", 2000.0)) == 1
    longer = content.replace(length + struct.pack(">d", 2000.0), length + struct.pack(">d", 2200.0))
    assert decode(longer, {}, as_it_is) == decode(content, {}, as_it_is)
    with pytest.raises(BadImage, match=r"it is truncated: \d+ of 20 frames can be read"):
        decode(content[: len(content) // 2], {}, as_it_is)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"videos": [cell([])]}, "videos: got 0 frames: not a video; "),
        ({"videos": [{"fps": 2.0}]}, "videos: got a struct without video: "),
        ({"videos": [cell(SMALL, fps=1e-300)]}, "videos: got 1e-300: fps sets which frames"),
        ({"videos": [cell([*SMALL, RED])]}, "videos: got 16 by 16 and 24 by 16: frames of a video"),
        ({"videos": [cell([b"\x89PNG"] * 2)]}, "videos: got bytes that are not an image: "),
        ({"videos": [cell(SMALL, fps=0)]}, "videos: got 0: fps sets which frames"),
        ({"videos": [cell(SMALL, video_start=2.0)]}, "videos: got video_start: not in"),
        ({"videos": [{"video": "nowhere.mp4"}]}, 'videos: got "nowhere.mp4": no such file; '),
        ({"videos": [{"video": b"no video"}]}, "videos: got bytes of a video: 0 frames"),
        ({"videos": [7]}, "videos: got int: it is not a video; "),
        ({"videos": [cell(SMALL)] * 2}, "prompt: got 1 mark <video>: the row has 2 videos; "),
        ({"videos": [cell(SMALL)], "prompt": "<video>"}, "prompt: got text: the row has 1 video"),
    ],
)
def test_what_is_no_row_with_videos_is_refused(tmp_path: Path, changes, told: str):
    with ChatTokenizer(saved(tmp_path, "qwen2_vl")) as chat:
        files = PromptFiles(tmp_path, chat)
        (line,) = files.errors(files.table("a.parquet", {**good_row("<video>?"), **changes}))
        assert line.startswith(f"a.parquet:0:{told}")


def test_videos_are_shown_in_front_of_answers_by_models_that_have_them(tmp_path: Path) -> None:
    asked, said = {"role": "user", "content": "<video>?"}, {"role": "assistant", "content": "a"}
    row = {"prompt": [asked, said], "videos": [cell(SMALL)]}
    later = {"prompt": [{**asked, "content": "?"}, said, asked, said], "videos": [cell(SMALL)]}
    with ChatTokenizer(saved(tmp_path, "qwen2_vl")) as chat:
        files = PromptFiles(tmp_path, chat)
        assert files.errors(files.table("a.parquet", row), given="sft") == []
        (line,) = files.errors(files.table("b.parquet", later), given="sft")
        assert line.startswith("b.parquet:0:prompt: got <video> after an answer: not in this")
    with ChatTokenizer(saved(tmp_path / "glm", "glm4v")) as chat:
        assert "glm4v" not in VIDEOS
        files = PromptFiles(tmp_path, chat)
        seen = good_row("<video>", videos=[cell(SMALL)])
        (line,) = files.errors(files.table("c.parquet", seen))
        assert line.startswith("c.parquet:0:videos: got 1 video: this model takes no videos; ")
        assert IMAGE not in line
