import base64
import io
import json
import shutil
from pathlib import Path

import pytest
import tiny_jobs
from PIL import Image
from prompt_files import PromptFiles, good_row
from seeing_models import SEEING, save_seeing_model
from tiny_models import IMAGE, NAMES, PATCH, SEEING_TEMPLATE, image, save_tokenizer

from ppojob_api.problem import ReasonCode
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.checks import check_files
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.media.image_forms import all_take_images, why_no_images
from ppojob_trainer.data.media.images import opened, packed, unpacked, with_parts
from ppojob_trainer.data.row_checks import RowAgent, RowAgents
from ppojob_trainer.models.layout_checks import check_layouts

pytestmark = pytest.mark.processes

RED, WIDE = image("red"), image("blue", (40, 20))
TOKEN = NAMES.index(IMAGE)


def greys_of_32_bits(mode: str) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (8, 8), 200).save(file, "TIFF")
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer of a model that takes a token for each eight pixels of a side."""
    save_tokenizer(tmp_path / "model", template=SEEING_TEMPLATE)
    config = {"image_token_id": TOKEN, "vision_config": {}}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    processor = {"patch_size": PATCH, "size": {"shortest_edge": 64, "longest_edge": 1024}}
    (tmp_path / "model" / "preprocessor_config.json").write_text(json.dumps(processor))
    return tmp_path


def test_marks_become_as_many_tokens_as_the_images_have(folder: Path, files: PromptFiles) -> None:
    (folder / "wide.png").write_bytes(WIDE)
    path = str(folder / "wide.png")
    rows = [
        good_row("a <image>b<image>", images=[{"bytes": RED, "path": None}, {"path": path}]),
        good_row("<image>", images=[{"bytes": WIDE, "path": "unread.png", "image": None}]),
        good_row("no image", images=[]),
    ]
    lines = files.lines("b.jsonl", good_row("<image>!", images=[{"image": f"file://{path}"}]))
    with files.open(files.table("a.parquet", *rows), lines) as dataset:
        found = [dataset[number] for number in range(4)]
        assert dataset.warnings == []
    one, two, three, four = (files.chat.decode(row.token_ids) for row in found)
    assert one.count(IMAGE) == 2 * 2 + 2 * 5
    assert "a ~~~~b~~~" in one
    assert two.count(IMAGE) == four.count(IMAGE) == 2 * 5
    assert IMAGE not in three
    assert [row.images for row in found] == [
        packed([RED, WIDE]),
        packed([WIDE]),
        b"",
        packed([WIDE]),
    ]
    assert found[0].prompt == rows[0]["prompt"]
    dropped = files.report(files.folder / "a.parquet", maxPromptTokens=30)
    assert dropped.train_rows == 2
    (cut,) = files.errors(
        files.folder / "a.parquet", maxPromptTokens=30, overlongPrompts="truncate_left"
    )
    assert "longer than spec.data.maxPromptTokens" in cut
    assert cut.endswith("overlongPrompts: drop")  # nobody cuts an image


def test_images_are_made_as_large_as_rows_and_the_job_say(files: PromptFiles) -> None:
    """As qwen-vl-utils has it: by bicubic splines, to whole units of what the model sees."""
    drawn = Image.effect_noise((100, 60), 80).convert("RGB")
    file = io.BytesIO()
    drawn.save(file, "PNG")
    held = {"bytes": file.getvalue(), "path": None}
    cells = [
        held,
        {**held, "max_pixels": 1024},
        {**held, "resized_width": 30, "resized_height": 17},
        {"bytes": RED, "min_pixels": 600},
        {"bytes": RED},
        {"path": f"data:image/png;base64,{base64.encodebytes(RED).decode()}"},  # in lines
    ]
    table = files.table("a.parquet", *(good_row("<image>", images=[one]) for one in cells))
    found = {}
    for most in (None, 512):
        with files.open(table, maxImagePixels=most) as dataset:
            found[most] = [unpacked(row.images)[0] for row in dataset.rows(range(6))]
            tokens = [row.token_ids.count(TOKEN) for row in dataset.rows(range(6))]
    assert tokens == [3 * 2, 5 * 3, 4 * 2, 4 * 4, 2 * 2, 2 * 2]
    sizes = [opened(one).size for one in found[512]]
    assert sizes == [(24, 16), (40, 24), (32, 16), (32, 32), (16, 16), (16, 16)]
    for one, size in zip(found[512][:3], sizes, strict=False):
        assert opened(one).tobytes() == drawn.resize(size, Image.Resampling.BICUBIC).tobytes()
    assert found[None][0] == held["bytes"]  # the model's processor makes it smaller
    assert found[None][1:] == found[512][1:]
    assert found[None][4] == found[None][5] == RED


def test_what_is_transparent_is_seen_on_white() -> None:
    file = io.BytesIO()
    drawn = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    drawn.putpixel((1, 0), (10, 20, 30, 255))
    drawn.save(file, "PNG")
    seen = opened(file.getvalue())
    assert [seen.getpixel((x, 0)) for x in range(2)] == [(255, 255, 255), (10, 20, 30)]


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_greys_of_16_bits_are_seen_as_such(form: str) -> None:
    file = io.BytesIO()
    drawn = Image.new("I;16", (3, 1))
    for x, grey in enumerate((255, 32_768, 65_535)):
        drawn.putpixel((x, 0), grey)
    drawn.save(file, form)
    seen = opened(file.getvalue())
    assert [seen.getpixel((x, 0)) for x in range(3)] == [(0, 0, 0), (128,) * 3, (255,) * 3]


def test_wide_greys_of_a_pgm_are_seen_as_such() -> None:
    seen = opened(b"P5 3 1 65535 \x00\xff\x80\x00\xff\xff")
    assert [seen.getpixel((x, 0)) for x in range(3)] == [(0, 0, 0), (128,) * 3, (255,) * 3]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"images": [{"bytes": b"\x89PNG"}]},
            "images: got bytes that are not an image: unknown image format; ",
        ),
        ({"images": [{"path": "/dev/null"}]}, 'images: got "/dev/null": unknown image format'),
        ({"images": [{"path": "a\0.png"}]}, 'images: got "a\\u0000.png": it cannot be read; '),
        (
            {"images": ["data:image/png,iVBORw0"]},
            'images: got "data:image/png,iVBORw0": No such file',
        ),
        ({"images": ["iVBORw0" * 99]}, 'images: got "iVBORw0iVBORw0'),
        ({"images": [{"path": "nowhere.png"}]}, 'images: got "nowhere.png": No such file'),
        ({"images": [7]}, "images: got int: it is not an image"),
        *(
            (
                {"images": [greys_of_32_bits(mode)]},
                "images: got bytes that are not an image: the white of 32-bit grey",
            )
            for mode in "IF"
        ),
        ({"images": [{"bytes": RED, "max_pixels": 0}]}, "images: got 0: max_pixels sets the size"),
        (
            {"images": [{"bytes": RED, "resized_width": 4001, "resized_height": 20}]},
            "images: got 4001 by 20 pixels: no model takes such a shape",
        ),
        (
            {"images": [{"bytes": RED, "max_pixels": 50, "min_pixels": 60}]},
            "images: got min_pixels 60: it is more than max_pixels 50",
        ),
        ({"images": [{"bytes": image("red", (401, 2))}]}, "images: got 401 by 2 pixels"),
        ({"images": [{"bytes": RED}] * 2}, "prompt: got 1 mark <image>: the row has 2 images"),
        ({"images": [{"bytes": RED}], "prompt": "<image>"}, "prompt: got text: the row has 1"),
    ],
)
def test_what_is_no_row_with_images_is_refused(files: PromptFiles, changes, told: str) -> None:
    row = {**good_row("<image>?"), **changes}
    (line,) = files.errors(files.table("a.parquet", row))
    assert line.startswith(f"a.parquet:0:{told}")


def given_rows(kind: str, text: str = "<image>?") -> dict[str, object]:
    asked, answer = {"role": "user", "content": text}, {"role": "assistant", "content": "red"}
    rows: dict[str, dict[str, object]] = {
        "sft": {"prompt": [asked, answer]},
        "dpo": {"prompt": [asked], "chosen": [answer], "rejected": "blue"},
        "kto": {"prompt": [asked], "completion": "red", "label": True},
    }
    rows["reward_model"] = rows["dpo"]
    return {**rows[kind], "images": [{"bytes": RED}]}


@pytest.mark.parametrize("kind", ["sft", "dpo", "kto", "reward_model"])
def test_rows_with_their_answers_show_images_too(files: PromptFiles, kind: str) -> None:
    """Answers that are compared or judged have none behind them."""
    table = files.table("a.parquet", given_rows(kind), given_rows(kind, "a <image>b"))
    with files.open(table, given=kind) as dataset:
        assert [row.images for row in dataset.rows([0, 1])] == [packed([RED])] * 2
        asked = files.chat.decode(dataset[1].token_ids)
        assert asked.count(IMAGE) == 2 * 2
        assert not any(TOKEN in part.tokens for part in dataset[1].answers[0])
        assert not any("mark" in line for line in dataset.warnings)
    (line,) = files.errors(files.table("b.parquet", given_rows(kind, "?")), given=kind)
    assert line.startswith("b.parquet:0:prompt: got 0 marks <image>: the row has 1 image")
    if kind == "sft":
        return
    talk = [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": "?"}]
    key, later = "completion" if kind == "kto" else "chosen", given_rows(kind)
    later |= {
        key: [{"role": "assistant", "content": "?"}, *talk],
        "images": [{"bytes": RED}] * 2,
    }
    (line,) = files.errors(files.table("c.parquet", later), given=kind)
    assert line.startswith("c.parquet:0:prompt: got <image> after an answer: ")


@pytest.mark.parametrize("kind", [None, "seeing_squares"])
def test_later_messages_of_demonstrations_show_images_too(folder: Path, kind: str | None) -> None:
    """What is kept of them is what the template writes of the whole, and where each begins."""
    if kind is not None:
        save_seeing_model(folder / "model", SEEING[kind])
    turns = ["<image>?", "red", "and <image> or <image>.", "blue", "why?", "so"]
    roles = ["user", "assistant"] * 3
    talk = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=True)]
    row = {"prompt": talk, "images": [{"bytes": one} for one in (RED, WIDE, RED)]}
    with ChatTokenizer(folder / "model") as chat:
        files = PromptFiles(folder, chat)
        table = files.table("a.parquet", row, {**row, "images": []})
        with files.open(table, given="sft") as dataset:
            seeing, blind = dataset.rows([0, 1])
        short = files.spec(files.table("a.parquet", row), maxResponseTokens=20)
        short = short.model_copy(update={"overlong_prompts": "truncate_right"})
        with PromptDataset.open(short, chat, given="sft") as dataset:
            (cut,) = dataset[0].answers
        form = chat.images
        (whole,) = chat.encode_chats([with_parts(talk, [RED] * 3)], open_turn=False)
        assert seeing.images == packed([RED])
        (answer,) = seeing.answers
        later = [one for part in answer for one in part.images]
        tokens = [token for part in answer for token in part.tokens]
        assert [one.file for one in later] == [WIDE, RED]
        for one in later:
            count = form.expanded([TOKEN], packed([one.file]))
            assert tokens[one.start : one.start + len(count)] == count
            assert TOKEN not in (tokens[one.start - 1], tokens[one.start + len(count)])
        *whole, _behind_the_end = form.expanded(whole, packed([RED, WIDE, RED]))
        assert whole == [*seeing.token_ids, *tokens]
        assert [one.images for one in cut] == [()]
        assert not any(part.images for part in blind.answers[0])
        (line,) = files.errors(
            files.table("c.parquet", {**row, "images": [{"bytes": RED}] * 2}), given="sft"
        )
        assert line.startswith("c.parquet:0:prompt: got 3 marks <image>: the row has 2 images")


def test_why_a_model_with_a_tower_is_shown_no_images_is_told(folder: Path) -> None:
    path = folder / "model" / "preprocessor_config.json"
    path.write_text(json.dumps({"image_processor_type": "SiglipImageProcessor"}))
    with ChatTokenizer(folder / "model") as chat:
        files = PromptFiles(folder, chat)
        report = files.report(
            files.table("a.parquet", given_rows("sft", "a <image>b")), given="sft"
        )
    assert any("SiglipImageProcessor" in line for line in report.warnings)


def test_a_mark_without_an_image_is_told(files: PromptFiles) -> None:
    table = files.table("a.parquet", good_row("<image>?", images=[]))
    with files.open(table, files.lines("b.jsonl", good_row("<image>!", image=[7]))) as dataset:
        told = [Path(line.partition(": got")[0]).name for line in dataset.warnings]
    assert told[:2] == ["a.parquet:0:prompt", "b.jsonl:1:prompt"]


def test_other_images_under_the_same_path_are_other_data(folder: Path, files: PromptFiles):
    path = folder / "one.png"
    found = set()
    lines = files.lines("b.jsonl", good_row("<image>!", images=str(path)))
    for shown in (RED, image("blue"), RED):
        path.write_bytes(shown)
        with files.open(lines) as dataset:
            found.add(dataset.digest)
    assert len(found) == 2


def test_a_row_has_no_more_than_tools_are_given(files: PromptFiles) -> None:
    file = io.BytesIO()
    Image.new("RGB", (3500, 3300)).save(file, "BMP")  # 33 MiB
    zoom = {"type": "function", "function": {"name": "zoom"}}
    agents = RowAgents({"tool_agent": RowAgent((zoom,), False)}, "tool_agent", {})
    table = files.table("a.parquet", good_row("<image>?", images=[{"bytes": file.getvalue()}]))
    assert files.errors(table) == []
    draw = ("promptsPerStep", 1)
    report = check_files(files.spec(table), files.chat, rewards=None, agents=agents, draw=draw)
    (line,) = report.errors
    assert "bytes of images: tools get them; at most 33554432 bytes a row" in line


SHARED = {"ranksPerReplica": 2, "parallelism": {"sequence": 2}}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"rollout": {"engine": "vllm"}}, None),
        ({**tiny_jobs.PPO, "critic": {}}, None),
        ({**tiny_jobs.PPO, "critic": {"path": "/text"}}, "spec.critic"),
        ({"roles": {"actorRollout": SHARED}}, None),
    ],
)
def test_what_keeps_a_job_from_showing_images(folder: Path, changes, told) -> None:
    spec = tiny_jobs.config_of(folder, **changes).spec
    why = why_no_images(spec)("tiny")
    assert (told is None) == (why == "") == all_take_images(spec)
    assert told is None or told in why


@pytest.mark.parametrize("kind", ["seeing", "seeing_squares", "seeing_crops", "seeing_told"])
def test_a_size_of_images_has_no_effect_where_the_model_has_its_own(folder: Path, kind: str):
    save_seeing_model(folder / "model", SEEING[kind])
    data = tiny_jobs.make_manifest(folder)["spec"]["data"]
    data |= {"maxImagePixels": 4000, "minImagePixels": 1000}
    model = {"path": str(folder / "model"), "freezeVisionTower": False}
    found = [*check_layouts(tiny_jobs.config_of(folder, data=data, model=model).spec)]
    fields = ("spec.data.maxImagePixels", "spec.data.minImagePixels")
    expected = [(field, ReasonCode.NO_EFFECT) for field in fields]
    told = [(one.where, one.reason_code) for one in found]
    assert told == ([] if kind == "seeing" else expected)
    its_type = json.loads((folder / "model" / "config.json").read_text())["model_type"]
    assert all(f"the processor of {its_type} sets" in one.why for one in found)


@pytest.mark.parametrize("gpus", [0, 1])
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("engine", ["vllm", "huggingface"])
@pytest.mark.parametrize("kind", ["seeing_squares", "seeing_pooled", "seeing_told"])
def test_vllm_draws_no_rows_on_gpus_whose_images_are_seen_ahead(
    folder: Path, kind: str, engine: str, given: bool, gpus: int
) -> None:
    """Of Gemma 4, E2B and E4B see nothing ahead."""
    save_seeing_model(folder / "model", SEEING[kind])
    changes: dict[str, object] = {"rollout": {"engine": engine}}
    if given:
        changes = {"algorithm": {"type": "sft", "promptsPerStep": 4}, "rollout": {}, "rewards": []}
    changes["roles"] = {"actorRollout": {"gpusPerReplica": gpus}}
    changes["model"] = {"path": str(folder / "model"), "freezeVisionTower": False}
    spec = tiny_jobs.config_of(folder, **changes).spec
    why = why_no_images(spec)("tiny")
    is_refused = engine == "vllm" and not given and gpus > 0 and kind != "seeing_told"
    assert is_refused == ("spec.rollout.engine: huggingface" in why) == (not all_take_images(spec))
    assert is_refused or why == ""
    where = "spec.model.freezeVisionTower"
    found = [one.where for one in check_layouts(spec)]
    assert found == ([where] if is_refused else [])


def test_each_of_several_teachers_sees_as_the_policy_or_not_at_all(folder: Path) -> None:
    """Of a data source that a model reads which takes no images, or others, rows have none."""
    seeing, blind, finer = folder / "model", folder / "blind", folder / "finer"
    shutil.copytree(seeing, finer)
    blind.mkdir()
    (blind / "config.json").write_text("{}")
    settings = finer / "preprocessor_config.json"
    told = json.loads(settings.read_text())
    settings.write_text(json.dumps(told | {"patch_size": told["patch_size"] + 1}))
    teachers = [{"path": str(path), "dataSources": [path.name]} for path in (blind, finer)]
    config = tiny_jobs.config_of(
        folder,
        algorithm={"type": "distillation", "promptsPerStep": 4},
        data={**tiny_jobs.make_manifest(folder)["spec"]["data"], "validation": []},
        rewards=[],
        steps={"total": 1},
        reference={"path": str(seeing), "teachers": teachers},
    )
    why = why_no_images(config.spec)
    assert why("another") == ""
    assert why("finer").startswith(f"{finer} of spec.reference ")
    assert why("blind").startswith(f"{blind} of spec.reference ")


def test_a_teacher_with_prompts_of_its_own_is_shown_no_images(folder: Path) -> None:
    data = tiny_jobs.make_manifest(folder)["spec"]["data"] | {"teacherPromptKey": "hint"}
    spec = tiny_jobs.config_of(folder, **tiny_jobs.PPO, data=data).spec
    assert "has its own prompts" in why_no_images(spec)("tiny")


def test_a_job_that_cannot_show_images_refuses_them(folder: Path) -> None:
    seen = good_row("<image>?", images=[{"bytes": RED}])
    with ChatTokenizer(folder / "model", why_no_images=lambda _: "no images with vLLM") as chat:
        files = PromptFiles(folder, chat)
        (line,) = files.errors(files.table("a.parquet", seen, good_row(images=[])))
    assert line.startswith("a.parquet:0:images: got images: no images with vLLM; ")


def test_rows_of_agent_loops_have_no_images(files: PromptFiles) -> None:
    agents = RowAgents({"mine": RowAgent((), has_users=False)}, "mine", {}, loops=["mine"])
    table = files.table("a.parquet", good_row("<image>?", images=[{"bytes": RED}]))
    draw = ("promptsPerStep", 1)
    report = check_files(files.spec(table), files.chat, rewards=None, agents=agents, draw=draw)
    (line,) = report.errors
    assert "got images: mine is an agent loop, which gets text" in line
