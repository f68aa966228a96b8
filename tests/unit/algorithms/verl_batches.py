"""The batches of verl_numbers.json, of which verl, TRL and prime-rl have given their numbers."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ppojob_trainer.algorithms.aggregate import aggregate


def table(name: str) -> dict[str, Any]:
    return json.loads(Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8"))


VERL, TRL, PRIME_RL, OF_GROUPS = (
    table(f"{name}_numbers") for name in ("verl", "trl", "prime_rl", "group")
)


class Stored:
    def __init__(self, batch: dict[str, Any], dtype: torch.dtype) -> None:
        self._batch, self._dtype = batch, dtype
        self.mask = torch.tensor([bool(m) for row in batch["mask"] for m in row])
        self.lengths = torch.tensor([len(row) for row in batch["mask"]])
        self.groups = torch.tensor(batch["groups"])

    def __getitem__(self, name: str) -> Tensor:
        column = [value / 64 for row in self._batch[name] for value in row]
        return torch.tensor(column, dtype=self._dtype)

    def total(self, values: Tensor, mode: str) -> Tensor:
        return aggregate(
            values,
            self.mask,
            self.lengths,
            mode,
            global_tokens=int(self.mask.sum()),
            global_sequences=len(self.lengths),
            scale_tokens=32,
        )


def stored_batches(dtype: torch.dtype = torch.float64) -> list[Stored]:
    return [Stored(batch, dtype) for batch in VERL["batches"]]


def advantages_of_trl(number: int, stored: Stored, dtype: torch.dtype) -> Tensor:
    """Those of the batch of this number, where a response has one."""
    of_rows = torch.tensor(TRL["advantages"][number], dtype=dtype)
    return of_rows.repeat_interleave(stored.lengths)
