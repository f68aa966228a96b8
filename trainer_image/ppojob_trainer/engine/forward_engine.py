"""ForwardEngine: packed forward passes of one model, trained or frozen."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ppojob_api.v1alpha1.training import TrainingSpec
from ppojob_trainer.engine.attention import HEAD_STREAM, AttentionPlans, use_packed_attention
from ppojob_trainer.engine.head import (
    Head,
    LastStates,
    PolicyHead,
    TokenOutputs,
    read_by_output_layer,
)
from ppojob_trainer.engine.layer_patches import use_fused_norms, use_tiles
from ppojob_trainer.engine.linear_attention import padded_lengths
from ppojob_trainer.engine.micro_batches import plan_micro_batches
from ppojob_trainer.engine.mtp import Mtp
from ppojob_trainer.engine.packed_rows import PackedRows, pack_rows, token_keys
from ppojob_trainer.engine.routers import RouterRecord, Routers, routes_of
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.models.adapter_dropout import keys_of_tokens
from ppojob_trainer.models.log_partition import log_partition_of
from ppojob_trainer.models.mtp_layers import states_for_mtp
from ppojob_trainer.models.pipeline_stages import PassThrough, PipelineStage, stage_of
from ppojob_trainer.models.routes import Routes
from ppojob_trainer.models.transformers_modules import per_layer_inputs
from ppojob_trainer.models.vision_tower import VisionTower, tower_of
from ppojob_trainer.parallel.collectives import all_gather_over_data, max_over_ranks, sum_over_data
from ppojob_trainer.parallel.fsdp import as_forward, keep_unsharded, release
from ppojob_trainer.parallel.sequence import ALL_TOKENS, SequenceRanks
from ppojob_trainer.parallel.world import World
from ppojob_trainer.rows.experience import Experience

Saving = Callable[[], AbstractContextManager[object]]
"""Makes the context in which layers run, which may offload activations."""

_AUTOCAST: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""Dtypes of matrix products by `spec.training.autocast`; else that of the weights."""


@dataclass(frozen=True, slots=True)
class StageOutput:
    """Result of the forward pass of a micro-batch at a pipeline stage, or of the whole model."""

    outputs: TokenOutputs  # of the head, at the last stage; None at the others
    received: Tensor | None = None  # (1, t, h) input from the previous stage; None at the first
    sent: Tensor | None = None  # (1, t, h) output for the next stage; None at the last
    routes: Routes | None = None  # experts of its tokens, where routing is recorded or replayed


