"""The actor-rollout role's rank: it generates rows, owns them, and trains the policy on them.

The policy's weights are here twice: as the trainer holds them, and as the rollout engine does. The
two take turns with the device: the engine sleeps, without weights, from the first pass over the
rows of a step until the stage `sync_weights` gives it those of the trainer. Where the role
`rollout` has pods, the engines are there: the weights go to them, and their rows come here.
"""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import torch

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.checkpoint.export import export_model
from ppojob_trainer.checkpoint.files import sha256_of
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.models.lora import adapters_of
from ppojob_trainer.models.state_dict import hf_named_tensors, named_full_tensors
from ppojob_trainer.parallel.tensor_stream import send_tensors
from ppojob_trainer.rollout.factory import DTYPES
from ppojob_trainer.rollout.protocol import RolloutEngine, RolloutError
from ppojob_trainer.rollout.trajectory import Trajectory
from ppojob_trainer.rows.row_files import read_tokens, write_part
from ppojob_trainer.rpc import methods
from ppojob_trainer.rpc.client import Call, Caller, Peer
from ppojob_trainer.rpc.messages.rollout import (
    BringWeights,
    Generate,
    Generated,
    HandOver,
    LoadRows,
    Recall,
    Recalled,
    SyncWeights,
)
from ppojob_trainer.rpc.messages.rows import BatchName, PlaceRows, WriteRows
from ppojob_trainer.rpc.messages.saving import ExportModel, Saved, SavedFile
from ppojob_trainer.rpc.messages.scoring import SendTexts, Texts
from ppojob_trainer.rpc.messages.training import Advantaged, Advantages
from ppojob_trainer.rpc.server import Route
from ppojob_trainer.rpc.wire import Nothing, RequestId, chunks
from ppojob_trainer.workers.estimation import add_advantages
from ppojob_trainer.workers.generation import TRAIN, Generation, batches_of, generated
from ppojob_trainer.workers.handover import MadeRows, take_rows
from ppojob_trainer.workers.model_stages import ModelStages
from ppojob_trainer.workers.policy import Policy
from ppojob_trainer.workers.reward_model import RewardModelStages
from ppojob_trainer.workers.row_channels import batch_index
from ppojob_trainer.workers.row_store import OwnedRows, chosen_rows, own_rows
from ppojob_trainer.workers.rows_file import rows_table, trajectories


