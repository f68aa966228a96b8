from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from driven_rows import ASKS, PROGRAM
from padded_reference import whole_logprobs
from seeing_models import FILMED, save_seeing_model
from tiny_models import IMAGE, NAMES, SEEING_TEMPLATE, TEMPLATE, VIDEO, image, save_tokenizer
from transformers import AutoTokenizer, Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from turn_templates import TOOLS, ChatInProcess
from video_reference import frames_of, marks_of, whole_logprobs_of_videos

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.agents.driver import Driver
from ppojob_trainer.agents.episode import Episode
from ppojob_trainer.agents.formats.table import FORMATS
from ppojob_trainer.agents.turn_form import ChatForm, Turn
from ppojob_trainer.data.media.images import hash_of, hashed_part, opened, packed, unpacked
from ppojob_trainer.data.media.video_cells import read_videos
from ppojob_trainer.data.turn_check import shows_images
from ppojob_trainer.data.turns import TurnTemplate
from ppojob_trainer.engine.attention import use_packed_attention
from ppojob_trainer.engine.forward_engine import packed_pass
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.vision_tower import attach_tower
from ppojob_trainer.rollout.huggingface_engine import HuggingFaceEngine
from ppojob_trainer.rollout.protocol import SamplingParams
from ppojob_trainer.rpc.messages.agents import SeenImage, ToolAnswer, ToolCall
from ppojob_trainer.rpc.messages.rollout import Interaction, PromptTokens
from ppojob_trainer.tools.wire import ModelRequest
from ppojob_trainer.workers.row_store import OwnedRows, build_rows

TOKEN, END = NAMES.index(IMAGE), NAMES.index("<|im_end|>")
PROMPTS = [("Look: ", [image("red", (40, 20))]), ("Nothing here.", [])]
SAMPLES = 3
BRACKETED = SEEING_TEMPLATE.replace(f"'{IMAGE}'", f"'[{IMAGE}]'")
"""transformers takes images that touch for one; real templates have marks between them."""
COLORS = ["green", "blue", "yellow", "white"]


class Calling(ChatForm):
    """Each turn calls twice."""

    def parse(self, tokens: Sequence[int]) -> Turn:
        return Turn((ToolCall("add", "{}"), ToolCall("add", "{}")))


class Showing:
    """Two images and a text, and then a text alone; it notes what it was given."""

    def __init__(self) -> None:
        self.given: list[tuple[int, list[SeenImage] | None]] = []

    def start(
        self,
        number: int,
        turn: int,
        calls: Sequence[ToolCall],
        seen: list[SeenImage] | None,
        before: Sequence[ToolCall],
    ) -> tuple[int, int]:
        assert not before
        self.given.append((number, seen))
        return number, turn

    def wait(self, started: tuple[int, int]) -> list[ToolAnswer]:
        number, turn = started
        files = [image(COLORS[(number + n) % 4], (16 + 8 * turn, 9 + number + n)) for n in (0, 1)]
        return [ToolAnswer(said_with(number), images=packed(files)), ToolAnswer("No more.")]


def said_with(number: int) -> str:
    """What the tool says beside the images of a row; of the first nothing."""
    return f"It is {number}." if number else ""


class Asking(Showing):
    """A program that sends an image in the context of the prompt, and then two in a new one."""

    def wait(self, started: tuple[int, int]) -> list[ToolAnswer]:
        _, turn = started
        files = unpacked(super().wait(started)[0].images)[:turn]
        parts = [hashed_part(hash_of(one)) for one in files]
        content = [*parts, {"type": "text", "text": "Now?"}]
        messages = [{"role": "user", "content": content}] if turn else []
        asked = msgspec.json.encode(ModelRequest(messages, turn == 2))
        return [ToolAnswer("", asked=asked, images=packed(files))]


class Processor(Qwen2_5_VLProcessor):
    """transformers' own, without its class of videos, which wants torchvision."""

    def check_argument_for_proper_class(self, *_: object) -> None: ...


def processor_of(folder: Path) -> Processor:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.image_token = IMAGE
    images = Qwen2VLImageProcessorPil.from_pretrained(folder)
    return Processor(images, tokenizer, chat_template=BRACKETED)


def form_of(folder: Path, template: str = BRACKETED) -> Calling:
    save_tokenizer(folder, template=template)
    chat = ChatInProcess(folder)
    return Calling(chat, TurnTemplate(chat), FORMATS["hermes"], TOOLS, chat.images)


