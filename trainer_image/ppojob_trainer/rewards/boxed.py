r"""The answer in \boxed{...}, as models of mathematics give it."""

_BOX = "\\boxed{"


def last_boxed(response: str) -> str | None:
    r"""Return what the last ``\boxed{`` holds, up to the brace that closes it; None without one.

    A last box that never ends is no answer, also where another one stands before it.
    """
    start = response.rfind(_BOX)
    if start < 0:
        return None
    start += len(_BOX)
    depth = 1
    for position in range(start, len(response)):
        depth += {"{": 1, "}": -1}.get(response[position], 0)
        if depth == 0:
            return response[start:position]
    return None


def text_problem(ground_truth: object) -> str | None:
    """Say what is wrong with the ground truth of a scorer of mathematics."""
    if isinstance(ground_truth, str) and ground_truth.strip():
        return None
    return r'the answer as text, such as "\\frac{1}{2}"'