class ForwardEngine:
    """Packed forward passes of one model under one head.

    The same rows, weights and number of threads give the same bits, for any micro-batch size.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        head: Head,
        training: TrainingSpec,
        world: World | None = None,
    ) -> None:
        """Take over a model: packed attention replaces its own, and norms are fused on GPUs.

        The model is sharded over the ranks of `world`; None for this rank alone. Ranks that share
        tokens (sequence parallel) or stages get the same rows and return the same results.
        """
        self.model = model
        self._head = head
        self._training = training
        self._world = world or World.alone(model.device)
        self._sequence = SequenceRanks.of(self._world)
        self._stage = stage_of(model)
        self._saving: Saving = nullcontext
        use_packed_attention(model)
        use_fused_norms(model)
        use_tiles(model, training.mlp_tile_tokens)
        if not training.reshard_after_forward:
            keep_unsharded(model)

    def predict(
        self, experience: Experience, head: Head | None = None, *, records: bool = False
    ) -> TokenOutputs:
        """Compute a head's outputs without gradient or dropout; a collective of all ranks.

        The rows are this rank's, maybe none; the default head is the engine's own. Returns
        (tokens,) float32 tensors in row order, 0 at masked tokens. With `records` the experts of
        each token are stored in the rows.
        """
        self.model.eval()
        outputs: TokenOutputs = ()
        record = RouterRecord(experience, self.model.config) if records else None
        with torch.no_grad():
            # At least one pass, to learn the number of outputs.
            for rows in self._passes(experience, torch.arange(experience.num_rows), at_least=1):
                batch = experience.select(rows) if len(rows) else one_token()
                passed = self._forward(batch, head, records=records)
                values = passed.outputs
                if record is not None and passed.routes is not None and len(rows):
                    record.add(rows, passed.routes, self._sequence)
                outputs = outputs or tuple(torch.empty(experience.num_tokens) for _ in values)
                place = experience.token_index(rows)
                for output, value in zip(outputs, values, strict=True):
                    output[place] = value[: len(place)]
        if record is not None:
            record.store(self._stage, self.model.device)
        self.release()
        return self._stage.ranks.broadcast_from_last(
            outputs, experience.num_tokens, self.model.device
        )

    def last_states(self, rows: Experience) -> LastStates:
        """Return the head's inputs for a micro-batch, without gradient; a collective of all ranks.

        The rows have the reference's context (prompt). A sequence-parallel rank gets the states of
        the trained tokens that it predicts with the policy's context; of pipeline stages only the
        last one. The weight stays unsharded until `release`.
        """
        policy, captured = self._head, [LastStates(torch.empty(0), torch.empty(0))]
        assert isinstance(policy, PolicyHead), "only a PolicyHead has logits"

        def capture(model: PreTrainedModel, hidden: Tensor, _targets: Tensor) -> TokenOutputs:
            states, weight = read_by_output_layer(model, hidden)
            captured.append(LastStates(states, weight.detach(), policy.settings_of(model)))
            return ()

        self.model.eval()
        read = rows.as_reference_reads()
        with torch.no_grad():
            self._forward(read, capture)
        states = captured[-1]
        if self._sequence.size == 1 or not rows.teacher_prompts or not self._stage.ranks.is_last:
            return states
        # With another prompt they may be on other sequence-parallel ranks.
        positions, wanted = self._own_places(read), self._own_places(rows)
        whole = self._sequence.gather_at(states.hidden, positions, int(rows.mask.sum()))
        return states._replace(hidden=whole[wanted])

    def _own_places(self, rows: Experience) -> Tensor:
        """Return the indices of the trained tokens that this rank predicts; see `PackedRows`."""
        ranks, shared = self._sequence, self._training.share_prompts
        packed = pack_rows(rows, share_prompts=shared, multiple=ranks.size)
        return packed.run(ranks.number, ranks.size).places.to(self.model.device)

    def release(self) -> None:
        """Reshard weights that a pass without gradient has left unsharded."""
        release(self.model)

    def over_ranks(self, mine: PassStatistics) -> PassStatistics:
        """Sum the statistics of all ranks; a collective."""
        groups = (mine.values, mine.token_sums, mine.counts)
        flat = [value for one in groups for value in one.values()]
        tokens, *sums = sum_over_data(self._world, [mine.tokens, *flat])
        left = iter(sums)
        values, token_sums, counts = (dict(zip(one, left, strict=False)) for one in groups)
        return PassStatistics(values, {}, token_sums, tokens, counts)

    def over_data(self, mine: Tensor) -> tuple[Tensor, slice]:
        """Concatenate (n,) of all data-parallel coordinates, and where this one's are."""
        return all_gather_over_data(self._world, mine)

    def _passes(
        self,
        experience: Experience,
        rows: Tensor,
        *,
        at_least: int = 0,
        whole_groups: bool = False,
        with_reference: bool = False,
    ) -> list[Tensor]:
        """Split `rows` into micro-batches, as many on every rank; the last ones may be empty.

        Passes of a sharded model are collectives. `with_reference`: the reference computes the same
        micro-batches, so the token budget covers its pass too.
        """
        row_groups, prompts = experience.row_groups, experience.prompt_lengths
        if with_reference and not whole_groups:
            read = experience.as_reference_reads()
            row_groups, longest = read.row_groups, read.prompt_lengths
            longest.scatter_reduce_(0, row_groups, prompts[experience.row_groups], "amax")
            prompts = longest
        plan = plan_micro_batches(
            padded_lengths(self.model, prompts.tolist()),
            row_groups[rows].tolist(),
            padded_lengths(self.model, experience.lengths[rows].tolist()),
            budget=self._training.micro_batch_tokens * self._sequence.size,
            share_prompts=self._training.share_prompts,
            whole_groups=whole_groups,
        )
        count = max_over_ranks(self._world, max(at_least, len(plan)))
        plan += [[] for _ in range(count - len(plan))]
        return [rows[torch.tensor(batch, dtype=torch.int64)] for batch in plan]

    def _forward(self, rows: Experience, head: Head | None = None, **options: Any) -> StageOutput:
        """Run `packed_pass`, with these options and those of the engine."""
        device = self.model.device.type
        kind = _AUTOCAST.get(self._training.autocast)
        with torch.autocast(device, kind, enabled=kind is not None):
            return packed_pass(
                self.model,
                head or self._head,
                rows,
                share_prompts=self._training.share_prompts,
                ranks=self._sequence,
                tensor_place=self._world.dims.place(self._world.rank, "tensor"),
                saving=self._saving,
                **options,
            )


