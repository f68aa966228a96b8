"""ForwardEngine: what one model says of rows. All that a frozen model is asked for."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ppojob_api.v1alpha1.training import TrainingSpec
from ppojob_trainer.engine.attention import use_packed_attention
from ppojob_trainer.engine.forward import packed_outputs
from ppojob_trainer.engine.head import Head, TokenOutputs
from ppojob_trainer.engine.packing import plan_micro_batches
from ppojob_trainer.rows.experience import Experience


class ForwardEngine:
    """Packed forward passes of one model under one head.

    The same rows, weights and number of threads give the same bits. Micro-batches change memory and
    speed only.
    """

    def __init__(self, model: PreTrainedModel, head: Head, training: TrainingSpec) -> None:
        """Take over a model.

        Args:
            model: its attention becomes the packed one.
            head: what is asked of each response token.
            training: micro-batches, autocast.
        """
        self.model = model
        self._head = head
        self._training = training
        use_packed_attention(model)

    def predict(self, experience: Experience) -> TokenOutputs:
        """Compute the head's outputs without gradient or dropout.

        Args:
            experience: at least one row.

        Returns:
            Tensors (tokens,) float32, in row order.
        """
        self.model.eval()
        outputs: TokenOutputs = ()
        with torch.no_grad():
            for rows in self._micro_batches(experience, torch.arange(experience.num_rows)):
                place = experience.token_index(rows)
                values = self._forward(experience.select(rows))
                outputs = outputs or tuple(torch.empty(experience.num_tokens) for _ in values)
                for output, value in zip(outputs, values, strict=True):
                    output[place] = value
        return outputs

    def _micro_batches(self, experience: Experience, rows: Tensor) -> list[Tensor]:
        """Row numbers of each micro-batch, out of `rows`."""
        plan = plan_micro_batches(
            experience.prompt_lengths.tolist(),
            experience.row_groups[rows].tolist(),
            experience.lengths[rows].tolist(),
            budget=self._training.micro_batch_tokens,
            share_prompts=self._training.share_prompts,
        )
        return [rows[torch.tensor(batch)] for batch in plan]

    def _forward(self, rows: Experience) -> TokenOutputs:
        device = self.model.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self._training.autocast == "bfloat16"):
            return packed_outputs(
                self.model, self._head, rows, share_prompts=self._training.share_prompts
            )
