"""Pairs of answers to sums of three digits: a worked one that is right, and one with a fault.

A job runs this file itself and takes the rows that `rows` makes (`spec.data.train[].path`).
"""

import itertools
import random


def rows(*, held_out: bool = False, fault: str = "slip"):
    """Make the pairs of all sums but 64, or those of the 64 that are held out.

    The fault is a slip in one of the two steps, or with `unfinished` that the result is not told.
    """
    draw = random.Random(0)
    sums = list(itertools.product(range(1, 10), repeat=3))
    draw.shuffle(sums)
    for digits in sums[:64] if held_out else sums[64:]:
        slip = draw.choice((-2, -1, 1, 2))
        slipped = worked(digits, {draw.choice((1, 2)): slip})
        right = worked(digits, {})
        unfinished = right.rpartition("\n")[0]
        yield {
            "prompt": [{"role": "user", "content": " + ".join(map(str, digits))}],
            "chosen": right,
            "rejected": unfinished if fault == "unfinished" else slipped,
        }


def worked(digits, slips):
    """A sum step by step, with a slip by so much in some of its steps."""
    total, lines = digits[0], []
    for step, digit in enumerate(digits[1:], start=1):
        result = total + digit + slips.get(step, 0)
        lines.append(f"{total} + {digit} = {result}")
        total = result
    return "\n".join([*lines, f"#### {total}"])
