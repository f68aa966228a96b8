"""How the rows of a micro-batch lie in one packed sequence, without padding.

With shared prompts a group lies as `prompt, response_1, ..., response_n`: every response attends
to all of the prompt and causally to itself, never to another response, and its positions go on from
the prompt's. Without, every row lies as `prompt, response`. Of a row of several contexts the first
lies so; each later one lies behind it, reads itself alone, and its positions are from 0. Of each
context, what comes before its last trained token is the input: nothing is predicted from the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, starmap

import torch
from torch import Tensor

from ppojob_trainer.data.media.media_form import MediaForm
from ppojob_trainer.data.media.pictures import LaterPicture, packed, unpacked_later
from ppojob_trainer.rows.experience import Experience


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive packed tokens that attend to each other causally, but for `wholes`."""

    start: int  # place of the first token in the packed sequence
    length: int
    prefix_start: int = 0  # place of the prompt that all of the span attends to
    prefix_length: int = 0  # tokens of that prompt, 0 where the span has none before it
    # its runs of packed tokens, (first, behind the last), that also see what is ahead in their run
    wholes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PackedRows:
    """The input of one packed forward pass, and where its answers are."""

    input_ids: Tensor  # (packed,) int64
    # (packed,) int64, each token's position in its own row; (3, packed) where pictures have axes
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
    pictures: tuple[bytes, ...] = ()  # of prompts and responses as they lie, each as one value
    picture_places: Tensor | None = None  # (n,) int64, the packed tokens that stand for them
    picture_rows: Tensor | None = None  # (n,) int64, which rows of the tower's features these are

    def tokens_of(self, number: int, runs: int) -> slice:
        """The packed tokens of one of so many equal runs."""
        length = len(self.input_ids) // runs
        return slice(number * length, (number + 1) * length)

    def run(self, number: int, runs: int) -> PackedRows:
        """One of so many equal runs of the packed tokens, with the trained tokens it predicts.

        Spans are those of all tokens; predictors count from the beginning of the run.
        """
        if runs == 1:
            return self
        own = self.tokens_of(number, runs)
        first = own.start
        is_own = (self.predictors >= first) & (self.predictors < own.stop)
        shown, rows = self.picture_places, self.picture_rows
        if shown is not None and rows is not None:
            is_seen = (shown >= first) & (shown < own.stop)
            shown, rows = shown[is_seen] - first, rows[is_seen]
        return replace(
            self,
            input_ids=self.input_ids[own],
            position_ids=self.position_ids[..., own],
            predictors=self.predictors[is_own] - first,
            targets=self.targets[is_own],
            places=self.places[is_own],
            sources=self.sources[own],
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


@dataclass(frozen=True, slots=True)
class _Text:
    """A prompt, or what is read of a response."""

    ids: Tensor  # (tokens,) int64
    sources: Tensor  # (tokens,) int64, see `PackedRows`
    positions: Tensor  # (1, tokens) int64, or (3, tokens) of those that pictures have
    pictures: bytes  # as one value
    places: Tensor  # (n,) int64, its tokens that stand for these
    wholes: tuple[tuple[int, int], ...] = ()  # see `Span`, as the text counts them

    @classmethod
    def of(
        cls,
        ids: Tensor,
        sources: Tensor,
        form: MediaForm | None,
        pictures: bytes = b"",
        later: Sequence[int] = (),
    ) -> _Text:
        """With positions from 0; `later` is that of `MediaForm.places`."""
        if form is None or not pictures:
            return cls(ids, sources, torch.arange(len(ids))[None], b"", ids[:0])
        listed = ids.tolist()
        found = form.places(listed, pictures, later)
        places = torch.tensor([one for own in found for one in own])
        positions = torch.tensor(form.positions(listed, pictures, later))
        wholes = tuple((own[0], own[-1] + 1) for own in found) if form.sees_ahead else ()
        return cls(ids, sources, positions, pictures, places, wholes)

    def followed_by(self, read: _Text) -> _Text:
        """What is read behind it, of a response."""
        return replace(read, positions=read.positions + self.positions.max() + 1)


@dataclass(frozen=True, slots=True)
class _Response:
    """The response of a row."""

    ids: Tensor  # (tokens,) int64
    sources: Tensor  # (tokens,) int64, see `PackedRows`
    trained: Tensor  # (n,) int64, places of its trained tokens
    starts: Tensor  # (contexts - 1,) int64, where the later ones begin
    shown: tuple[LaterPicture, ...]  # what it shows

    def contexts(self, form: MediaForm | None) -> list[tuple[_Text, Tensor]]:
        """What is read of each context, and places in it of what is trained.

        The first is read behind the prompt. Later ones in which nothing is trained are left out.
        """
        found = []
        for begin, end in pairwise([0, *self.starts.tolist(), len(self.ids)]):
            places = self.trained[(self.trained >= begin) & (self.trained < end)] - begin
            if begin and not len(places):
                continue
            own = slice(begin, begin + (int(places[-1]) if len(places) else 0))
            seen = [one for one in self.shown if own.start <= one.start < own.stop]
            files, at = packed([one.file for one in seen]), [one.start - begin for one in seen]
            read = _Text.of(self.ids[own], self.sources[own], form, files, at)
            found.append((read, places))
        return found


class _Packer:
    """Lays pieces of rows one after the other."""

    def __init__(self) -> None:
        self.texts: list[_Text] = []
        self.starts: list[int] = []
        self.spans: list[Span] = []
        self.end = 0

    def add(self, *texts: _Text, prefix: Span | None = None) -> Span:
        """Append a span of texts that continues `prefix`, or starts a row."""
        length = sum(len(text.ids) for text in texts)
        begin, wholes = self.end, []
        for text in texts:
            wholes += [(self.end + first, self.end + end) for first, end in text.wholes]
            self.texts.append(text)
            self.starts.append(self.end)
            self.end += len(text.ids)
        before = (0, 0) if prefix is None else (prefix.start, prefix.length)
        span = Span(begin, length, *before, tuple(wholes))
        if length:
            self.spans.append(span)
        return span

    def add_row(
        self, prompt: _Text, response: _Response, form: MediaForm | None, shared: Span | None
    ) -> tuple[tuple[Span, ...], Tensor]:
        """Append a response behind its prompt, which is appended too if none is `shared`.

        Answers what is read, and where the states lie that predict its trained tokens.
        """
        (first_read, places), *others = response.contexts(form)
        read = prompt.followed_by(first_read)
        spans: tuple[Span, ...]
        if shared is not None:
            own = self.add(read, prefix=shared)
            spans, first = (shared, own), own.start
            last = shared.start + shared.length - 1
        else:
            whole = self.add(prompt, read)
            last = whole.start + len(prompt.ids) - 1
            spans, first = (whole,), last + 1
        found = [torch.where(places == 0, last, first + places - 1)]
        for text, places_of_context in others:
            whole = self.add(text)
            spans = (*spans, whole)
            found.append(whole.start + places_of_context - 1)
        return spans, torch.cat(found)

    def packed(
        self, predictors: Tensor, targets: Tensor, readings: Sequence[tuple[Span, ...]]
    ) -> PackedRows:
        """All of it. Positions are in three rows where pictures have them so."""
        seeing = [
            (start, text)
            for start, text in zip(self.starts, self.texts, strict=True)
            if text.pictures
        ]
        shown = torch.cat([text.places + start for start, text in seeing]) if seeing else None
        rows = max(len(text.positions) for text in self.texts)
        positions = torch.cat([text.positions.expand(rows, -1) for text in self.texts], dim=1)
        return PackedRows(
            input_ids=torch.cat([text.ids for text in self.texts]),
            position_ids=positions.squeeze(0),
            spans=tuple(self.spans),
            predictors=predictors,
            targets=targets,
            places=torch.arange(len(targets)),
            sources=torch.cat([text.sources for text in self.texts]),
            readings=tuple(readings),
            pictures=tuple(text.pictures for _, text in seeing),
            picture_places=shown,
            picture_rows=None if shown is None else torch.arange(len(shown)),
        )


def pack_rows(
    experience: Experience,
    *,
    share_prompts: bool = True,
    multiple: int = 1,
    form: MediaForm | None = None,
) -> PackedRows:
    """Lay out all rows of an experience, at least one; each prompt once a group, or once a row.

    Tokens that nobody reads fill the packed sequence up to a multiple of some number. `form` says
    how the model takes pictures; None where it sees none.
    """
    packer = _Packer()
    prompts, responses = _prompts(experience, form), _responses(experience)
    shared: dict[int, Span] = {}
    predictors: list[Tensor] = [torch.empty(0, dtype=torch.int64)] * experience.num_rows
    readings: list[tuple[Span, ...]] = [()] * experience.num_rows
    groups = experience.row_groups.tolist()
    first_rows = {group: row for row, group in reversed(list(enumerate(groups)))}
    for row in sorted(range(len(groups)), key=lambda row: (first_rows[groups[row]], row)):
        group, response = groups[row], responses[row]
        if share_prompts and group not in shared:
            shared[group] = packer.add(prompts[group])
        read, predictors[row] = packer.add_row(prompts[group], response, form, shared.get(group))
        readings[row] = read if len(response.trained) else ()
    filler = torch.zeros(-packer.end % multiple, dtype=torch.int64)
    packer.add(_Text.of(filler, filler - 1, form))
    targets = experience.response_tokens[experience.mask]
    return packer.packed(torch.cat(predictors), targets, readings)


def _prompts(experience: Experience, form: MediaForm | None) -> list[_Text]:
    """By groups."""
    numbers = _numbered(experience.prompt_lengths.tolist())
    shown = experience.pictures or [b""] * experience.num_groups
    return [
        _Text.of(ids, sources, form, pictures)
        for ids, sources, pictures in zip(experience.prompts, numbers, shown, strict=True)
    ]


def _responses(experience: Experience) -> list[_Response]:
    lengths = experience.lengths.tolist()
    tokens_of_prompts = sum(prompt.numel() for prompt in experience.prompts)
    trained, starts = (
        [column.nonzero()[:, 0] for column in torch.split(whole, lengths)]
        for whole in (experience.mask, experience.context_starts)
    )
    texts = torch.split(experience.response_tokens, lengths)
    numbers = _numbered(lengths, first=tokens_of_prompts)
    held = experience.later_pictures or [b""] * len(lengths)
    shown = [tuple(unpacked_later(pictures)) for pictures in held]
    return list(starmap(_Response, zip(texts, numbers, trained, starts, shown, strict=True)))


def _numbered(lengths: list[int], first: int = 0) -> tuple[Tensor, ...]:
    """Runs of so many numbers each, one behind the other."""
    return torch.split(torch.arange(first, first + sum(lengths)), lengths)
