"""The answer between <answer> and </answer>, as TinyZero asks for it."""


def last_answer(response: str) -> str | None:
    """Return the text of the last whole <answer> block, stripped; None without one.

    Departs from TinyZero, which reads the conversation behind the FIRST "Assistant:", in countdown
    the LAST line of that alone: a trailing newline scores 0 there. In multiply all lines count, but
    in both an answer over two lines is none. A reward function here gets the response alone, so
    there is nothing to skip, and an answer may have several lines.
    """
    closed = response.split("</answer>")[:-1]
    answers = [text.partition("<answer>")[2] for text in closed if "<answer>" in text]
    return answers[-1].strip() if answers else None
