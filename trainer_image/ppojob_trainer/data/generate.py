"""Generated tasks that need no download: addition, countdown, multiplication.

They raise `ConfigError` if there are too few different items.
"""

import itertools
import json
import math
import random
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from ppojob_trainer.data.prompt_files import TaskRow
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json

PromptForm = Literal["chat", "base"]
ProductForm = Literal["chat", "base", "calculator"]

ADDITION_EXAMPLE = (3, 5, 4)
WORKED_CALLS = ((27, 364), (815, 42))
"""Factors of the worked products in prompts. No item equals them, as its factors have equally many
digits."""
_TRIES = 200_000
"""Consecutive failed draws after which no further items are expected."""


@dataclass(frozen=True, slots=True)
class Task:
    """Training rows, and held-out rows that share no item with them."""

    train: list[TaskRow]
    held_out: list[TaskRow]


def addition(
    *, rows: int | None = None, held_out: int = 64, seed: int = 0, digits: int = 1
) -> Task:
    """Generate sums of three numbers above 0, after one worked example.

    Items are split by their sorted numbers, so no held-out sum is a training sum in another order.
    Without `rows`, there are all sums of single digits, or 10,000 sums of more digits.
    """
    if digits == 1:
        return _sums_of_digits(rows, held_out, seed)
    rows = 10_000 if rows is None else rows
    sums = [_addition_row(n) for n in _different_numbers(3, "sums", rows, held_out, seed, digits)]
    return Task(sums[held_out:], sums[:held_out])


def _sums_of_digits(rows: int | None, held_out: int, seed: int) -> Task:
    """Return all single-digit sums; the worked example's digits are never held out."""
    chosen = random.Random(seed)
    kinds: list[tuple[int, ...]] = list(itertools.combinations_with_replacement(range(1, 10), 3))
    chosen.shuffle(kinds)
    example = tuple(sorted(ADDITION_EXAMPLE))
    kinds.remove(example)
    kinds.append(example)
    orders = {kind: sorted(set(itertools.permutations(kind))) for kind in kinds}
    test: list[tuple[int, ...]] = []
    while len(test) < held_out and len(kinds) > 1:
        test += orders[kinds.pop(0)]
    if len(test) < held_out:
        raise ConfigError(
            f"--validation-rows: got {held_out}: there are {len(test)} sums except the example's; "
            f"at most {len(test)}"
        )
    train = [digits for kind in kinds for digits in orders[kind]]
    chosen.shuffle(train)
    chosen.shuffle(test)
    return Task(
        [_addition_row(digits) for digits in train[:rows]],
        [_addition_row(digits) for digits in test[:held_out]],
    )


def _different_numbers(
    length: int, what: str, rows: int, held_out: int, seed: int, digits: int
) -> list[tuple[int, ...]]:
    """Draw tuples of numbers that differ as multisets."""
    chosen = random.Random(seed)
    low, high = 10 ** (digits - 1), 10**digits - 1
    kinds, what = math.comb(high - low + length, length), f"{what} of {digits} digits"
    if rows + held_out > kinds:
        raise ConfigError(
            f"--rows: got {rows} and {held_out} held out: there are {kinds} {what}; at most "
            f"{kinds} together, or more digits"
        )
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    while len(found) < rows + held_out:
        numbers = tuple(chosen.randint(low, high) for _ in range(length))
        found.setdefault(tuple(sorted(numbers)), numbers)
    return list(found.values())


def _addition_row(numbers: tuple[int, ...]) -> TaskRow:
    return TaskRow(
        "ppojob/addition",
        [
            {"role": "user", "content": " + ".join(map(str, ADDITION_EXAMPLE))},
            {"role": "assistant", "content": worked_sum(ADDITION_EXAMPLE)},
            {"role": "user", "content": " + ".join(map(str, numbers))},
        ],
        str(sum(numbers)),
    )


def worked_sum(digits: tuple[int, ...]) -> str:
    """Return a sum step by step, and "#### " with its result."""
    lines = []
    total = digits[0]
    for digit in digits[1:]:
        lines.append(f"{total} + {digit} = {total + digit}")
        total += digit
    return "\n".join([*lines, f"#### {total}"])


