"""Search-R1: the answer in the last <answer>, compared with the known answers after normalisation.

Jin et al. 2025, arXiv:2503.09516. The rules are those of verl's
``reward_score/search_r1_like_qa_em.py`` and of Search-R1's ``qa_em_format.py``; the normalisation
is SQuAD's (Rajpurkar et al. 2016, arXiv:1606.05250).
"""

import re
import string
from typing import Literal

from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.records import Verdict, last_answer, scored, verdict

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_MANY_TAGS = 10
_TAG = re.compile(r"(</?(?:think|search|information|answer)>)")
_TURNS = re.compile(
    "(<think></think><search></search><information></information>)*<think></think><answer></answer>"
)
_INFORMATION = re.compile(r"<information>(.*?)</information>", re.DOTALL)


def search_r1(
    response: str,
    ground_truth: Json,
    *,
    match: Literal["exact", "substring"] = "exact",
    score: float = 1.0,
    format_score: float = 0.0,
) -> Verdict:
    """Score the last <answer> block; the numbers are verl's.

    Case, punctuation, articles and spaces are ignored. With ``exact``, a right answer among more
    than ten opening or closing tags has a quarter of the score. With ``substring``, an answer that
    contains a known one is right.

    The truth is ``{"target": ["Paris", "city of Paris"]}``, or has one text as its target.
    """
    targets = _targets(ground_truth)
    answer = last_answer(response)
    if match == "substring":
        is_right = answer is not None and _holds(answer, targets)
    else:
        is_right = answer is not None and plain_words(answer) in targets
        if max(response.count("<answer>"), response.count("</answer>")) > _MANY_TAGS:
            score /= 4
    return verdict(answer, is_right=is_right, score=score, format_score=format_score)


def search_r1_format(
    response: str,
    ground_truth: Json,
    *,
    score: float = 1.0,
    structure_format_score: float = 0.0,
    final_format_score: float = 0.0,
    retrieval_score: float = 0.0,
) -> Verdict:
    """Score answer, form and search results, as Search-R1's ``qa_em_format.py`` does.

    Departs from it where it also reads the prompt, which has an example: there one <answer> block
    counts as none, and the word between the example's <information> tags as a result. A target that
    is text is one target here, not its letters.

    Args:
        response: response with the search results.
        ground_truth: as for ``search_r1``.
        score: score of a right answer in the right form; less ``structure_format_score`` in another
            form.
        structure_format_score: score of a wrong answer in the right form: <think>, then any number
            of <search>, <information> and <think>, then <answer>, without text between them.
        final_format_score: score of a wrong answer in another form.
        retrieval_score: added for the right form if <information> contains a target.
    """
    targets = _targets(ground_truth)
    answer = last_answer(response)
    is_right = answer is not None and plain_words(answer) in targets
    if has_form(response):
        found = _INFORMATION.findall(response)
        has_found = any(_holds(text, targets) for text in found)
        given = structure_format_score + (retrieval_score if has_found else 0.0)
        given = score if is_right else given
    elif is_right:
        given = score - structure_format_score
    else:
        given = 0.0 if answer is None else final_format_score
    return scored(given, answer, is_right=is_right)


def ground_truth_problem(ground_truth: Json) -> str | None:
    """Return what is allowed, if a ground truth does not have this form."""
    try:
        _targets(ground_truth)
    except TypeError as error:
        return str(error)
    return None


def plain_words(text: str) -> str:
    """Normalise a text: lower case, no ASCII punctuation and articles, single spaces."""
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def has_form(response: str) -> bool:
    """Whether the tags are in the right order, with only spaces between them."""
    pieces = _TAG.split(response)
    # Texts and tags alternate: if all tags are in pairs, every fourth piece is outside of them.
    is_clean = not any(text.strip() for text in pieces[::4])
    return is_clean and _TURNS.fullmatch("".join(pieces[1::2])) is not None


def _holds(text: str, targets: list[str]) -> bool:
    words = plain_words(text)
    return any(target in words for target in targets)


def _targets(ground_truth: Json) -> list[str]:
    match ground_truth:
        case {"target": str(target)}:
            return [plain_words(target)]
        case {"target": [_, *_] as targets}:
            texts = [target for target in targets if isinstance(target, str)]
            if len(texts) == len(targets):
                return [plain_words(target) for target in texts]
    raise TypeError('the known answers, such as {"target": ["Paris"]}')
