"""Tiny models and rows for the engine's tests."""

from collections.abc import Callable
from typing import Any

import pytest
import tiny_models
import torch
from family_models import FAMILY_MODELS
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from ppojob_trainer.engine.objective import Denominators
from ppojob_trainer.rows.experience import Experience

VOCAB = 97

MakeModel = Callable[..., PreTrainedModel]
MakeRows = Callable[..., Experience]


class PeakBytes(TorchDispatchMode):
    """The most bytes that tensors made in its scope held at a time; counted, not measured."""

    def __init__(self):
        super().__init__()
        self.peak = 0
        self._held = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for storage in (x.untyped_storage() for x in tree_leaves(result) if torch.is_tensor(x)):
            alive = StorageWeakRef(storage)
            self._held[alive.cdata] = alive, storage.nbytes()
        self._held = {at: held for at, held in self._held.items() if not held[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._held.values()))
        return result


@pytest.fixture
def peak_bytes() -> type[PeakBytes]:
    return PeakBytes


@pytest.fixture
def make_model() -> MakeModel:
    def make(
        family: str = "llama",
        *,
        tied: bool = True,
        dtype: torch.dtype = torch.float32,
        **changes: object,
    ) -> PreTrainedModel:
        kind, own = FAMILY_MODELS[family]
        sizes = {"vocab_size": VOCAB, **tiny_models.TWO_LAYERS, **own, **changes}
        model = tiny_models.make_model(kind, **sizes, tie_word_embeddings=tied)
        return model.to(dtype)

    return make


@pytest.fixture
def make_rows() -> MakeRows:
    def make(
        groups: int = 3, samples: int = 3, *, longest: int = 9, seed: int = 1, old: bool = False
    ) -> Experience:
        generator = torch.Generator().manual_seed(seed)

        def draw(high: int, shape: tuple[int, ...], low: int = 0) -> torch.Tensor:
            return torch.randint(low, high, shape, generator=generator)

        lengths = draw(longest + 1, (groups * samples,), low=1)
        tokens = int(lengths.sum())
        noise = torch.randn(5, tokens, generator=generator)
        return Experience(
            prompts=[draw(VOCAB, (int(draw(8, (1,), low=1)),)) for _ in range(groups)],
            row_groups=torch.arange(groups).repeat_interleave(samples),
            response_tokens=draw(VOCAB, (tokens,)),
            lengths=lengths,
            mask=noise[0] < 1.0,
            rollout_logprobs=noise[1] - 4.0,
            old_logprobs=noise[2] - 4.0 if old else None,
            ref_logprobs=noise[3] - 4.0,
            advantages=noise[4],
        )

    return make


@pytest.fixture
def parts_add_up() -> Callable[..., None]:
    """Holds an objective of parts of a mini-batch of 12 rows against that of the whole."""

    def check(
        objective: Any,
        outputs: tuple[torch.Tensor, ...],
        rows: Experience,
        ends: tuple[int, ...] = (5, 6),
    ) -> None:
        denominators = Denominators.of(rows)
        whole = objective(outputs, rows, denominators)
        parts = []
        for cut in torch.arange(12).tensor_split(ends):
            places = rows.token_index(cut)
            own = tuple(output[places] for output in outputs)
            parts.append(objective(own, rows.select(cut), denominators))
        assert {*objective.token_names} == whole.token_sums.keys()
        for name in objective.term_names:
            found = sum(part.terms[name] for part in parts)
            assert found == pytest.approx(whole.terms[name], rel=1e-5)
        for name in objective.token_names:
            found = sum(part.token_sums[name] for part in parts)
            assert found == pytest.approx(whole.token_sums[name], rel=1e-5)
        ours = torch.autograd.grad(sum(part.loss for part in parts), outputs)
        theirs = torch.autograd.grad(whole.loss, outputs)
        torch.testing.assert_close(ours, theirs)

    return check


@pytest.fixture
def partly_trained(make_rows: MakeRows) -> Experience:
    """Rows of which one trains nothing, and another not its last token."""
    made = make_rows()
    made.mask[made.token_rows == 4] = False
    made.mask[(made.token_rows == 7).nonzero()[-1]] = False
    return made
