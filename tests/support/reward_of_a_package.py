"""Stands for a package that the image of the reward pods has."""


def score(solution_str: str, **row: object) -> float:
    return float(len(solution_str))
