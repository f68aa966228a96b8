"""A game: find the garden of a house, door by door. Its prompts, who answers the moves, the score.

A job runs this file itself: `rows` makes its prompts (`spec.data.train[].path`), `walk` is the user
of its conversations (`spec.agent.interactions[].source`), `arrived` its reward (`spec.rewards`).
"""

import random
import re

GARDEN = "garden"
HOUSE = {
    "cellar": {"left": "cellar", "right": "kitchen", "ahead": "pantry"},
    "pantry": {"left": "kitchen", "right": "cellar", "ahead": "pantry"},
    "kitchen": {"left": "hall", "right": "pantry", "ahead": "cellar"},
    "hall": {"left": "kitchen", "right": "library", "ahead": "stairs"},
    "library": {"left": "library", "right": "hall", "ahead": "study"},
    "stairs": {"left": "attic", "right": "hall", "ahead": "library"},
    "attic": {"left": "attic", "right": "attic", "ahead": "stairs"},
    "study": {"left": "library", "right": "garden", "ahead": "attic"},
}
RULES = "You look for the garden. In each room say one word: left, right or ahead."
NEW = "A new walk."


def rows(*, count: int, moves: int):
    """Make prompts: the rules, some moves that somebody made by chance, and a room to begin in."""
    draw = random.Random(moves)
    for _ in range(count):
        room, said, messages = draw.choice(list(HOUSE)), RULES, []
        for _ in range(moves):
            move = draw.choice(list(HOUSE[room]))
            messages += [
                {"role": "user", "content": f"{said} {place(room)}".strip()},
                {"role": "assistant", "content": move},
            ]
            room, said = HOUSE[room].get(move, room), ""
            room = draw.choice(list(HOUSE)) if room == GARDEN else room
        begin = draw.choice(list(HOUSE))
        yield {
            "prompt": [*messages, {"role": "user", "content": f"{NEW} {place(begin)}"}],
            "data_source": "house",
            "reward_model": {"ground_truth": GARDEN},
            "extra_info": {"interaction_kwargs": {"name": "walk", "begin": begin}},
        }


def place(room):
    """What is said of a room."""
    return f"You are in the {room}."


def walk(messages, begin):
    """Answer a move: whether the walk is over, what is said, and the score of the turn."""
    last = max(at for at, one in enumerate(messages) if one["content"].startswith(NEW))
    room = begin
    for message in messages[last:]:
        move = re.search("left|right|ahead", message["content"].lower())
        if message["role"] == "assistant" and move:
            room = HOUSE[room][move[0]]
        if room == GARDEN:
            return True, place(room), 1.0
    return False, place(room), 0.0


def arrived(data_source, solution_str, ground_truth, extra_info):
    """1 for a walk that ended in the garden; its moves are counted too."""
    scores = extra_info["turn_scores"]
    moves = extra_info["num_turns"] // 2
    return {"score": float(bool(scores) and scores[-1] == 1.0), "moves": moves}
