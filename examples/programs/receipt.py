"""A receipt that is added up price by price: its prompts, the program that asks, the score.

A job runs this file itself: `rows` makes its prompts (`spec.data.train[].path`), `total` is the
program (`spec.agent.interactions[].source`), `share` its reward (`spec.rewards`). `total` speaks
with the model as with any service of that interface; with the package `openai` in the image, `ask`
is `openai.OpenAI().chat.completions.create(model="policy", messages=messages, max_tokens=16)`.
"""

import json
import os
import random
import re
import urllib.request

WORKED = [
    {"role": "user", "content": "4 + 9"},
    {"role": "assistant", "content": "4 + 9 = 13"},
    {"role": "user", "content": "+ 6"},
    {"role": "assistant", "content": "13 + 6 = 19"},
    {"role": "user", "content": "+ 2"},
    {"role": "assistant", "content": "19 + 2 = 21"},
]


def rows(*, count: int, prices: int, held_out: bool = False):
    """Make receipts of so many prices; the prompt asks for the sum of the first two."""
    draw = random.Random(prices)
    for _ in range(count):
        receipt = [draw.randint(1, 9) for _ in range(prices)]
        while ((receipt[0] + 2 * receipt[1]) % 7 == 0) != held_out:
            receipt = [draw.randint(1, 9) for _ in range(prices)]
        yield {
            "prompt": [*WORKED, {"role": "user", "content": f"{receipt[0]} + {receipt[1]}"}],
            "data_source": "receipt",
            "reward_model": {"ground_truth": str(sum(receipt))},
            "extra_info": {"interaction_kwargs": {"name": "total", "prices": receipt}},
        }


def total(messages, prices):
    """Ask for the sum of two prices, then for each further one; the share that is right."""
    right, found = prices[0], []
    for price in prices[1:]:
        if found:
            messages.append({"role": "user", "content": f"+ {price}"})
        messages.append(ask(messages))
        right += price
        said = re.search(r"= (\d+)$", messages[-1]["content"])
        found.append(said is not None and said[1] == str(right))
    return sum(found) / len(found)


def ask(messages):
    """The model's next message."""
    body = json.dumps({"model": "policy", "messages": messages, "max_tokens": 16}).encode()
    address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]


def share(data_source, solution_str, ground_truth, extra_info):
    """What the program returned; 0 where it did not come to its end."""
    turns = len(extra_info["interaction_kwargs"]["prices"]) - 1
    scores = extra_info["turn_scores"]
    score = scores[-1] if len(scores) == turns else 0.0
    return {"score": score, "right": float(score == 1.0)}