def countdown(
    *,
    rows: int = 10_000,
    held_out: int = 512,
    seed: int = 0,
    operands: tuple[int, int] = (3, 4),
    max_number: int = 100,
    max_target: int = 100,
    form: PromptForm = "chat",
) -> Task:
    """Generate items of Countdown (reach a target with given numbers), with TinyZero's prompt.

    Every item has a solution, and no two have the same numbers and target. `operands` is the
    smallest and largest count of numbers; the form "base" is TinyZero's text for base models.
    """
    chosen = random.Random(seed)
    seen: set[tuple[int, ...]] = set()
    items: list[TaskRow] = []
    failed = 0
    while len(items) < rows + held_out and failed < _TRIES:
        failed += 1
        numbers = [
            chosen.randint(1, max_number) for _ in range(chosen.randint(operands[0], operands[1]))
        ]
        target = _reachable_target(numbers, chosen)
        if target is None or not 1 <= target <= max_target:
            continue
        key = (target, *sorted(numbers))
        if key not in seen:
            failed = 0
            seen.add(key)
            items.append(_countdown_row(numbers, target, form))
    if len(items) < rows + held_out:
        raise ConfigError(
            f"--rows: got {rows} and {held_out} held out: only {len(items)} different items were "
            "found; fewer rows, or a larger --max-target"
        )
    return Task(items[held_out:], items[:held_out])


def _reachable_target(numbers: list[int], chosen: random.Random) -> int | None:
    """Combine numbers at random to one value; None if it is not an integer."""
    values = [Fraction(number) for number in numbers]
    while len(values) > 1:
        left = values.pop(chosen.randrange(len(values)))
        right = values.pop(chosen.randrange(len(values)))
        results = [left + right, left - right, left * right]
        if right != 0:
            results.append(left / right)
        values.append(chosen.choice(results))
    return int(values[0]) if values[0].denominator == 1 else None


def _countdown_row(numbers: list[int], target: int, form: PromptForm) -> TaskRow:
    question = (
        f"Using the numbers {numbers}, create an equation that equals {target}. You can use basic "
        "arithmetic operations (+, -, *, /) and each number can only be used once. Show your work "
        "in <think> </think> tags. And return the final answer in <answer> </answer> tags, for "
        "example <answer> (1 + 2) / 3 </answer>."
    )
    ground_truth: dict[str, Json] = {"target": target, "numbers": [*numbers]}
    return TaskRow("countdown", _tagged_prompt(question, form), ground_truth)


def multiply(
    *,
    rows: int = 10_000,
    held_out: int = 512,
    seed: int = 0,
    digits: int = 2,
    form: ProductForm = "chat",
) -> Task:
    """Generate products of two numbers, as in TinyZero; no product occurs twice.

    No held-out product is a training product with swapped factors. The form "calculator" begins
    with worked calls: one or two in a training row, one in a held-out row.
    """
    items = _different_numbers(2, "products", rows, held_out, seed, digits)
    return Task(
        [
            _multiply_row(left, right, form, worked=1 + number % 2)
            for number, (left, right) in enumerate(items[held_out:])
        ],
        [_multiply_row(left, right, form, worked=1) for left, right in items[:held_out]],
    )


def _multiply_row(left: int, right: int, form: ProductForm, *, worked: int) -> TaskRow:
    if form == "calculator":
        calls = [message for item in WORKED_CALLS[:worked] for message in worked_call(*item)]
        return TaskRow("multiply", [*calls, _product_question(left, right)], str(left * right))
    question = (
        f"Give me the answer of the following equation: {left} * {right}. Show your work in "
        "<think> </think> tags. And return the final answer in <answer> </answer> tags, for "
        "example <answer> 10 </answer>."
    )
    return TaskRow("multiply", _tagged_prompt(question, form), str(left * right))


def _product_question(left: int, right: int) -> dict[str, str]:
    return {"role": "user", "content": f"What is {left} * {right}?"}


def worked_call(left: int, right: int) -> list[dict[str, str]]:
    """Return a product by the tool `calculator`, in the format hermes."""
    arguments = {"name": "calculator", "arguments": {"expression": f"{left} * {right}"}}
    return [
        _product_question(left, right),
        {"role": "assistant", "content": f"<tool_call>{json.dumps(arguments)}</tool_call>"},
        {"role": "tool", "content": str(left * right)},
        {"role": "assistant", "content": f"<answer>{left * right}</answer>"},
    ]


def _tagged_prompt(question: str, form: PromptForm) -> str | list[dict[str, str]]:
    if form == "base":
        return (
            "A conversation between User and Assistant. The user asks a question, and the "
            "Assistant solves it. The assistant first thinks about the reasoning process in the "
            "mind and then provides the user with the answer.\n"
            f"User: {question}\nAssistant: Let me solve this step by step.\n<think>"
        )
    return [
        {
            "role": "system",
            "content": "You are a helpful assistant. You first thinks about the reasoning process "
            "in the mind and then provides the user with the answer.",
        },
        {"role": "user", "content": question},
    ]
