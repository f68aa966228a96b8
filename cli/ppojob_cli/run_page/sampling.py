"""Responses on a run page: the best, the worst and random ones of some steps."""

import bisect
import itertools
import math
import random
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from markupsafe import escape

from ppojob_api.problem import printable
from ppojob_cli.figures import number
from ppojob_cli.run_page.facts import PageRun
from ppojob_trainer.controller.row_tape import BatchKey, batches_on_disk
from ppojob_trainer.controller.samples import Place, Sample, chosen_samples

_DEFAULT_STEPS: Final = 5
_MOST_SAMPLES: Final = 240
_TEXT_BYTES: Final = 250_000
_RESPONSE_BYTES: Final = 6_000
_TRUTH_BYTES: Final = 300
_PARTS: Final = 12
_PART_CHARACTERS: Final = 80
_KINDS: Final = ("best", "worst", "random")


def read_samples(
    runs: Sequence[PageRun], steps: Collection[int], each: int
) -> Iterator[dict[str, Any]]:
    """Yield the batches of a page, with `each` of every kind of response, or fewer for very many.

    The default `steps` are five of each run, including the first and the last.
    """
    batches = [
        (index, key)
        for index, run in enumerate(runs)
        for purpose in ("train", "validation")
        for key in _chosen_batches(run.folder, purpose, steps)
    ]
    kinds = len(_KINDS)
    each = max(1, min(each, _MOST_SAMPLES // (kinds * max(1, len(batches)))))
    share = min(_RESPONSE_BYTES, _TEXT_BYTES // (kinds * each * max(1, len(batches))))
    for index, key in batches:
        what = "Validation behind step" if key.purpose == "validation" else "Step"
        title = f"{what} {key.step}" + (f", round {key.round + 1}" if key.round else "")
        if samples := list(_samples(runs[index].folder, key, each, share)):
            yield {"run": index, "title": title, "samples": samples}


def steps_with_responses(runs: Sequence[PageRun]) -> list[int]:
    """Return the steps with responses of at least one run, ascending."""
    return sorted({key.step for run in runs for key in batches_on_disk(run.folder)})


def _chosen_batches(folder: Path, purpose: str, steps: Collection[int]) -> list[BatchKey]:
    here = sorted(key for key in batches_on_disk(folder) if key.purpose == purpose)
    if steps:
        return [key for key in here if key.step in steps]
    if len(here) <= _DEFAULT_STEPS:
        return here
    return [here[part * (len(here) - 1) // (_DEFAULT_STEPS - 1)] for part in range(_DEFAULT_STEPS)]


def _samples(folder: Path, key: BatchKey, each: int, share: int) -> Iterator[dict[str, Any]]:
    kinds: dict[int, str] = {}

    def choose(places: Sequence[Place]) -> Collection[int]:
        kinds.update(chosen(places, each, key.step))
        return kinds

    samples = chosen_samples(folder, key, choose)
    for sample in sorted(samples, key=lambda one: (_KINDS.index(kinds[one.row]), one.row)):
        yield _as_text(sample, kinds[sample.row], share)


def chosen(places: Sequence[Place], each: int, seed: int) -> dict[int, str]:
    """Choose rows and their kinds; all are random if there are no scores, or they are equal."""
    scores = {place.score for place in places if not math.isnan(place.score)}
    found: dict[int, str] = {}
    if len(scores) > 1:
        ranked = sorted(
            (place for place in places if not math.isnan(place.score)),
            key=lambda place: (-place.score, place.row),
        )
        found = {place.row: "worst" for place in ranked[-each:]}
        found |= {place.row: "best" for place in ranked[:each]}
    left = sorted(place.row for place in places if place.row not in found)
    drawn = random.Random(seed).sample(left, min(len(left), 3 * each - len(found)))
    return found | dict.fromkeys(drawn, "random")


def _as_text(sample: Sample, kind: str, share: int) -> dict[str, Any]:
    tokens = "" if sample.response_tokens is None else f", {sample.response_tokens} tokens"
    given = ", given by the data" if sample.is_given else ""
    return {
        "kind": kind,
        "place": f"row {sample.row}{tokens}{given}",
        "score": "not scored" if math.isnan(sample.score) else f"score {number(sample.score)}",
        "parts": list(_parts(sample.reward_values or "{}")),
        "prompt": clipped(sample.prompt, share // 3, from_end=True),
        "response": clipped(sample.response, share),
        "truth": clipped(sample.ground_truth or "", min(_TRUTH_BYTES, share)),
        "is_truncated": sample.is_truncated,
    }


def _parts(values: str) -> Iterator[tuple[str, str]]:
    parts = msgspec.json.decode(values, type=dict[str, float | str])
    for name, value in itertools.islice(parts.items(), _PARTS):
        text = value if isinstance(value, str) else number(value)
        yield printable(name, _PART_CHARACTERS), printable(text, _PART_CHARACTERS)


def clipped(text: str, limit: int, *, from_end: bool = False) -> str:
    """Truncate a text to `limit` bytes as HTML, with visible control characters.

    With `from_end`, keep its end, as for prompts.
    """
    # HTML is never shorter than the text, so more characters never fit.
    near = text[-limit:] if from_end else text[:limit]
    safe = "\n".join(printable(line.expandtabs(4)) for line in near.split("\n"))
    characters = safe[::-1] if from_end else safe
    sizes = list(itertools.accumulate(len(escape(one).encode()) for one in characters))
    kept = bisect.bisect_right(sizes, limit)
    if kept == len(safe) and len(near) == len(text):
        return safe
    return f"... {safe[len(safe) - kept :]}" if from_end else f"{safe[:kept]} ..."
