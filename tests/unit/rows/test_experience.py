import torch
from hypothesis import given
from hypothesis import strategies as st

from ppojob_trainer.rows.experience import Experience


def experience(lengths: list[int], groups: list[int], **columns: torch.Tensor) -> Experience:
    tokens = sum(lengths)
    values = {
        "response_tokens": torch.arange(tokens),
        "mask": torch.arange(tokens) % 3 != 0,
        "rollout_logprobs": -torch.arange(tokens).float(),
        **columns,
    }
    return Experience(
        prompts=[torch.tensor([100 + group]) for group in range(max(groups, default=-1) + 1)],
        row_groups=torch.tensor(groups, dtype=torch.int64),
        lengths=torch.tensor(lengths, dtype=torch.int64),
        **values,
    )


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=8), st.data())
def test_selection_keeps_each_row_with_its_prompt(drawn, data):
    lengths, groups = (list(column) for column in zip(*drawn, strict=True))
    rows = experience(lengths, groups, advantages=torch.arange(float(sum(lengths))))
    chosen = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=8))
    selected = rows.select(chosen)
    assert selected.ref_logprobs is None
    assert len(selected.prompts) == len({groups[row] for row in chosen})
    for i, row in enumerate(chosen):
        first, last = rows.offsets[row], rows.offsets[row + 1]
        start, end = selected.offsets[i], selected.offsets[i + 1]
        for name in ("response_tokens", "mask", "rollout_logprobs", "advantages"):
            assert torch.equal(getattr(selected, name)[start:end], getattr(rows, name)[first:last])
        assert torch.equal(selected.prompts[selected.row_groups[i]], rows.prompts[groups[row]])
