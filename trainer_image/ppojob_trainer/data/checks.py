"""Data checks: find all problems of a job's data before anything is started."""

from array import array
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ppojob_api.problem import counted
from ppojob_api.v1alpha1.data import DataSpec
from ppojob_api.v1alpha1.estimators import GivenType
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.dataset import digest_of
from ppojob_trainer.data.file_checks import open_files
from ppojob_trainer.data.order import mixture_problems
from ppojob_trainer.data.problems import DataProblem
from ppojob_trainer.data.row_checks import RewardChecks, RowAgents
from ppojob_trainer.data.scan import Scan


@dataclass(frozen=True, slots=True)
class DataReport:
    """Results of the checks: errors and warnings, one line each.

    `train_rows` is the number of training rows to draw from, `text_prompt` the place of a prompt
    that is text; empty if all are messages.
    """

    errors: list[str]
    warnings: list[str]
    train_rows: int
    text_prompt: str = ""
    # Field of spec.data -> digest of what a run reads, as `PromptDataset.digest`; empty on errors.
    digests: Mapping[str, str] = field(default_factory=dict)


def check_files(
    spec: DataSpec,
    chat: ChatTokenizer,
    *,
    rewards: RewardChecks | None,
    agents: RowAgents | None = None,
    sources: Collection[str] | None = None,
    draw: tuple[str, int] | None,
    given: GivenType | None = None,
    demonstrations: int | None = None,
) -> DataReport:
    """Read the data once, row by row, in bounded memory; most arguments are those of `Scan`.

    `draw` is the field of `spec.algorithm` for the number of prompts per draw, and that number;
    None if each prompt is answered once. `demonstrations` is the number of rows of
    ``spec.data.demonstrations`` per step; None to not read them.
    """
    train = Scan(spec, chat, rewards, agents, sources, given=given)
    train.read()
    validation = Scan(spec.of_validation, chat, rewards, agents, given=given)
    if spec.validation:
        validation.read()
    scans, drawn = [train, validation], [] if draw is None else [("train", train, *draw)]
    if demonstrations is not None:
        supervised = Scan(spec.of_demonstrations, chat, given="sft")
        supervised.read()
        scans.append(supervised)
        drawn.append(("demonstrations", supervised, "supervised.rowsPerStep", demonstrations))
    # One file may be in several lists.
    errors = list(dict.fromkeys(line for scan in scans for line in scan.errors.lines()))
    errors += [str(problem) for one in drawn for problem in _too_few(*one)]
    warnings = [line for scan in scans for line in scan.warnings.lines()]
    found = [_overlaps(trained, validation) for trained in (train, *scans[2:])]
    warnings += [str(problem) for problem in found if problem is not None]
    places = [scan.prompt_place for scan in (train, validation) if scan.prompt_kind == "text"]
    read = dict(zip(("train", "demonstrations"), (train, *scans[2:]), strict=False))
    digests = {} if errors else {name: digest_of(one, one.spec, chat) for name, one in read.items()}
    return DataReport(errors, warnings, train.kept, next(iter(places), ""), digests)


def _too_few(field: str, scan: Scan, setting: str, batch: int) -> Iterator[DataProblem]:
    """Yield the problems of files with too few rows for a batch."""
    if scan.errors:
        return
    if scan.kept < batch:
        why = f"fewer than spec.algorithm.{setting} {batch}: there is no full batch"
        allowed = f"at least {counted(batch, 'row')}, or a smaller {setting.rpartition('.')[2]}"
        yield DataProblem(f"spec.data.{field}", counted(scan.kept, "row"), why, allowed)
    files = scan.spec.train
    weights = [file.weight for file in files if file.weight is not None]
    if weights:
        paths, where = [file.path for file in files], f"spec.data.{field}"
        yield from mixture_problems(paths, scan.kept_of, weights, batch, field=where)


def unusable_files(spec: DataSpec, *, given: GivenType | None = None) -> list[str]:
    """Return the problems of files that cannot be opened; a check without a tokenizer."""
    read: list[tuple[DataSpec, GivenType | None]] = [(spec, given), (spec.of_validation, given)]
    read += [(spec.of_demonstrations, "sft")] if spec.demonstrations else []
    problems: dict[str, None] = {}
    for own, kind in read:
        for opened in (one for file in own.train for one in open_files(file, own, given=kind)):
            if isinstance(opened, DataProblem):
                problems[str(opened)] = None
            else:
                opened.close()
    return list(problems)


def _overlaps(train: Scan, validation: Scan) -> DataProblem | None:
    """Warn of held-out prompts that are also training prompts."""
    held_out = _keys(validation.prompt_keys)
    seen = np.isin(held_out, _keys(train.prompt_keys))
    if not seen.any():
        return None
    first = validation.key_rows[int(np.flatnonzero(seen)[0])]
    return DataProblem(
        f"{validation.reader.place(first)}:{validation.spec.prompt_key}",
        f"{int(seen.sum())} of {len(held_out)} held-out prompts",
        "they are also training prompts",
        "held-out prompts, or validation does not measure generalization",
    )


def _keys(keys: "array[int]") -> npt.NDArray[np.uint64]:
    return np.frombuffer(keys, dtype=np.uint64) if len(keys) else np.empty(0, np.uint64)
