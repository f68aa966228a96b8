"""ForwardEngine: what one model says of rows. All that a frozen model is asked for."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ppojob_api.v1alpha1.training import TrainingSpec
from ppojob_trainer.engine.attention import use_packed_attention
from ppojob_trainer.engine.forward import packed_outputs
from ppojob_trainer.engine.head import Head, LastStates, TokenOutputs
from ppojob_trainer.engine.packing import plan_micro_batches
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.parallel.collectives import largest_over_ranks, sum_over_data
from ppojob_trainer.parallel.fsdp import release_root
from ppojob_trainer.parallel.world import World
from ppojob_trainer.rows.experience import Experience


class ForwardEngine:
    """Packed forward passes of one model under one head.

    The same rows, weights and number of threads give the same bits. Micro-batches change memory and
    speed only.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        head: Head,
        training: TrainingSpec,
        world: World | None = None,
    ) -> None:
        """Take over a model.

        Args:
            model: its attention becomes the packed one; cut where the world has several ranks.
            head: what is asked of each trained token.
            training: micro-batches, autocast.
            world: the ranks that compute together; None for this one alone.
        """
        self.model = model
        self._head = head
        self._training = training
        self._world = world or World.alone(model.device)
        use_packed_attention(model)

    def predict(self, experience: Experience, head: Head | None = None) -> TokenOutputs:
        """Compute a head's outputs without gradient or dropout; all ranks do so together.

        Args:
            experience: this rank's rows, maybe none.
            head: what is asked; None for the engine's own.

        Returns:
            Tensors (tokens,) float32, in row order; 0 where a token is not trained.
        """
        self.model.eval()
        outputs: TokenOutputs = ()
        with torch.no_grad():
            # At least one pass tells how many outputs there are.
            for rows in self._passes(experience, torch.arange(experience.num_rows), at_least=1):
                batch = experience.select(rows) if len(rows) else one_token()
                values = self._forward(batch, head)
                outputs = outputs or tuple(torch.empty(experience.num_tokens) for _ in values)
                place = experience.token_index(rows)
                for output, value in zip(outputs, values, strict=True):
                    output[place] = value[: len(place)]
        self.release()
        return outputs

    def last_states(self, rows: Experience) -> LastStates:
        """What a head would be given, without gradient or dropout; all ranks do so together.

        Args:
            rows: one micro-batch.

        Returns:
            Tensors on the model's device; the weight is whole until `release`.
        """
        kept: list[LastStates] = []

        def keep(model: PreTrainedModel, hidden: Tensor, _targets: Tensor) -> TokenOutputs:
            kept.append(LastStates(hidden, model.get_output_embeddings().weight.detach()))
            return ()

        self.model.eval()
        with torch.no_grad():
            self._forward(rows, keep)
        return kept[0]

    def release(self) -> None:
        """Give back what a pass without gradient has left whole of a cut model."""
        release_root(self.model)

    def over_ranks(self, mine: PassStatistics) -> PassStatistics:
        """Add up what each rank has measured of its rows; all ranks do so together.

        Args:
            mine: sums of this rank, of the same names on all.
        """
        *sums, tokens = sum_over_data(
            self._world, [*mine.values.values(), *mine.token_sums.values(), mine.tokens]
        )
        split = len(mine.values)
        return PassStatistics(
            values=dict(zip(mine.values, sums[:split], strict=True)),
            token_sums=dict(zip(mine.token_sums, sums[split:], strict=True)),
            tokens=tokens,
        )

    def _passes(self, experience: Experience, rows: Tensor, *, at_least: int = 0) -> list[Tensor]:
        """Row numbers of each micro-batch out of `rows`, as many on every rank: empty at the end.

        A forward or backward pass of a cut model needs all ranks.
        """
        plan = plan_micro_batches(
            experience.prompt_lengths.tolist(),
            experience.row_groups[rows].tolist(),
            experience.lengths[rows].tolist(),
            budget=self._training.micro_batch_tokens,
            share_prompts=self._training.share_prompts,
        )
        count = largest_over_ranks(self._world, max(at_least, len(plan)))
        plan += [[] for _ in range(count - len(plan))]
        return [rows[torch.tensor(batch, dtype=torch.int64)] for batch in plan]

    def _forward(self, rows: Experience, head: Head | None = None) -> TokenOutputs:
        device = self.model.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self._training.autocast == "bfloat16"):
            return packed_outputs(
                self.model, head or self._head, rows, share_prompts=self._training.share_prompts
            )


def one_token() -> Experience:
    """The least that a forward pass can be made of, for a rank that has no rows left."""
    one = torch.zeros(1, dtype=torch.int64)
    return Experience(
        prompts=[one],
        row_groups=one,
        response_tokens=one,
        lengths=one + 1,
        mask=torch.ones(1, dtype=torch.bool),
        rollout_logprobs=torch.zeros(1),
    )