def messages_of(text: str, files: Sequence[bytes]) -> list[dict[str, object]]:
    """The prompt; images are there for transformers alone."""
    return [{"role": "user", "content": [*map(image_part, files), {"type": "text", "text": text}]}]


def image_part(file: bytes) -> dict[str, object]:
    return {"type": "image", "image": opened(file)}


def prompts_of(form: Calling) -> list[PromptTokens]:
    found = []
    for number, (text, files) in enumerate(PROMPTS):
        (ids,) = form.chat.encode_chats([messages_of(text, files)])
        expanded = form.images.expanded(ids, packed(files))
        found.append(PromptTokens(number, expanded, images=packed(files)))
    return found


def drawn_rows(
    folder: Path,
    form: Calling,
    tools: Showing,
    prompts: Sequence[PromptTokens] = (),
    user: Interaction | None = None,
) -> list[Episode]:
    model = load_model(folder)
    attach_tower(model, folder, torch.float32, torch.device("cpu"))
    engine = HuggingFaceEngine(model, max_model_tokens=512, max_sequences=8)
    agent = AgentSpec(max_parallel_calls=2, max_user_turns=2, turn_tokens=7, cut_turns="go_on")
    agent = agent.model_copy(update={"interactions": (ASKS,)})
    sampling = SamplingParams(1.0, 1.0, -1, 1, (END,))
    episodes = [
        Episode(
            f"{prompt.prompt}/{sample}",
            tuple(prompt.tokens),
            sampling,
            lambda turn, seed=7 * prompt.prompt + sample: 100 * turn + seed,
            agent,
            400,
            form,
            user,
            images=prompt.images,
        )
        for prompt in prompts or prompts_of(form)
        for sample in range(SAMPLES)
    ]
    Driver(engine, tools, 4).run(episodes)
    return episodes


def files_of(row: Episode) -> list[bytes]:
    return [*unpacked(row.images), *(one.file for one in row.trajectory.images)]