def packed_pass(
    model: PreTrainedModel,
    head: Head,
    rows: Experience,
    *,
    share_prompts: bool = True,
    ranks: SequenceRanks = ALL_TOKENS,
    tensor_place: tuple[int, int] = (0, 1),
    saving: Saving = nullcontext,
    records: bool = False,
    routers: Routers | None = None,
    with_log_z: bool = False,
    mtp: Mtp | None = None,
    dropout: int | None = None,
) -> StageOutput:
    """Compute a head's outputs of every trained token; 0 at masked tokens.

    The model must be under `use_packed_attention`. There is at least one row; rows and outputs,
    (tokens,) float32 in row order, are in host memory. A collective of the ranks of a stage.
    `tensor_place` is (index, count) of this rank among the tensor-parallel ranks; the
    sequence-parallel `ranks` share the tokens. Routers attach losses or count loads; `records`
    fills `StageOutput.routes`. `with_log_z` adds an output, log Z of the prompt at each token;
    `mtp` one with log p of each token by the MTP layer. `dropout` is the number of the update, if
    adapters have dropout.
    """
    (number, tensor), stage = tensor_place, stage_of(model)
    place = (stage.ranks.number * tensor + number) * ranks.size + ranks.number
    packed, tower = _packed(model, rows, ranks, share_prompts=share_prompts), tower_of(model)
    plans = AttentionPlans(
        packed.spans,
        model.device,
        ahead_in_windows=tower is not None and tower.form.ahead_in_windows,
        stream=place * HEAD_STREAM,
    )
    own = packed.run(ranks.number, ranks.size)
    received, inputs = _stage_inputs(own, stage, model.device)
    attach = None if routers is None else routers.of_pass(packed, model.device)
    held = packed.sources, own.sources, model.device
    routes = routes_of(rows, *held, records=records, attach=attach)
    if routes is not None:
        inputs["routes"] = routes

    def compute() -> TokenOutputs:
        states_of_mtp: AbstractContextManager[list[Tensor]] = (
            nullcontext([]) if mtp is None else states_for_mtp(model)
        )
        with saving(), states_of_mtp as further:
            states = _states(model, inputs, own, plans, ranks)
        if not stage.ranks.is_last:
            return (states,)
        values = head(model, states[0].index_select(0, own.predictors), own.targets)
        if with_log_z:
            log_z = log_partition_of(model)(_prompt_means(states[0], rows, packed, own, ranks))
            groups = rows.row_groups[rows.token_rows][rows.mask][own.places.cpu()]
            values = (*values, log_z[groups.to(log_z.device)])
        if mtp is not None:
            with saving():
                values = (*values, mtp.logprobs(model, further[0], own, place * HEAD_STREAM))
        return values

    keys = None if dropout is None else token_keys(rows, own.sources, dropout).to(model.device)
    with keys_of_tokens(keys):
        outputs = as_forward(model, compute)
    if not stage.ranks.is_last:
        (states,) = outputs
        stage.ranks.send(states.detach())
        return StageOutput((), received, states, routes)
    whole = (ranks.gather_at(output, own.places, len(packed.targets)) for output in outputs)
    return StageOutput(
        tuple(_spread(one.cpu(), rows.mask) for one in whole), received, routes=routes
    )


def _packed(
    model: PreTrainedModel, rows: Experience, ranks: SequenceRanks, *, share_prompts: bool
) -> PackedRows:
    tower, shown = tower_of(model), (*rows.images, *rows.later_images)
    assert tower is not None or not any(shown), "the model takes no images"
    form = tower.form if tower is not None else None
    packed = pack_rows(rows, share_prompts=share_prompts, multiple=ranks.size, form=form)
    return packed.to(model.device)


