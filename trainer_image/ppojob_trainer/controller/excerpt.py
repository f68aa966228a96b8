"""A prompt, its response and the ground truth, shortened to what a person reads at a glance."""

from typing import Final

from ppojob_api.problem import printable

PROMPT_CHARACTERS: Final = 160
PROMPT_LINES: Final = 4
RESPONSE_CHARACTERS: Final = 600
RESPONSE_LINES: Final = 12
TRUTH_CHARACTERS: Final = 160


def excerpt(prompt: str, response: str, ground_truth: str) -> list[str]:
    """Lines that cannot rewrite the terminal."""
    return [
        *_block("prompt", _tail(prompt.rstrip("\n"))),
        *_block("response", _head(response)),
        *_block("truth", [printable(ground_truth, TRUTH_CHARACTERS)]),
    ]


def _block(name: str, lines: list[str]) -> list[str]:
    first, *others = lines or [""]
    block = [f"  {name:<9} {first}", *(f"  {'':<9} {line}" for line in others)]
    return [line.rstrip() for line in block]


def _tail(text: str) -> list[str]:
    kept = text[-PROMPT_CHARACTERS:].split("\n")[-PROMPT_LINES:]
    mark = "..." if len("\n".join(kept)) < len(text) else ""
    return [printable(line) for line in (f"{mark}{kept[0]}", *kept[1:])]


def _head(text: str) -> list[str]:
    kept = text if len(text) <= RESPONSE_CHARACTERS else f"{text[:RESPONSE_CHARACTERS]}..."
    lines = kept.rstrip("\n").split("\n")
    if len(lines) > RESPONSE_LINES:
        lines = [*lines[: RESPONSE_LINES - 1], f"... and {len(lines) - RESPONSE_LINES + 1} lines"]
    return [printable(line) for line in lines]
