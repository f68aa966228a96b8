"""Sums of three digits, with a second prompt each, in which the worked solution stands twice.

A job runs this file itself and takes the rows that `rows` makes (`spec.data.train[].path`).
"""

import itertools
import random

SHOWN = (3, 5, 4)
"""The sum that every prompt works out first."""


def rows(*, held_out: bool = False):
    """Make the rows of all sums but 64, or of the 64 that are held out."""
    sums = list(itertools.product(range(1, 10), repeat=3))
    random.Random(0).shuffle(sums)
    for digits in sums[:64] if held_out else sums[64:]:
        yield {
            "data_source": "ppojob/addition",
            "prompt": [*solved(SHOWN), asked(digits)],
            "teacher_prompt": [*solved(digits), *solved(digits), asked(digits)],
            "reward_model": {"ground_truth": str(sum(digits))},
        }


def asked(digits):
    """The message that asks for a sum."""
    return {"role": "user", "content": " + ".join(map(str, digits))}


def solved(digits):
    """The same and its answer, step by step."""
    first, second, third = digits
    lines = (
        f"{first} + {second} = {first + second}",
        f"{first + second} + {third} = {sum(digits)}",
        f"#### {sum(digits)}",
    )
    return [asked(digits), {"role": "assistant", "content": "\n".join(lines)}]
