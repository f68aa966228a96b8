"""How the rows of a micro-batch lie in one packed sequence, without padding.

With shared prompts a group lies as `prompt, response_1, ..., response_n`: every response attends
to all of the prompt and causally to itself, never to another response, and its positions go on from
the prompt's. Without, every row lies as `prompt, response`. Of a response, what comes before its
last trained token is the input: nothing is predicted from the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ppojob_trainer.data.pictures import PictureForm
from ppojob_trainer.rows.experience import Experience


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive packed tokens that attend to each other causally."""

    start: int  # place of the first token in the packed sequence
    length: int
    prefix_start: int = 0  # place of the prompt that all of the span attends to
    prefix_length: int = 0  # tokens of that prompt, 0 where the span has none before it


@dataclass(frozen=True, slots=True)
class PackedRows:
    """The input of one packed forward pass, and where its answers are."""

    input_ids: Tensor  # (packed,) int64
    # (packed,) int64, each token's position in its own row; (3, packed) where there are pictures
    position_ids: Tensor
    spans: tuple[Span, ...]  # who attends to whom; they cover the packed sequence, in order
    # (trained,) int64, the packed token from which each trained token is predicted
    predictors: Tensor
    targets: Tensor  # (trained,) int64, the trained tokens themselves, in row order
    places: Tensor  # (trained,) int64, which of all trained tokens these are
    # (packed,) int64 in host memory, which token of the rows each is: those of all prompts, and
    # behind them those of all responses; -1 for one that nobody reads
    sources: Tensor
    # of each row with a trained token the spans that it reads, in order; of the others none
    readings: tuple[tuple[Span, ...], ...]
    pictures: tuple[bytes, ...] = ()  # of the prompts as they lie, each as one value
    picture_places: Tensor | None = None  # (n,) int64, the packed tokens that stand for them
    picture_rows: Tensor | None = None  # (n,) int64, which rows of the tower's features these are

    def run(self, number: int, runs: int) -> PackedRows:
        """One of so many equal runs of the packed tokens, with the trained tokens it predicts.

        Spans are those of all tokens; predictors count from the beginning of the run.
        """
        if runs == 1:
            return self
        length = len(self.input_ids) // runs
        first = number * length
        is_own = (self.predictors >= first) & (self.predictors < first + length)
        shown, rows = self.picture_places, self.picture_rows
        if shown is not None and rows is not None:
            is_seen = (shown >= first) & (shown < first + length)
            shown, rows = shown[is_seen] - first, rows[is_seen]
        return replace(
            self,
            input_ids=self.input_ids[first : first + length],
            position_ids=self.position_ids[..., first : first + length],
            predictors=self.predictors[is_own] - first,
            targets=self.targets[is_own],
            places=self.places[is_own],
            sources=self.sources[first : first + length],
            picture_places=shown,
            picture_rows=rows,
        )

    def to(self, device: torch.device) -> PackedRows:
        """The same on a device."""
        return replace(
            self,
            input_ids=self.input_ids.to(device),
            position_ids=self.position_ids.to(device),
            predictors=self.predictors.to(device),
            targets=self.targets.to(device),
            places=self.places.to(device),
            picture_places=None if (seen := self.picture_places) is None else seen.to(device),
            picture_rows=None if (rows := self.picture_rows) is None else rows.to(device),
        )


class _Packer:
    """Lays pieces of rows one after the other."""

    def __init__(self) -> None:
        self.ids: list[Tensor] = []
        self.positions: list[Tensor] = []
        self.sources: list[Tensor] = []
        self.pictures: list[bytes] = []
        self.picture_places: list[Tensor] = []
        self.spans: list[Span] = []
        self.end = 0

    def add(
        self, ids: Tensor, positions: Tensor, sources: Tensor, prefix: Span | None = None
    ) -> Span:
        """Append a span that continues `prefix`, or starts a row."""
        before = 0 if prefix is None else prefix.length
        span = Span(self.end, ids.numel(), 0 if prefix is None else prefix.start, before)
        if span.length:
            self.ids.append(ids)
            self.sources.append(sources)
            self.positions.append(positions)
            self.spans.append(span)
            self.end += span.length
        return span

    def show(self, span: Span, prompt: Tensor, pictures: bytes, form: PictureForm | None) -> None:
        """Note the pictures of the prompt that a span begins with."""
        if pictures and form is not None:
            self.pictures.append(pictures)
            self.picture_places.append((prompt == form.token).nonzero()[:, 0] + span.start)

    def whole_positions(self) -> Tensor:
        """Those of all spans, in three rows where any has them."""
        if not self.pictures:
            return torch.cat(self.positions)
        return torch.cat([positions.expand(3, -1) for positions in self.positions], dim=1)


