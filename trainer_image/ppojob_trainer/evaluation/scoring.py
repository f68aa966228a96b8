"""Scores of responses, computed or read from rows, and their metrics."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ppojob_api.problem import ABSENT, shown
from ppojob_trainer import durable
from ppojob_trainer.data.problems import DataProblem, Findings
from ppojob_trainer.errors import ConfigError, RewardFailed
from ppojob_trainer.evaluation.answers import Answer
from ppojob_trainer.metrics.validation import ValidationRow, validation_metrics
from ppojob_trainer.rewards.process import ScoringPool
from ppojob_trainer.rewards.records import RewardItem, RewardResult, value_kinds
from ppojob_trainer.rewards.row_checks import RowChecks
from ppojob_trainer.rows.row_files import SCHEMA, truth_cells, value_cells, with_values

SCORED_FILE: Final = "scored.parquet"
METRICS_FILE: Final = "evaluation.jsonl"

_POINT: Final = durable.point("evaluation", *durable.FILE_ACTS)
# How a failure names rows of its batch; files count theirs in another way.
_ROWS: Final = re.compile(r": rows? ([0-9]+)(?: to ([0-9]+))?$")
_LEFT_OUT: Final = frozenset(
    {"prompt_tokens", "response_ids", "rollout_logprobs", "segments", "experts"}
    | {"pictures", "picture_bytes"}
)
_SCHEMA: Final = pa.schema([field for field in SCHEMA if field.name not in _LEFT_OUT])


def check_answers(answers: Sequence[Answer], checks: RowChecks) -> None:
    """Raise ConfigError, with one line per problem, if no reward can score a row."""
    errors = Findings()
    for answer in {answer.place: answer for answer in answers}.values():  # once per row
        source, truth = answer.data_source, answer.ground_truth
        column, got, why = "data_source", shown(source), "no scorer knows it"
        allowed = checks.data_source_problem(source)
        if allowed is not None:
            allowed = "one that docs/rewards.md lists, or --job or --function"
        else:
            column, got = "ground_truth", ABSENT if truth is None else shown(truth)
            why = f"the reward of {source} needs it"
            allowed = checks.ground_truth_problem(source, truth)
        if allowed is not None:
            problem = DataProblem(f"{answer.place}:{column}", got, why, allowed)
            errors.add(problem, file=answer.place.rpartition(":")[0], column=f"{column} {source}")
    if errors:
        raise ConfigError(errors.lines())


def score_answers(
    answers: Sequence[Answer], pool: ScoringPool, on_scored: Callable[[], object]
) -> list[RewardResult]:
    """Score the answers of a step as in a job; `on_scored` is called after each.

    RewardFailed at the first function without a valid result.
    """
    try:
        return pool.score([_item(row, answer) for row, answer in enumerate(answers)], on_scored)
    except RewardFailed as failure:
        if (rows := _ROWS.search(failure.where)) is None:
            raise
        places = [answers[int(row)].response_place for row in rows.groups() if row]
        what = failure.where[: rows.start()]
        raise RewardFailed(f"{' to '.join(places)}: {what}", failure.reason) from None


def _item(row: int, answer: Answer) -> RewardItem:
    figures = msgspec.json.decode(answer.figures) if answer.figures else {}
    return RewardItem(
        row,
        answer.data_source,
        answer.response,
        answer.ground_truth,
        {**answer.extra_info, **figures},
        response_tokens=answer.tokens or 0,
        finish_reason="length" if answer.is_truncated else "stop",
        prompt=answer.prompt,
    )


def recorded_scores(answers: Sequence[Answer]) -> list[RewardResult]:
    """Return the scores in the rows of a run; ConfigError if a row has none."""
    results = []
    for answer in answers:
        if answer.recorded is None:
            raise ConfigError(
                f"{answer.place}: got no score: --kept reads the scores of the rows, and this one "
                "has none; no --kept"
            )
        score, values = answer.recorded
        results.append(RewardResult(score, msgspec.json.decode(values)))
    return results


def evaluation_metrics(
    answers: Sequence[Answer], results: Sequence[RewardResult]
) -> dict[str, float]:
    """Return the `val-core` and `val-aux` metrics of a step, as in its job."""
    return validation_metrics(
        ValidationRow(
            answer.data_source, answer.prompt, result.score, result.extras, answer.figures
        )
        for answer, result in zip(answers, results, strict=True)
    )


def write_evaluation(
    folder: Path,
    metrics: Sequence[Mapping[str, float]],
    rows: Sequence[tuple[Answer, RewardResult]],
) -> None:
    """Write the metrics, one line per step, and the rows with their scores."""
    kinds = value_kinds(result.extras for _, result in rows)
    records = [
        {
            "step": answer.step,
            "row": row,
            "prompt_id": answer.prompt,
            "sample": answer.sample,
            "data_source": answer.data_source,
            "prompt": answer.prompt_text,
            "response": answer.response,
            **truth_cells(answer.ground_truth),
            "score": result.score,
            "response_tokens": answer.tokens,
            "truncated": answer.is_truncated,
            "figures": answer.figures,
            "extra_info": msgspec.json.encode(answer.extra_info).decode(),
            "reward_values": msgspec.json.encode(result.extras, order="sorted").decode(),
            **value_cells(result.extras, kinds),
        }
        for row, (answer, result) in enumerate(rows)
    ]
    table = pa.Table.from_pylist(records, schema=with_values(_SCHEMA, kinds))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    durable.make_folder(folder, parents=True, exist_ok=True)
    durable.write_file(folder / SCORED_FILE, sink.getvalue().to_pybytes(), _POINT)
    lines = b"".join(msgspec.json.encode(line) + b"\n" for line in metrics)
    durable.write_file(folder / METRICS_FILE, lines, _POINT)