def _stage_inputs(
    own: PackedRows, stage: PipelineStage, device: torch.device
) -> tuple[Tensor | None, dict[str, Any]]:
    """Return the inputs of a stage: token ids at the first, else received hidden states."""
    if stage.ranks.is_first:
        return None, {"input_ids": own.input_ids[None]}
    embedding = stage.outline.get_input_embeddings().weight
    shape = 1, len(own.input_ids), embedding.shape[1]
    received = stage.ranks.receive(torch.empty(shape, dtype=embedding.dtype, device=device))
    return received, {"inputs_embeds": received.requires_grad_(torch.is_grad_enabled())}


def _states(
    model: PreTrainedModel,
    inputs: Mapping[str, Any],
    own: PackedRows,
    plans: AttentionPlans,
    ranks: SequenceRanks,
) -> Tensor:
    """Compute (1, t, h) hidden states of this rank's tokens and images at a stage."""
    tower, options = tower_of(model), dict(inputs)
    if tower is not None and "input_ids" in options and (own.images or tower.is_trained):
        del options["input_ids"]
        options |= _with_images(model, tower, own)
    states: Tensor = model.base_model(
        **options,
        position_ids=own.position_ids.unsqueeze(-2),
        use_cache=False,
        attention_plans=plans,
        sequence_ranks=ranks,
    ).last_hidden_state
    return states


def _with_images(model: PreTrainedModel, tower: VisionTower, own: PackedRows) -> dict[str, Any]:
    """Embed this rank's tokens and images; each sequence rank encodes all images."""
    ids, places = own.input_ids[None], own.image_places
    embeddings = tower.add_zero_gradients(model.get_input_embeddings()(ids))
    per_layer = per_layer_inputs(model, ids, places)
    if places is None:
        return {"inputs_embeds": embeddings, **per_layer}
    given = tower.embed_images(embeddings, places, own.images, own.image_rows)
    held = sum(not isinstance(layer, PassThrough) for layer in model.base_model.layers)
    assert len(given.get("deepstack_visual_embeds", ())) <= held, "the first stage is too short"
    return {**given, **per_layer}


def _prompt_means(
    states: Tensor, rows: Experience, packed: PackedRows, own: PackedRows, ranks: SequenceRanks
) -> Tensor:
    """Return the mean hidden state of each prompt, (groups, h), at least float32, on all ranks.

    `states` (t, h) are of this rank's packed tokens. If prompts are not shared, the mean is over
    all copies.
    """
    wide = torch.float64 if states.dtype == torch.float64 else torch.float32
    lengths = rows.prompt_lengths
    of_tokens = torch.arange(rows.num_groups).repeat_interleave(lengths)
    is_read = (packed.sources >= 0) & (packed.sources < len(of_tokens))
    counts = of_tokens[packed.sources[is_read]].bincount(minlength=rows.num_groups)
    places = ((own.sources >= 0) & (own.sources < len(of_tokens))).nonzero()[:, 0]
    groups = of_tokens[own.sources[places]]
    # A matrix product, as scatter-add has no fixed order on a GPU.
    shares = torch.zeros(rows.num_groups, len(places), dtype=wide)
    shares[groups, torch.arange(len(places))] = 1.0 / counts[groups].to(wide)
    with torch.autocast(states.device.type, enabled=False):
        read = states.index_select(0, places.to(states.device)).to(wide)
        return ranks.sum_with_gradient(shares.to(states.device) @ read)


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    """Scatter the values of the trained tokens into zeros: (trained,) -> (tokens,)."""
    return values if mask.all() else values.new_zeros(mask.shape).masked_scatter(mask, values)


def as_prompts(texts: Sequence[list[int]], images: Sequence[bytes] = ()) -> Experience:
    """Make rows whose prompts are the texts, each with its images and one response token.

    Its outputs come from the state before it, the end of the text.
    """
    count = len(texts)
    return Experience(
        prompts=[torch.tensor(ids, dtype=torch.int64) for ids in texts],
        row_groups=torch.arange(count),
        response_tokens=torch.zeros(count, dtype=torch.int64),
        lengths=torch.ones(count, dtype=torch.int64),
        mask=torch.ones(count, dtype=torch.bool),
        rollout_logprobs=torch.zeros(count),
        images=list(images) if any(images) else [],
    )


def one_token() -> Experience:
    """Return the smallest valid input, for a rank without rows."""
    return as_prompts([[0]])
