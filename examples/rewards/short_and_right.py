"""A reward of one's own: right answers earn more the shorter they are."""


def score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, object],
    free_characters: int = 40,
    per_character: float = 0.005,
) -> dict[str, float]:
    """Score one response.

    Args:
        data_source: the row's task.
        solution_str: the response.
        ground_truth: the row's answer.
        extra_info: whatever else the row tells.
        free_characters: length that costs nothing; `spec.rewards[].arguments` can set it.
        per_character: what each character beyond costs.

    Returns:
        `score` is the reward; every other entry becomes a variable of the validation.
    """
    answer = solution_str.rsplit("####", 1)[-1].strip()
    is_right = answer == ground_truth
    penalty = per_character * max(0, len(solution_str) - free_characters)
    return {
        "score": max(0.0, 1.0 - penalty) if is_right else 0.0,
        "acc": float(is_right),
        "characters": float(len(solution_str)),
    }
