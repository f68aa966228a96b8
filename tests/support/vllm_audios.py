"""Run by test_vllm_audios.py in a process of its own: what vLLM makes of prompts with audios.

Usage: vllm_audios.py FOLDER OUTPUT: of Qwen2-Audio, Qwen2.5-Omni and Qwen3-Omni
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from engine_phase import close_quickly
from hearing_models import TOKEN, audio_form, heard, hearing_logprobs, save_hearing_model
from omni_models import IMAGE, SPEAKING, VIDEO, omni_logprobs, omni_prompts, save_omni_model
from omni_models import TOKEN as AUDIO
from padded_reference import as_in_files
from seeing_models import form_of
from tiny_models import WIDE_HEADS
from vllm_images import Watched, bits, largest

from ppojob_trainer.data.media.media_form import MediaForm
from ppojob_trainer.models.weight_files import own_name
from ppojob_trainer.rollout.protocol import Request, SamplingParams

TEXT = [5 + n % 40 for n in range(40)]
SHOWN = [
    ([5, TOKEN, 7, 8, TOKEN, 9], heard((440, 0.31), (300, 1.0))),
    ([TOKEN, *TEXT], heard((900, 0.6))),
    ([TOKEN, *TEXT], heard((200, 0.6))),
    (TEXT, b""),
]


def requests(
    form: MediaForm, shown: Sequence[tuple[list[int], bytes]], ends: tuple[int, ...]
) -> list[Request]:
    # transformers would take such a token that is drawn for a further audio.
    sampling = SamplingParams(1.0, 1.0, -1, max_tokens=20, stop_token_ids=ends)
    return [
        Request(f"{n}/{s}", tuple(form.expanded(ids, held)), sampling, seed=s, images=held)
        for n, (ids, held) in enumerate(shown)
        for s in range(2)
    ]


def facts_of(folder: Path, kind: str) -> dict[str, Any]:
    """What is found of one engine; `kind` is `audio`, or one of `SPEAKING`."""
    is_omni = kind in SPEAKING
    sizes = {**WIDE_HEADS, "initializer_range": 0.1}
    if is_omni:
        sizes |= {"head_dim": 32} if kind == "3" else {}
        whole = save_omni_model(folder, kind, speaks=True, **sizes)
        form, told = form_of(folder), partial(omni_logprobs, whole, folder)
        rows = requests(form, omni_prompts(form), (AUDIO, IMAGE, VIDEO))
    else:
        plain = {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}
        whole = save_hearing_model(folder, **sizes | plain)
        form, told = audio_form(folder), partial(hearing_logprobs, whole, folder)
        rows = requests(form, SHOWN, (TOKEN,))
    watched = Watched(folder, 1, rows)

    def load(version: int) -> None:
        files = as_in_files(whole, dict(whole.named_parameters()))
        weights = {own_name(name): weight for name, weight in files.items()}
        own = {name: one for name, one in weights.items() if not name.startswith("visual.")}
        watched.engine.load_weights(version, own.items())

    load(1)
    drawn = watched.phase(rows)
    facts: dict[str, Any] = {
        "first": largest(told, rows, drawn),
        "prompts": all(watched.prompts),
        "heard": len(watched.shown),
        "again": bits(watched.phase(rows)) == bits(drawn),
    }
    if not is_omni:
        others = [replace(row, images=heard((200, 0.6))) for row in rows[2:4]]
        facts["another audio"] = largest(told, others, drawn[2:4])
    decoder = whole.model if is_omni else whole.model.language_model
    with torch.no_grad():
        for weight in decoder.parameters():
            weight.add_(0.02 * torch.randn(weight.shape))
    watched.engine.sleep()
    load(2)
    facts["update"] = largest(told, rows, watched.phase(rows))
    watched.engine.close()
    return facts


def main() -> None:
    torch.set_num_threads(1)
    close_quickly()
    folder, output = map(Path, sys.argv[1:])
    found = {kind: facts_of(folder / kind, kind) for kind in ("audio", *SPEAKING)}
    output.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
