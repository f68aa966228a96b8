"""A game: guess a number from where it lies. The rows, who answers the guesses, and the score.

A job runs this file itself: `rows` makes its prompts (`spec.data.train[].path`), `answer` is the
user of its conversations (`spec.agent.interactions[].source`), `won` its reward (`spec.rewards`).
"""

import random
import re

HIGHEST = 31
RULES = "I think of a number. I say where it lies, and you guess it with as few numbers as you can."
NEW = "Right! A new game."


def rows(*, count: int, held_out: bool = False):
    """Make prompts: the rules, a game that somebody has played without a plan, and a new one.

    Held-out prompts show games about other numbers.
    """
    draw = random.Random(held_out)
    shown = [number for number in range(1, HIGHEST + 1) if (number % 5 == 0) == held_out]
    for row in range(count):
        number = 1 + row % HIGHEST
        yield {
            "prompt": played(draw.choice(shown), draw),
            "data_source": "guess",
            "reward_model": {"ground_truth": str(number)},
            "extra_info": {"interaction_kwargs": {"name": "answer", "number": number}},
        }


def played(number, draw):
    """The messages of a game with guesses by chance, up to where the next one begins."""
    low, high, said = 1, HIGHEST, f"{RULES} {place(1, HIGHEST)}"
    messages = []
    while True:
        guess = draw.randint(low, high)
        messages += [
            {"role": "user", "content": said},
            {"role": "assistant", "content": f"{guess}"},
        ]
        if guess == number:
            return [*messages, {"role": "user", "content": f"{NEW} {place(1, HIGHEST)}"}]
        low, high = narrowed(low, high, guess, number)
        said = place(low, high)


def place(low, high):
    """Where it lies."""
    return f"It lies between {low} and {high}."


def narrowed(low, high, guess, number):
    """Where it lies behind a guess that was not right."""
    if low <= guess < number:
        return guess + 1, high
    return (low, guess - 1) if number < guess <= high else (low, high)


def answer(messages, number):
    """Answer a guess: whether the game is over, what is said, and the score of the turn."""
    begun = max(at for at, one in enumerate(messages) if one["content"].startswith(NEW))
    low, high = 1, HIGHEST
    for message in messages[begun:]:
        guess = re.search(r"\d+", message["content"]) if message["role"] == "assistant" else None
        if guess is None:
            continue
        if int(guess[0]) == number:
            return True, "Right!", 1.0
        low, high = narrowed(low, high, int(guess[0]), number)
    return False, place(low, high), 0.0


def won(data_source, solution_str, ground_truth, extra_info):
    """1 for a game that was won; its guesses are counted too."""
    scores = extra_info["turn_scores"]
    return {
        "score": float(bool(scores) and scores[-1] == 1.0),
        "guesses": extra_info["num_turns"] // 2,
    }