def _positions(form: PictureForm | None, prompt: Tensor, pictures: bytes) -> Tensor:
    """Of a prompt's tokens: (tokens,), and (3, tokens) where it shows pictures."""
    if form is None or not pictures:
        return torch.arange(len(prompt))
    return torch.tensor(form.positions(prompt.tolist(), pictures))


def pack_rows(
    experience: Experience,
    *,
    share_prompts: bool = True,
    multiple: int = 1,
    form: PictureForm | None = None,
) -> PackedRows:
    """Lay out all rows of an experience, at least one; each prompt once a group, or once a row.

    Tokens that nobody reads fill the packed sequence up to a multiple of some number. `form` says
    how the model takes pictures; None where it sees none.
    """
    packer = _Packer()
    lengths = experience.lengths.tolist()
    responses = torch.split(experience.response_tokens, lengths)
    tokens_of_prompts = sum(prompt.numel() for prompt in experience.prompts)
    of_prompts = _numbered(experience.prompt_lengths.tolist())
    of_responses = _numbered(lengths, first=tokens_of_prompts)
    trained = [mask.nonzero()[:, 0] for mask in torch.split(experience.mask, lengths)]
    prompts: dict[int, Span] = {}
    positions: dict[int, Tensor] = {}
    predictors: list[Tensor] = [torch.empty(0, dtype=torch.int64)] * experience.num_rows
    readings: list[tuple[Span, ...]] = [()] * experience.num_rows
    groups = experience.row_groups.tolist()
    first_rows = {group: row for row, group in reversed(list(enumerate(groups)))}
    for row in sorted(range(len(groups)), key=lambda row: (first_rows[groups[row]], row)):
        prompt, places = experience.prompts[groups[row]], trained[row]
        pictures = experience.pictures[groups[row]] if experience.pictures else b""
        if groups[row] not in positions:
            positions[groups[row]] = _positions(form, prompt, pictures)
        before = positions[groups[row]]
        of_prompt = of_prompts[groups[row]]
        read = responses[row][: int(places[-1]) if len(places) else 0]
        of_read = of_responses[row][: len(read)]
        after = torch.arange(len(read)) + before.max() + 1
        if share_prompts:
            if groups[row] not in prompts:
                prompts[groups[row]] = packer.add(prompt, before, of_prompt)
                packer.show(prompts[groups[row]], prompt, pictures, form)
            shared = prompts[groups[row]]
            own = packer.add(read, after, of_read, shared)
            readings[row], first = (shared, own), own.start
            last = shared.start + shared.length - 1
        else:
            both = torch.cat([before, after.expand(*before.shape[:-1], -1)], dim=-1)
            sources = torch.cat([of_prompt, of_read])
            whole = packer.add(torch.cat([prompt, read]), both, sources)
            packer.show(whole, prompt, pictures, form)
            last = whole.start + prompt.numel() - 1
            readings[row], first = (whole,), last + 1
        if not len(places):
            readings[row] = ()
        predictors[row] = torch.where(places == 0, last, first + places - 1)
    filler = torch.zeros(-packer.end % multiple, dtype=torch.int64)
    packer.add(filler, torch.arange(len(filler)), filler - 1)
    targets = experience.response_tokens[experience.mask]
    shown = torch.cat(packer.picture_places) if packer.pictures else None
    return PackedRows(
        input_ids=torch.cat(packer.ids),
        position_ids=packer.whole_positions(),
        spans=tuple(packer.spans),
        predictors=torch.cat(predictors),
        targets=targets,
        places=torch.arange(len(targets)),
        sources=torch.cat(packer.sources),
        readings=tuple(readings),
        pictures=tuple(packer.pictures),
        picture_places=shown,
        picture_rows=None if shown is None else torch.arange(len(shown)),
    )


def _numbered(lengths: list[int], first: int = 0) -> tuple[Tensor, ...]:
    """Runs of so many numbers each, one behind the other."""
    return torch.split(torch.arange(first, first + sum(lengths)), lengths)
