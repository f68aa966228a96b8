from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
import torch
from transformers import Qwen3MoeConfig

from ppojob_trainer.checkpoint.journal import Journal
from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.engines import Engines
from ppojob_trainer.controller.rollout_stages import RolloutStages
from ppojob_trainer.controller.row_tape import RowTape
from ppojob_trainer.controller.scoring import Scoring
from ppojob_trainer.data.media.images import LaterImage, packed_later
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.json_value import Json
from ppojob_trainer.rollout.protocol import RolloutError
from ppojob_trainer.rollout.trajectory import Segment, Trajectory
from ppojob_trainer.rows.experience import ROUTER_COLUMNS
from ppojob_trainer.rows.row_files import read_row_metadata, read_tokens, write_part
from ppojob_trainer.rpc.messages.rollout import PromptTokens
from ppojob_trainer.rpc.messages.rows import WriteRows
from ppojob_trainer.rpc.messages.saving import Saved
from ppojob_trainer.rpc.messages.scoring import RowScore
from ppojob_trainer.rpc.methods import WRITE_ROWS
from ppojob_trainer.rpc.server import Route
from ppojob_trainer.workers.row_store import OwnedRows, build_rows, read_trajectories, rows_table

SAMPLES = 2
TRUTHS: list[Json] = ["0", None, {"two": [2]}, "3", 4]
PROMPTS = [PromptRow(7 * n, (n, n), "p", f"source {n}", TRUTHS[n], {"n": n}) for n in range(5)]
TWO_TURNS = Trajectory(
    (Segment((3, 1), (-0.5, -0.25), 4), Segment((8, 9)), Segment((7,), (-0.1,), 5)),
    "length",
    experts=bytes(range(6 * 2)),  # one layer, two experts a token, without the last token
    images=(LaterImage(2, b"a"), LaterImage(3, b"bc")),
)
MIXTURE = Qwen3MoeConfig(num_hidden_layers=1, num_experts_per_tok=2, num_experts=32)


def extras(row: int) -> dict[str, float | str]:
    """A value that a column has already, one of the last row alone, one of two kinds."""
    told: dict[str, float | str] = {"length": float(row), "prompt": 0.5, "pred": "ab"[row % 2]}
    told["mixed"] = "text" if row % 2 else float(row)
    return told | ({"late": 1.0} if row == 9 else {})


class Digits:
    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        return f"{tokens} {skip_special_tokens}"


@pytest.fixture
def batch() -> Batch:
    """Five prompts: two of the first owner, three of the second."""
    made = Batch("train", 1, PROMPTS, SAMPLES, owners=2)
    made.set_scores([RowScore(row, row / 2, msgspec.json.encode(extras(row))) for row in range(10)])
    return made


def rows_of(first: int, last: int) -> OwnedRows:
    prompts = [PromptTokens(prompt.index, list(prompt.token_ids)) for prompt in PROMPTS]
    responses = [
        TWO_TURNS
        if row == 3
        else Trajectory(
            (Segment((row, 1), (-1 / 3, 0.0), 0),), "stop", experts=bytes([row] * 2 * 3)
        )
        for row in range(2 * first, 2 * last)
    ]
    return build_rows(first, prompts[first:last], SAMPLES, responses, mixture=MIXTURE)


@pytest.fixture
def written(role_of, roles_of, batch: Batch, tmp_path: Path) -> Callable[[int], Path]:
    """Has the rows of the batch written, in chunks of some bytes; answers the folder."""

    def owner(first: int, last: int) -> list[Route]:
        rows = rows_of(first, last)

        def write(request: WriteRows) -> Saved:
            table = rows_table(rows, request, Digits())
            write_part(tmp_path / request.folder, request.part, table)
            return Saved([])

        return [Route(WRITE_ROWS, write)]

    def make(chunk_bytes: int) -> Path:
        group = role_of("actorRollout", *(owner(*share) for share in batch.shares))
        roles = roles_of(group)
        scoring = Scoring(roles, None, None)
        folder = f"rows-{chunk_bytes}"
        tape = RowTape(Journal(tmp_path / "journal"), tmp_path, "settings")
        stages = RolloutStages(roles, Engines(group, 1), scoring, tape, chunk_bytes)
        stages.write_rows(batch, folder)
        return tmp_path / folder

    return make


