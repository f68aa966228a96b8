"""Run by test_vllm_images.py in processes of its own: what vLLM makes of prompts with images.

Usage: vllm_images.py FOLDER OUTPUT [--rank R --store FILE] [--only FAMILY...]: two ranks share
an engine, with the models that a run without them has left in the folder.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from engine_phase import close_quickly, generate
from padded_reference import as_in_files, whole_logprobs
from seeing_models import GLM, POOLED, TEXTS, save_seeing_model, whole_class
from tiny_models import HALF_ROTATED, IMAGE, NAMES, VIDEO, WIDE_HEADS, image
from torch import Tensor
from transformers import PreTrainedModel
from video_reference import frames_of, marks_of, whole_logprobs_of_videos

from ppojob_api.v1alpha1.rollout import RolloutParallelism, RolloutSpec
from ppojob_trainer.data.media.image_files import of_thinker
from ppojob_trainer.data.media.image_form import ImageForm
from ppojob_trainer.data.media.image_forms import read_form
from ppojob_trainer.data.media.image_ovis import OvisImages
from ppojob_trainer.data.media.images import packed, unpacked
from ppojob_trainer.data.media.video_cells import read_videos
from ppojob_trainer.models.vision_tower import tower_of
from ppojob_trainer.models.weight_files import own_name
from ppojob_trainer.rollout.protocol import Finished, Request, SamplingParams, generation_phase
from ppojob_trainer.rollout.vllm_engine import VllmEngine, vllm_models

FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "glm4v", "glm4v_moe", "internvl"]
BRIEFLY = ("lfm2_vl", "glm_ocr", "lighton_ocr", "llava", "llava_next", "llava_onevision")
BRIEFLY += ("llava_lines", "aya_vision", "ovis2")
"""Of these, one whose layers have states beside images, and some that see as others."""
FAMILIES += ["mistral3", "gemma3", "smolvlm", *POOLED, *BRIEFLY]
SHARED = ("qwen2_vl", "glm4v_moe", "gemma3", "gemma4_told")
"""Of these, plain layers, a mixture, tokens that see ahead, and layers told of tokens."""
WHOLLY = "qwen2_vl"
"""Of these, the one whose rows are drawn again, and begun again, by ranks that share an engine."""
# A key head for each of two tensor ranks.
HEADS = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES = {**WIDE_HEADS, **HEADS, "initializer_range": 0.1}
OF_GLM = {"rope_parameters": {**HALF_ROTATED, "mrope_section": [2, 3, 3]}, "head_dim": 32}
OF_TOLD = {"initializer_range": 0.04}
TOKEN = NAMES.index(IMAGE)
TEXT = [5 + n % 40 for n in range(40)]
RED, WIDE, HIGH = image("red"), image("blue", (40, 20)), image("green", (9, 35))
YELLOW = image("yellow", (9, 35))
SHOWN = [
    ([5, TOKEN, 7, 8, TOKEN, 9], [WIDE, RED]),
    ([TOKEN, 6, TOKEN, 8], [HIGH, WIDE]),
    ([TOKEN, *TEXT], [HIGH]),
    ([TOKEN, *TEXT], [YELLOW]),
    ([7, TOKEN, *TEXT], [HIGH]),
    (TEXT, []),
]
SAMPLES = 3


def requests(form: ImageForm) -> list[Request]:
    # transformers would take such a token that is drawn for a further image.
    ends = (TOKEN, *(form.around if isinstance(form, OvisImages) else ()))
    sampling = SamplingParams(1.0, 1.0, -1, max_tokens=30, stop_token_ids=ends)
    return [
        Request(f"{n}/{s}", tuple(form.expanded(ids, held)), sampling, seed=s, images=held)
        for n, (ids, held) in enumerate((ids, packed(files)) for ids, files in SHOWN)
        for s in range(SAMPLES)
    ]


def shown_more(form: ImageForm, row: Request, done: Finished) -> Request:
    """The next turn of a row, which a tool has shown an image."""
    drawn = [token for token in done.tokens if token not in row.sampling.stop_token_ids]
    before = [*row.prompt, *drawn, 7]
    shown = form.expanded([TOKEN], packed([WIDE]))
    return replace(
        row,
        request_id=f"{row.request_id}/1",
        prompt=(*before, *shown, 8),
        sampling=replace(row.sampling, max_tokens=8),
        images=packed([*unpacked(row.images), WIDE]),
        later=(len(before) + form.places(shown, packed([WIDE]))[0][0],),
    )


def largest(
    told: Callable[[Tensor, bytes, Tensor], Tensor],
    rows: Sequence[Request],
    drawn: Iterable[Finished],
) -> float:
    """Of |log-probability of vLLM - of transformers' whole model|.

    `told` is what that says of a prompt, what it shows and a response.
    """
    found = []
    for row, done in zip(rows, drawn, strict=True):
        prompt, response = torch.tensor(row.prompt), torch.tensor(done.tokens)
        with torch.no_grad():
            expected = told(prompt, row.images, response)
        found.append(float((torch.tensor(done.logprobs) - expected).abs().max()))
    return max(found)


def bits(drawn: Sequence[Finished]) -> list[Any]:
    return [(row.tokens, row.logprobs) for row in drawn]


def language_model_of(whole: PreTrainedModel) -> PreTrainedModel:
    """Which transformers calls by two names."""
    part: PreTrainedModel = getattr(whole.model, "language_model", None) or whole.model.text_model
    return part


def load(engine: VllmEngine, version: int, whole: PreTrainedModel) -> None:
    """The weights of the language model alone, as the trainer names them."""
    part = language_model_of(whole)
    held = ("correction_bias", "layer_scalar")
    beside = {name: one for name, one in part.named_buffers() if name.endswith(held)}
    named = {**dict(part.named_parameters()), **beside}
    weights = as_in_files(whole, {f"model.language_model.{n}": one for n, one in named.items()})
    weights = {own_name(name, part.config.model_type): one for name, one in weights.items()}
    if not whole.config.tie_word_embeddings:
        weights["lm_head.weight"] = whole.lm_head.weight
    engine.load_weights(version, weights.items())


def saved(folder: Path, kind: str) -> PreTrainedModel:
    if not folder.exists():
        sizes = {**SIZES, **(OF_GLM if kind in GLM else {}), **TEXTS.get(kind, {})}
        if kind == "gemma4_told":
            sizes |= OF_TOLD
        is_tied = kind in ("qwen2_vl", "glm4v_moe", "lfm2_vl", "aya_vision")
        save_seeing_model(folder, kind, tie_word_embeddings=is_tied, **sizes)
    return whole_class(kind).from_pretrained(folder)


class Watched:
    """An engine of a model, and what it is seen to do."""

    def __init__(self, folder: Path, tensor: int, rows: Sequence[Request], **options: Any) -> None:
        config = of_thinker(json.loads((folder / "config.json").read_text()))
        positions = config.get("text_config", config)["max_position_embeddings"]
        length = min(384, positions)  # more where images have many tokens
        sizes = {"dtype": "float32", "max_model_tokens": length, "max_sequences": 32, **options}
        layout = RolloutParallelism(tensor=tensor)
        self.folder = folder
        self.engine = VllmEngine(RolloutSpec(parallelism=layout, **sizes), folder)
        self.asked = {row.request_id: row for row in rows}
        self.prompts: list[bool] = []
        self.cached: dict[str, int] = {}
        self.shown: list[bytes] = []
        self.restarted: list[object] = []
        self._watch()

    def _watch(self) -> None:
        finished = self.engine._finished

        def watched(output: Any, end: int | None = None) -> Finished:
            own = self.asked[output.request_id]
            self.prompts.append(tuple(output.prompt_token_ids) == own.prompt)
            self.cached[output.request_id] = output.num_cached_tokens
            return finished(output, end)

        self.engine._finished = watched  # type: ignore[method-assign]
        (tower,) = self.engine._engine.apply_model(tower_of)
        encode = tower.encode
        tower.encode = lambda files: (self.shown.extend(files), encode(files))[1]
        scheduler = self.engine._engine.engine_core.engine_core.scheduler
        begun_again = scheduler._preempt_request
        scheduler._preempt_request = lambda row, *a, **k: (
            self.restarted.append(row),
            begun_again(row, *a, **k),
        )

    def phase(self, rows: Sequence[Request]) -> list[Finished]:
        """What it draws, in the order of the rows."""
        self.asked |= {row.request_id: row for row in rows}
        return generate(self.engine, rows)

    def turns(self, form: ImageForm, rows: Sequence[Request]) -> dict[str, Finished]:
        """A phase in which each row goes on with an image more: its later turns, by their ids."""
        with generation_phase(self.engine) as submit:
            drawn = self._drawn(submit, rows)
            turns = [shown_more(form, row, drawn[row.request_id]) for row in rows]
            self.asked |= {row.request_id: row for row in turns}
            return self._drawn(submit, turns)

    def _drawn(
        self, submit: Callable[[Request], None], rows: Sequence[Request]
    ) -> dict[str, Finished]:
        for row in rows:
            submit(row)
        ended = [one for _ in iter(self.engine.has_work, False) for one in self.engine.step()]
        by_id = {one.request_id: one for one in ended}
        return {row.request_id: by_id[row.request_id] for row in rows}


def facts_of(folder: Path, kind: str, tensor: int, *, wholly: bool) -> dict[str, Any]:
    """`wholly`: also of what a family's weights have no part in, once ranks share an engine."""
    whole = saved(folder, kind)
    form, told = read_form(folder), partial(whole_logprobs, whole, folder)
    assert form is not None
    rows = requests(form)
    watched = Watched(folder, tensor, rows)
    load(watched.engine, 1, whole)
    drawn = watched.phase(rows)
    facts: dict[str, Any] = {
        "shown": len(watched.shown),
        "prompts": all(watched.prompts),
        "cached": dict(watched.cached),
        "blocks": {row.request_id: (len(row.prompt) - 1) // 32 * 32 for row in rows},
        "first": largest(told, rows, drawn),
        "rows": bits(drawn),
        "restarted row": positions_of(form, rows[0]),
    }
    turns = watched.turns(form, rows)
    facts["prompts"] = all(watched.prompts)
    facts["cached turns"] = [watched.cached[name] for name in turns]
    facts["later"] = largest(told, [watched.asked[name] for name in turns], turns.values())
    if not wholly:
        facts["update"] = of_update(watched, whole, folder, rows)
        watched.engine.close()
        return facts
    others = [replace(row, images=packed([YELLOW])) for row in rows[6:9]]
    facts["another image"] = largest(told, others, drawn[6:9])
    # Where the tower has seen these images before, in other company.
    watched.phase(rows[::-1])
    facts["again"] = bits(watched.phase(rows)) == bits(drawn)
    facts["shown in four phases"] = len(watched.shown)
    facts |= facts_of_updates(watched, whole, folder, rows, drawn)
    if form.video is not None:
        facts |= facts_of_videos(watched, whole, form)
    watched.engine.close()
    return facts | facts_of_a_small_cache(folder, tensor, whole, rows)


def facts_of_videos(watched: Watched, whole: PreTrainedModel, form: ImageForm) -> dict[str, Any]:
    """Of two prompts of the same tokens and other frames, whose images are the same."""
    cells = [{"video": frames_of(4, (24, 16), n), "min_pixels": 1} for n in range(2)]
    sampling = SamplingParams(1.0, 1.0, -1, 9, stop_token_ids=(TOKEN, NAMES.index(VIDEO)))
    rows = []
    for n, clips in enumerate(read_videos(cells, form)):
        shown = packed([WIDE, *clips])
        ids = form.expanded([5, TOKEN, 6, *marks_of(form, clips), 7], shown)
        rows += [
            Request(f"video/{n}/{s}", tuple(ids), sampling, seed=s, images=shown)
            for s in range(SAMPLES)
        ]
    drawn = watched.phase(rows)
    told = partial(whole_logprobs_of_videos, whole, watched.folder)
    return {
        "videos": largest(told, rows, drawn),
        "positions of videos": positions_of(form, rows[0]),
        "other frames": bits(drawn[:SAMPLES]) != bits(drawn[SAMPLES:]),
    }


def of_update(
    watched: Watched, whole: PreTrainedModel, folder: Path, rows: Sequence[Request]
) -> float:
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in language_model_of(whole).parameters():
            weight.add_(0.02 * torch.randn(weight.shape))
    watched.engine.sleep()
    load(watched.engine, 2, whole)
    return largest(partial(whole_logprobs, whole, folder), rows, watched.phase(rows))


def facts_of_updates(
    watched: Watched,
    whole: PreTrainedModel,
    folder: Path,
    rows: Sequence[Request],
    drawn: Sequence[Finished],
) -> dict[str, Any]:
    """Of other weights, and of the first ones again."""
    before = [weight.clone() for weight in language_model_of(whole).parameters()]
    update = of_update(watched, whole, folder, rows)
    with torch.no_grad():
        for weight, old in zip(language_model_of(whole).parameters(), before, strict=True):
            weight.copy_(old)
    watched.engine.sleep()
    load(watched.engine, 3, whole)
    return {"update": update, "back": bits(watched.phase(rows)) == bits(drawn)}


def facts_of_a_small_cache(
    folder: Path, tensor: int, whole: PreTrainedModel, rows: Sequence[Request]
) -> dict[str, Any]:
    """Of an engine that has to begin rows again."""
    block = 32 * 2 * 2 * 2 // tensor * 32 * 4  # tokens, keys and values, layers, heads, width
    blocks = 30 if whole.config.model_type in POOLED else 8
    tight = Watched(folder, tensor, rows, kv_cache_gib=blocks * block / 2**30)
    load(tight.engine, 1, whole)
    squeezed = largest(partial(whole_logprobs, whole, folder), rows, tight.phase(rows))
    tight.engine.close()
    return {"restarted": len(tight.restarted), "squeezed": squeezed}


def positions_of(form: ImageForm, row: Request) -> bool:
    """Whether those of a prompt and of drawn tokens behind it are the trainer's."""
    if len(form.positions(row.prompt, row.images)) == 1:  # vLLM counts itself
        return True
    drawn = [TOKEN, 9, 9]
    given = vllm_models.prompt_of(row, form)
    features = [SimpleNamespace(data=item) for item in given["mm_kwargs"]["image"]]
    positions, ahead = vllm_models.MROPE_MODELS["qwen2_vl"].get_mrope_input_positions(
        None, [*row.prompt, *drawn], features
    )
    expected = torch.tensor(form.positions([*row.prompt, 9, 9, 9], row.images))
    after = form.positions([*row.prompt, 9, 9, 9, 9], row.images)[0][-1]
    return torch.equal(positions, expected) and after == len(row.prompt) + len(drawn) + ahead


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("families", nargs="*", default=FAMILIES)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--store", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    close_quickly()
    dist = torch.distributed  # noqa: TID251  # the world of the role that the engine must respect
    if arguments.store:
        where = f"file://{arguments.store}"
        dist.init_process_group("gloo", init_method=where, rank=arguments.rank, world_size=2)
    tensor = 2 if arguments.store else 1
    names = SHARED if arguments.store else arguments.families
    facts = {
        name: facts_of(
            arguments.folder / name,
            name,
            tensor,
            wholly=name == WHOLLY or (tensor == 1 and name not in BRIEFLY),
        )
        for name in names
    }
    arguments.output.write_text(json.dumps(facts), encoding="utf-8")
    if arguments.store:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
