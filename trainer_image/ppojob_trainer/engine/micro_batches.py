"""Micro-batches: whole groups of rows under a token budget. Pure functions."""

from collections.abc import Sequence
from itertools import groupby


def plan_micro_batches(
    prompt_lengths: Sequence[int],  # (groups,)
    row_groups: Sequence[int],  # (rows,)
    lengths: Sequence[int],  # (rows,) of responses
    *,
    budget: int,
    share_prompts: bool = True,
    whole_groups: bool = False,
) -> list[list[int]]:
    """Split rows into micro-batches of at most `budget` tokens; return their row numbers.

    The rows of a group stay together so that its prompt is computed once. A group above the budget
    is split into runs of rows, each with the prompt; with `whole_groups` it is a micro-batch of its
    own, as is a single row above the budget. Of all splits with the fewest micro-batches in this
    order, the one with the smallest maximum is taken. The budget includes prompts, shared ones once
    per group and micro-batch. Groups are in the order of their first row.
    """
    first_rows: dict[int, int] = {}
    for row, group in enumerate(row_groups):
        first_rows.setdefault(group, row)
    order = sorted(range(len(row_groups)), key=lambda row: (first_rows[row_groups[row]], row))
    groups = [
        (prompt_lengths[group], [(row, lengths[row]) for row in rows])
        for group, rows in groupby(order, key=lambda row: row_groups[row])
    ]
    if not share_prompts:
        groups = [(0, [(row, prompt + length) for row, length in rows]) for prompt, rows in groups]
        if not whole_groups:
            groups = [(0, [row]) for _, rows in groups for row in rows]
    plan = _fill(groups, budget, whole_groups)
    sizes = (prompt + sum(length for _, length in rows) for prompt, rows in groups)
    low, high = max((size for size in sizes if size <= budget), default=1), budget
    while low < high:
        middle = (low + high) // 2
        candidate = _fill(groups, middle, whole_groups)
        if len(candidate) == len(plan):
            plan, high = candidate, middle
        else:
            low = middle + 1
    return plan


_Group = tuple[int, list[tuple[int, int]]]


def _fill(groups: list[_Group], budget: int, whole_groups: bool) -> list[list[int]]:
    """Fill micro-batches greedily: the fewest that keep the order."""
    batches: list[list[int]] = []
    room = -1
    for prompt, rows in groups:
        whole = prompt + sum(length for _, length in rows)
        if whole <= room:
            batches[-1].extend(row for row, _ in rows)
            room -= whole
            continue
        if whole_groups:
            batches.append([row for row, _ in rows])
            room = budget - whole
            continue
        room = -1
        for row, length in rows:
            if length > room:
                batches.append([])
                room = budget - prompt
            batches[-1].append(row)
            room -= length
    return batches