def content(folder: Path) -> list[dict[str, object]]:
    return sorted(pq.read_table(folder).to_pylist(), key=lambda row: row["row"])


def test_rows_are_written_alike_in_one_part_and_in_many(written):
    whole, cut = written(1 << 20), written(1)
    assert [part.name for part in sorted(whole.iterdir())] == [
        "part-00000.parquet",
        "part-00001.parquet",
    ]
    assert len(list(cut.iterdir())) == len(PROMPTS)
    rows = content(whole)
    assert content(cut) == rows
    assert [row["row"] for row in rows] == list(range(10))
    row = rows[7]
    assert (row["prompt_id"], row["sample"], row["data_source"]) == (21, 1, "source 3")
    assert (row["prompt"], row["response"]) == ("[3, 3] False", "[7, 1] True")
    assert (row["step"], row["score"], row["ground_truth"]) == (1, 3.5, "3")
    assert (row["length"], row["reward_extra/prompt"], row["pred"]) == (7.0, 0.5, "b")
    assert row["extra_info"] == '{"n":3}'
    assert [row["late"] for row in rows] == [None] * 9 + [1.0]
    assert [row["mixed"] for row in rows[:2]] == ["0.0", "text"]
    assert [row["ground_truth"] for row in rows[::2]] == ["0", None, '{"two": [2]}', "3", "4"]


def test_what_is_read_back_is_what_was_written(written, batch: Batch):
    """By owners that share the rows in another way than those that wrote them."""
    parts = sorted(written(1).iterdir())
    told, *scored = read_row_metadata(parts)
    assert scored == [batch.scores, batch.extras]
    assert [row.length for row in told] == [2, 2, 2, 5, 2, 2, 2, 2, 2, 2]
    assert [row.is_truncated for row in told] == [row == 3 for row in range(10)]
    shown = len(packed_later(TWO_TURNS.images))
    assert [row.later_image_bytes for row in told] == [0] * 3 + [shown] + [0] * 6
    prompts = [PromptTokens(prompt.index, list(prompt.token_ids)) for prompt in PROMPTS]
    for first, last in ((0, 5), (1, 3), (4, 5)):
        rows = read_trajectories(read_tokens(parts, first * SAMPLES, last * SAMPLES))
        found = build_rows(first, prompts[first:last], SAMPLES, rows, mixture=MIXTURE)
        expected = rows_of(first, last)
        assert (found.spans, found.truncated) == (expected.spans, expected.truncated)
        assert found.experience.later_images == expected.experience.later_images
        columns = ("response_tokens", "lengths", "mask", "rollout_logprobs", *ROUTER_COLUMNS)
        for column in columns:
            ours, theirs = getattr(found.experience, column), getattr(expected.experience, column)
            assert torch.equal(ours, theirs)


def test_experts_lie_where_their_tokens_do():
    """Those of a prompt are its first row's; the last token of a response was not read."""
    rows = rows_of(1, 2).experience  # rows 2 and 3
    assert rows.prompt_experts.flatten().tolist() == [2] * 4
    of_first, of_second = torch.split(rows.experts.flatten(1), rows.lengths.tolist())
    assert of_first.tolist() == [[2, 2], [0, 0]]
    assert of_second.tolist() == [[4, 5], [6, 7], [8, 9], [10, 11], [0, 0]]


def test_rows_without_experts_are_no_rows_of_such_a_job():
    drawn = [Trajectory((Segment((3, 1), (-0.5, -0.25), 4),), "stop")]
    with pytest.raises(
        RolloutError, match="routerReplay: got rollout: the rows have no recorded experts"
    ):
        build_rows(0, [PromptTokens(0, [1])], 1, drawn, mixture=MIXTURE)
