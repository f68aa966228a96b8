"""Multi-token prediction (MTP) loss, added to that of the objective.

At each token t_i of a row with last hidden state h_i, the MTP layer reads h_i and the embedding of
t_(i+1), attends causally within the row, and predicts t_(i+2) (DeepSeek-V3, arXiv:2412.19437,
section 2.2, at a depth of 1). Its loss is the mean of -log p(a_t) over the trained tokens of the
mini-batch, at temperature 1; 0 for the first two tokens of a context.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.engine.attention import AttentionPlans
from ppojob_trainer.engine.fused_logprobs import LogprobSettings, fused_logprobs
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.engine.objective import Denominators, LossParts
from ppojob_trainer.engine.packed_rows import PackedRows, Span
from ppojob_trainer.models.mtp_layers import mtp_layer_of
from ppojob_trainer.parallel.sequence import ALL_TOKENS


@dataclass(frozen=True, slots=True)
class Mtp:
    """How the MTP layer is trained."""

    coefficient: float  # of its loss
    detach: bool  # whether its inputs and the output layer are detached from its gradient
    head: PolicyHead  # at temperature 1

    @classmethod
    def of(cls, spec: PPOJobSpec) -> "Mtp | None":
        if (mtp := spec.model.mtp) is None:
            return None
        settings = LogprobSettings(1.0, spec.training.logprob_chunk_tokens, "none")
        return cls(mtp.loss_coefficient, mtp.detach, PolicyHead(settings))

    def add_to(
        self, part: LossParts, logprobs: Tensor, denominators: Denominators, area: str
    ) -> LossParts:
        loss = -logprobs.sum() / max(denominators.tokens, 1.0)
        weighted, whole = self.coefficient * loss, f"{area}/loss"
        terms = {whole: part.terms[whole] + weighted.item(), f"{area}/mtp_loss": loss.item()}
        return replace(part, loss=part.loss + weighted, terms={**part.terms, **terms})

    def logprobs(
        self, model: PreTrainedModel, states: Tensor, packed: PackedRows, stream: int
    ) -> Tensor:
        """Return (trained,) log p of the trained tokens, 0 with fewer than two tokens before them.

        `states` are the last hidden states, (1, packed, h); `stream` as in `AttentionPlans`.
        """
        spans, before = _pairs(packed.spans)
        before = before.to(states.device)
        embeddings = model.get_input_embeddings()(packed.input_ids[None])
        weight = model.get_output_embeddings().weight
        if self.detach:
            states, embeddings, weight = states.detach(), embeddings.detach(), weight.detach()
        places = packed.position_ids[None]
        ahead = mtp_layer_of(model)(
            states.index_select(1, before),
            embeddings,
            position_embeddings=model.base_model.rotary_emb(embeddings, places),
            position_ids=places,
            attention_mask=None,
            past_key_values=None,
            use_cache=False,
            attention_plans=AttentionPlans(spans, states.device, stream=stream),
            sequence_ranks=ALL_TOKENS,
        )[0]
        read = packed.predictors
        settings = self.head.settings_of(model)
        logprobs = fused_logprobs(ahead.index_select(0, read), weight, packed.targets, settings)[0]
        return torch.where(before[read] == read, 0.0, logprobs)


def _pairs(spans: Sequence[Span]) -> tuple[tuple[Span, ...], Tensor]:
    """Return the spans of (state, next embedding) pairs, and (packed,) each token's previous one.

    The first token of a context is in no pair: it attends to itself, and no other token to it; its
    previous token is itself.
    """
    found: list[Span] = []
    before = []
    for span in spans:
        places = torch.arange(span.start, span.start + span.length) - 1
        if span.prefix_length:
            places[0] = span.prefix_start + span.prefix_length - 1
            first, length = span.prefix_start + 1, span.prefix_length - 1
            found.append(replace(span, prefix_start=first, prefix_length=length))
        else:
            places[0] = span.start
            found.append(Span(span.start, 1))
            if span.length > 1:
                found.append(Span(span.start + 1, span.length - 1))
        before.append(places)
    return tuple(found), torch.cat(before)
