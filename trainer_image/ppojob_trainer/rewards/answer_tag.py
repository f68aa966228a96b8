"""The answer between <answer> and </answer>, as TinyZero asks for it."""


def last_answer(response: str) -> str | None:
    """Return the text of the last whole <answer> block, stripped; None without one.

    Departs from TinyZero, which reads the whole conversation and of it only the LAST line after the
    FIRST "Assistant:": a trailing newline, or an answer over two lines, scored 0 there. A reward
    function here gets the response alone, so there is nothing to skip, and every line counts.
    """
    closed = response.split("</answer>")[:-1]
    answers = [text.partition("<answer>")[2] for text in closed if "<answer>" in text]
    return answers[-1].strip() if answers else None
