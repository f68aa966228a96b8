"""A long account that is read page by page: its prompts, the loop around the model, the score.

A job runs this file itself: `rows` makes its prompts (`spec.data.train[].path`), `read` is the loop
(`spec.agent.interactions[].source`), `kept` its reward (`spec.rewards`). No page is read together
with another: what the model wrote of those before is all that it knows of them.
"""

import random
import re
from itertools import pairwise

WORKED = [
    {"role": "user", "content": "3 + 5 + 4"},
    {"role": "assistant", "content": "3 + 5 = 8\n8 + 4 = 12\n#### 12"},
]


def rows(*, count: int, pages: int, held_out: bool = False):
    """Make accounts of so many pages with two numbers each; the prompt shows the first page."""
    draw = random.Random(pages)
    for _ in range(count):
        begin, first = draw.randint(1, 9), [draw.randint(1, 9), draw.randint(1, 9)]
        while ((begin + 2 * first[0] + 4 * first[1]) % 9 == 0) != held_out:
            begin, first = draw.randint(1, 9), [draw.randint(1, 9), draw.randint(1, 9)]
        others = [[draw.randint(1, 9), draw.randint(1, 9)] for _ in range(pages - 1)]
        account = [first, *others]
        yield {
            "prompt": context(str(begin), account[0]),
            "data_source": "ledger",
            "reward_model": {"ground_truth": str(begin + sum(map(sum, account)))},
            "extra_info": {
                "interaction_kwargs": {"name": "read", "begin": begin, "pages": account}
            },
        }


def context(total, page):
    """What the model reads of a page: a worked one, the total that it wrote, and the page."""
    return [*WORKED, {"role": "user", "content": f"{total} + {page[0]} + {page[1]}"}]


def read(messages, begin, pages):
    """Show page after page, each in a context of its own; a total that is right scores 1."""
    right, total = begin, (yield)
    for last, page in pairwise(pages):
        right += sum(last)
        written = number(total)
        total = yield context(written, page), float(written == str(right))
    return float(number(total) == str(right + sum(pages[-1])))


def number(text):
    """The number that a turn gives as its result; 0 where there is none."""
    found = re.search(r"#### (\d{1,4})", text)
    return found[1] if found else "0"


def kept(data_source, solution_str, ground_truth, extra_info):
    """The share of totals that are right, and whether the last one is."""
    scores = extra_info["turn_scores"]
    pages = len(extra_info["interaction_kwargs"]["pages"])
    return {"score": sum(scores) / pages, "right": float(scores[pages - 1 :] == [1.0])}