def assert_trainer_says_the_same(folder: Path, rows: OwnedRows) -> None:
    trainer = load_model(folder)
    use_packed_attention(trainer)
    head, experience = PolicyHead(LogprobSettings(chunk_tokens=5)), rows.experience
    drawn = experience.rollout_logprobs[experience.mask]
    for share in (True, False):
        said = packed_pass(trainer, head, experience, share_prompts=share).outputs[0]
        torch.testing.assert_close(said[experience.mask], drawn, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", FILMED)
def test_engine_trainer_and_transformers_say_the_same(tmp_path: Path, kind: str):
    whole = save_seeing_model(tmp_path, kind, tie_word_embeddings=True)
    form, tools = form_of(tmp_path), Showing()
    episodes = drawn_rows(tmp_path, form, tools)
    made = build_rows(0, prompts_of(form), SAMPLES, [row.trajectory for row in episodes])
    assert_trainer_says_the_same(tmp_path, made)
    compared = 0
    for row in episodes:
        found, files = row.trajectory, files_of(row)
        assert len(found.images) == 4
        if any(TOKEN in one.tokens for one in found.segments if one.is_trained):
            continue  # which transformers takes for another image
        prompt, response = torch.tensor(row.prompt), torch.tensor(found.tokens)
        with torch.no_grad():
            said = whole_logprobs(whole, tmp_path, prompt, packed(files), response)
        is_drawn = torch.tensor(found.mask)
        told = torch.tensor(found.logprobs)[is_drawn]
        torch.testing.assert_close(told, said[is_drawn], rtol=0, atol=1e-5)
        compared += 1
    assert compared > 1
    second = [seen for number, seen in tools.given if number == 0][1]
    assert [one.file for one in second] == files_of(episodes[0])[:3]
    assert [(one.width, one.height) for one in second][:2] == [(40, 16), (16, 8)]


def test_contexts_of_a_program_have_images_of_their_own(tmp_path: Path) -> None:
    whole = save_seeing_model(tmp_path, tie_word_embeddings=True)
    form = form_of(tmp_path)
    episodes = drawn_rows(tmp_path, form, Asking(), user=PROGRAM)
    made = build_rows(0, prompts_of(form), SAMPLES, [row.trajectory for row in episodes])
    assert_trainer_says_the_same(tmp_path, made)
    compared = 0
    for row in episodes:
        *before, given, drawn = row.trajectory.segments
        assert (given.begins_context, len(row.trajectory.images)) == (True, 3)
        assert sum(one.begins_context for one in before) == 0
        if TOKEN in drawn.tokens:
            continue
        files = packed([one.file for one in row.trajectory.images[1:]])
        with torch.no_grad():
            prompt, response = torch.tensor(given.tokens), torch.tensor(drawn.tokens)
            said = whole_logprobs(whole, tmp_path, prompt, files, response)
        torch.testing.assert_close(torch.tensor(drawn.logprobs), said, rtol=0, atol=1e-5)
        compared += 1
    assert compared > 1


def test_tools_show_images_behind_a_video_which_they_are_not_given(tmp_path: Path) -> None:
    whole = save_seeing_model(tmp_path, tie_word_embeddings=True)
    form, tools = form_of(tmp_path), Showing()
    (clips,) = read_videos({"video": frames_of(4, (24, 16)), "min_pixels": 1}, form.images)
    shown = packed([image("red"), *clips])
    ids = form.images.expanded([5, TOKEN, 6, *marks_of(form.images, clips), 7], shown)
    prompt = PromptTokens(0, ids, images=shown)
    episodes = drawn_rows(tmp_path, form, tools, [prompt])
    made = build_rows(0, [prompt], SAMPLES, [row.trajectory for row in episodes])
    assert_trainer_says_the_same(tmp_path, made)
    first = tools.given[0][1]
    assert [one.file for one in first] == [image("red")]
    compared = 0
    for row in episodes:
        found, drawn = row.trajectory, torch.tensor(row.trajectory.mask)
        if not {TOKEN, NAMES.index(VIDEO)}.isdisjoint(torch.tensor(found.tokens)[drawn].tolist()):
            continue
        given = torch.tensor(ids), packed(files_of(row)), torch.tensor(found.tokens)
        with torch.no_grad():
            said = whole_logprobs_of_videos(whole, tmp_path, *given)
        told = torch.tensor(found.logprobs)
        torch.testing.assert_close(told[drawn], said[drawn], rtol=0, atol=1e-5)
        compared += 1
    assert compared


def test_a_row_is_what_transformers_processor_makes_of_the_whole(tmp_path: Path) -> None:
    save_seeing_model(tmp_path)
    form, compared = form_of(tmp_path), 0
    for row, (text, files) in zip(
        drawn_rows(tmp_path, form, Showing()),
        [one for one in PROMPTS for _ in range(SAMPLES)],
        strict=True,
    ):
        drawn = [one for one in row.trajectory.segments if one.is_trained]
        said = [form.decode_turn(one.tokens) for one in drawn]
        if IMAGE in "".join(said) or sum(map(len, said)) < sum(len(one.tokens) for one in drawn):
            continue  # it drew an image's token, or a special one
        talk, shown = messages_of(text, files), [one.file for one in row.trajectory.images]
        for turn, one in enumerate(said):
            talk.append({"role": "assistant", "content": [{"type": "text", "text": one}]})
            if turn < 2:
                number = int(row.name[0]) * SAMPLES + int(row.name[-1])
                told = [{"type": "text", "text": said_with(number)}] if number else []
                both = shown[2 * turn : 2 * turn + 2]
                talk.append({"role": "tool", "content": [*map(image_part, both), *told]})
                talk.append({"role": "tool", "content": [{"type": "text", "text": "No more."}]})
        processor = processor_of(tmp_path)
        whole = processor.apply_chat_template(talk, tokenize=True, return_dict=True)
        ids = [*row.prompt, *row.trajectory.tokens]
        assert whole["input_ids"][0][: len(ids)] == ids
        pixels = processor.image_processor(images=list(map(opened, files_of(row))))
        ours, theirs = (torch.tensor(one["pixel_values"]) for one in (pixels, whole))
        assert torch.equal(ours, theirs)
        compared += 1
    assert compared > 1


def test_a_template_shows_images_of_tools_or_is_known_not_to(tmp_path: Path) -> None:
    """Qwen3.5's trims the whole of a message."""
    save_seeing_model(tmp_path)
    trimmed = BRACKETED.replace("(m[", "((m[", 1).replace("| join)", "| join) | trim)")
    for template, shows in ((BRACKETED, True), (trimmed, True), (TEMPLATE, False)):
        form = form_of(tmp_path, template)
        assert shows_images(form.template, TOOLS) is shows
        assert shows_images(form.template, [], "user") is shows
        if shows:
            shown, end = packed([image("red")]), [END]
            ids = form.encode_answers(end, [ToolCall("add", "{}")], [" \n a \n"], [shown])
            said = form.chat.decode(ids, skip_special_tokens=False)
            text = "[~~~~] \n a" + ("" if template == trimmed else " \n")
            turn = "<|im_start|>tool\n{}<|im_end|>\n<|im_start|>assistant\n"
            assert said.removeprefix("\n") == turn.format(text)