@dataclass
class ActorRolloutWorker:
    """Answers the stages of the actor-rollout role.

    Attributes:
        spec: the job.
        rank: this rank in the role's world.
        run_folder: what paths in requests are relative to.
        engine: generates; takes new weights.
        generation: makes rows with it; None where engines have pods of their own.
        policy: is trained.
        stages: of the policy, and of other models that live in this rank.
        reward_model: the reward model's, where it lives in this rank.
        chat: turns responses into text.
        caller: sends texts to reward pods.
    """

    spec: PPOJobSpec
    rank: int
    run_folder: Path
    engine: RolloutEngine
    generation: Generation | None
    policy: Policy
    stages: ModelStages
    reward_model: RewardModelStages | None
    chat: ChatTokenizer
    caller: Caller
    _rows: dict[tuple[str, int], OwnedRows] = field(default_factory=dict)
    """By purpose and generation round."""
    _given: dict[BatchName, Generated] = field(default_factory=dict)
    """What was told of those that another role has made."""

    def routes(self) -> list[Route]:
        """The methods of this role."""
        return [
            *self.stages.routes(),
            *(self.reward_model.routes() if self.reward_model else ()),
            Route(methods.SYNC_WEIGHTS, self._sync_weights),
            Route(methods.GENERATE, self._generate),
            Route(methods.LOAD_ROWS, self._load_rows),
            Route(methods.BRING_WEIGHTS, self._bring_weights),
            Route(methods.HAND_OVER, self._hand_over),
            Route(methods.RECALL, self._recall),
            Route(methods.SEND_TEXTS, self._send_texts),
            Route(methods.PLACE_ROWS, self._place_rows),
            Route(methods.ADVANTAGES, self._advantages),
            Route(methods.WRITE_ROWS, self._write_rows),
            Route(methods.EXPORT_MODEL, self._export_model),
        ]

    def _sync_weights(self, request: SyncWeights) -> Nothing:
        if request.refresh_reference:
            assert self.stages.following is not None, "a job that asks for it has one"
            self.stages.following.refresh()
        self.engine.load_weights(request.version, named_full_tensors(self.policy.learner.model))
        return Nothing()

    def _generate(self, request: Generate) -> Generated:
        assert self.generation is not None, "whoever has no engine is not asked"
        batches = batches_of(request)
        made = self.generation.run(batches)
        for batch, rows in zip(batches, made, strict=True):
            self._take_up(batch.purpose, batch.round, self._own(batch, rows))
        return generated(made)

    def _bring_weights(self, request: BringWeights) -> Nothing:
        """Send the weights to the engines of another role, which the ranks here serve by turns."""
        if self.engine.policy_version != request.version:
            raise RolloutError(
                f"weights of version {request.version}: got those of "
                f"{self.engine.policy_version}: no row may be drawn by others"
            )
        channels, dtype = self.stages.channels, DTYPES[self.spec.rollout.dtype]
        link, owners = channels.link(request.role), channels.owners(request.role)
        weights = named_full_tensors(self.policy.learner.model)
        # As engines round them, with no more bytes on the way than they take.
        rounded = ((name, tensor.to(dtype)) for name, tensor in weights)
        send_tensors(link, range(owners + self.rank, link.size, owners), rounded)
        return Nothing()

    def _hand_over(self, request: HandOver) -> Nothing:
        """Take up rows that another role has made."""
        channels = self.stages.channels
        link, owners = channels.link(request.role), channels.owners(request.role)
        arrived = take_rows(link, request, self.rank, makers_from=owners)
        for batch, rows in zip(request.batches, arrived, strict=False):
            self._take_up(batch.purpose, batch.round, self._own(rows, rows.trajectories))
            self._given[batch] = generated([rows.trajectories])
        return Nothing()

    def _recall(self, request: Recall) -> Recalled:
        told = [self._given.get(batch) for batch in request.batches]
        first, *greedy = told
        if first is None or None in greedy:
            return Recalled(None)
        return Recalled(msgspec.structs.replace(first, greedy=greedy[0] if greedy else None))

    def _load_rows(self, request: LoadRows) -> Nothing:
        first, last = (p * request.samples for p in (request.first, request.last))
        parts = [self.run_folder / request.folder / part for part in request.parts]
        rows = trajectories(read_tokens(parts, first, last))
        self._take_up(TRAIN, request.round, self._own(request, rows))
        return Nothing()

    def _own(self, request: Generate | LoadRows | MadeRows, rows: list[Trajectory]) -> OwnedRows:
        agent = self.spec.agent
        has_turns = agent is not None and agent.tool_rewards == "add"
        return own_rows(request.first, request.prompts, request.samples, rows, has_turns=has_turns)

    def _take_up(self, purpose: str, round_: int, rows: OwnedRows) -> None:
        """Keep the rows of a round; with the first one those of the step before go."""
        if round_ == 0:
            self._rows = {key: kept for key, kept in self._rows.items() if key[0] != purpose}
            self._given = {of: told for of, told in self._given.items() if of.purpose != purpose}
        self._rows[purpose, round_] = rows

    def _send_texts(self, request: SendTexts) -> Nothing:
        batch = request.batch
        rows = self._rows[batch.purpose, batch.round]
        owned = range(request.first - rows.first_row, request.last - rows.first_row)
        texts = [self.chat.decode(rows.response(row)[0]) for row in owned]
        peer = Peer(f"{request.role} rank", request.host, request.port, request.role)
        for first, last in chunks([len(text.encode()) for text in texts]):
            row = request.first + first
            id_ = RequestId(request.epoch, batch.step, f"{batch.label}/put_texts", row)
            body = Texts(batch, row, texts[first:last])
            self.caller.call(Call(peer, methods.PUT_TEXTS, body, id_))
        return Nothing()

    def _place_rows(self, request: PlaceRows) -> Nothing:
        index = batch_index(request.index)
        if request.origins is None:
            mine = self._rows[TRAIN, 0].experience
        else:
            own = [request.origins[position] for position in index.owned_by(self.rank)]
            rounds = {key[1]: rows for key, rows in self._rows.items() if key[0] == TRAIN}
            mine = chosen_rows(rounds, own)
        self.stages.place(index, mine)
        return Nothing()

    def _advantages(self, request: Advantages) -> Advantaged:
        return add_advantages(self.spec, self.stages.rows, request)

    def _write_rows(self, request: WriteRows) -> Saved:
        table = rows_table(self._rows[request.purpose, request.round], request, self.chat)
        path = write_part(self.run_folder / request.folder, request.part, table)
        return Saved([SavedFile(path.name, *sha256_of(path))])

    def _export_model(self, request: ExportModel) -> Nothing:
        model = self.spec.model
        template = Path(model.chat_template).read_text() if model.chat_template else None
        dtype = torch.float32 if model.dtype == "float32" else torch.bfloat16
        trained = self.policy.learner.model
        tensors, adapters = hf_named_tensors(trained), adapters_of(trained)
        export_model(
            self.run_folder / request.folder if self.rank == 0 else None,
            tensors,
            model_folder=Path(model.path),
            dtype=dtype,
            tokenizer_folder=Path(model.tokenizer_path or model.path),
            chat_template=template,
            adapters=adapters,
        )
        return Nothing()
