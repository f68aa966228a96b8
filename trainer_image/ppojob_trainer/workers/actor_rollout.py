"""Actor-rollout worker: generates rows, owns them, and trains the policy on them.

The rank has the policy's weights twice: for the trainer and for the rollout engine, which alternate
on the device. The engine sleeps, without weights, from the first forward pass of a step until
`sync_weights`. If the role `rollout` has pods, the engines are there: they receive weights, and
this rank receives their rows.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from ppojob_api.run_config import RunConfig
from ppojob_api.run_layout import EXPORT_FOLDER
from ppojob_trainer.checkpoint.export import export_model
from ppojob_trainer.checkpoint.manifest import entry_of
from ppojob_trainer.data.tokenizer_files import template_text
from ppojob_trainer.engine import custom_functions
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.models.adapter_names import is_magnitude
from ppojob_trainer.models.config_changes import config_changes
from ppojob_trainer.models.kinds import POLICY, SCORER
from ppojob_trainer.models.lora import replaced
from ppojob_trainer.models.mixtures import is_sent_float32
from ppojob_trainer.models.state_dict import (
    broadcast_by_holders,
    every_adapter,
    every_tensor,
    named_full_adapters,
    named_full_tensors,
    plain_weights,
)
from ppojob_trainer.models.weight_stream import stored_weights
from ppojob_trainer.parallel.boxes import AllGather
from ppojob_trainer.parallel.link import send_tensors
from ppojob_trainer.parallel.world import World
from ppojob_trainer.pod_environment import PodEnvironment, RankEnvironment
from ppojob_trainer.rollout.protocol import DTYPES, RolloutError
from ppojob_trainer.rows.row_files import read_tokens, write_part
from ppojob_trainer.rows.row_metadata import RowMetadata
from ppojob_trainer.rpc import methods
from ppojob_trainer.rpc.client import Call, Peer
from ppojob_trainer.rpc.keys import KeyRing
from ppojob_trainer.rpc.messages.demonstrations import Demonstrate, GivenRows
from ppojob_trainer.rpc.messages.rollout import (
    Generate,
    Generated,
    LoadRows,
    QueriedRows,
    QueryRows,
    SyncEngineWeights,
    SyncWeights,
    TransferRows,
)
from ppojob_trainer.rpc.messages.rows import BatchName, PlaceRows, WriteRows
from ppojob_trainer.rpc.messages.saving import Saved
from ppojob_trainer.rpc.messages.scoring import SendTexts, Texts
from ppojob_trainer.rpc.server import Route
from ppojob_trainer.rpc.wire import RequestId, chunks
from ppojob_trainer.workers.answer_probability import replace_answers
from ppojob_trainer.workers.batch_rows import BatchRows
from ppojob_trainer.workers.device_sharing import DeviceSharing
from ppojob_trainer.workers.estimation import add_advantages
from ppojob_trainer.workers.generation import (
    TRAIN,
    Generation,
    batches_of,
    generation_result,
    open_generation,
)
from ppojob_trainer.workers.model_stages import ModelStages, open_stages
from ppojob_trainer.workers.rank_start import OWNER, open_role_world
from ppojob_trainer.workers.reprompting import reprompt
from ppojob_trainer.workers.reward_model import RewardModelStages, open_reward_model
from ppojob_trainer.workers.row_channels import GeneratedRows, receive_rows
from ppojob_trainer.workers.row_store import (
    OwnedRows,
    build_rows,
    demonstration_rows,
    read_trajectories,
    rows_table,
    select_rows,
)
from ppojob_trainer.workers.rows_in_flight import RowsInFlight, generate
from ppojob_trainer.workers.trained_models import Policy, open_policy


@dataclass
class ActorRolloutWorker:
    """Handles the requests to the role `actorRollout`."""

    rank: int  # this rank in the role's world
    run_folder: Path  # base folder of relative paths in requests
    generation: Generation  # the rollout engine and its generation code
    policy: Policy | None  # in training; None in a job that trains nothing
    weights: Callable[[], Iterator[tuple[str, Tensor]]]  # the weights for engines
    stages: ModelStages  # of the policy, and of other models in this rank
    reward_model: RewardModelStages | None  # the reward model's, if it is in this rank
    _rows: dict[tuple[str, int], OwnedRows] = field(default_factory=dict)
    """By purpose and generation round."""
    _metadata: dict[BatchName, list[RowMetadata]] = field(default_factory=dict)
    """Of the rows that another role generated, for the controller."""

    def routes(self) -> list[Route]:
        spec, chat, stages = self.generation.spec, self.generation.chat, self.stages
        return [
            *stages.routes(),
            *(self.reward_model.routes() if self.reward_model else ()),
            Route(methods.SYNC_WEIGHTS, self._sync_weights),
            Route(methods.GENERATE, self._generate),
            Route(methods.ROWS_DRAWN, self.generation.progress.report),
            Route(methods.LOAD_ROWS, self._load_rows),
            Route(methods.DEMONSTRATE, self._load_demonstrations),
            Route(methods.MEASURE_LOSS, self._measure_loss),
            Route(methods.SUPERVISE, self._set_demonstrations),
            Route(methods.SYNC_ENGINE_WEIGHTS, self._send_weights),
            Route(methods.TRANSFER_ROWS, self._receive_rows),
            Route(methods.QUERY_ROWS, self._query_rows),
            Route(methods.SEND_TEXTS, self._send_texts),
            Route(methods.PLACE_ROWS, self._place_rows),
            Route(methods.REPROMPT, lambda one: reprompt(spec, chat, one, stages.rows.mine)),
            Route(methods.ADVANTAGES, lambda one: add_advantages(spec, stages.rows, one)),
            Route(methods.WRITE_ROWS, self._write_rows),
            Route(methods.EXPORT_MODEL, lambda _: self._export_model()),
        ]

    def _sync_weights(self, request: SyncWeights) -> None:
        self.stages.device.use_engine()
        if request.refresh_reference:
            assert self.stages.synced_reference is not None, "of kl.referenceRefresh"
            self.stages.synced_reference.sync()
        self.generation.engine.load_weights(request.version, self.weights())

    def _generate(self, request: Generate) -> Generated:
        made = generate(self.generation, self.stages.in_flight, request)
        for batch, rows in zip(batches_of(request), made, strict=True):
            self._store_generated(batch.purpose, batch.round, rows)
        return generation_result(made, self.generation.engine.counts())

    def _send_weights(self, request: SyncEngineWeights) -> None:
        """Send the weights to engines in other pods; each rank here serves some of them."""
        version = self.generation.engine.policy_version
        if version != request.version:
            raise RolloutError(
                f"weights of version {request.version}: got version {version}: rows must be "
                "generated by the requested weights"
            )
        channels, dtype = self.stages.channels, DTYPES[self.generation.spec.rollout.dtype]
        link, owners = channels.link(request.role), channels.owners(request.role)
        cast = (  # to the engines' dtype, for a smaller transfer
            (name, tensor if is_sent_float32(name) or is_magnitude(name) else tensor.to(dtype))
            for name, tensor in self.weights()
        )
        send_tensors(link, range(owners + self.rank, link.size, owners), cast)

    def _receive_rows(self, request: TransferRows) -> None:
        channels = self.stages.channels
        link, owners = channels.link(request.role), channels.owners(request.role)
        received = receive_rows(link, request, self.rank, first_sender=owners)
        for batch, rows in zip(request.batches, received, strict=True):
            self._store_generated(batch.purpose, batch.round, rows)
            self._metadata[batch] = generation_result([rows]).rows

    def _query_rows(self, request: QueryRows) -> QueriedRows:
        if not all(batch in self._metadata for batch in request.batches):
            return QueriedRows(None)
        first, *greedy = [self._metadata[batch] for batch in request.batches]
        return QueriedRows(Generated(first, greedy[0] if greedy else []))

    def _load_rows(self, request: LoadRows) -> None:
        first, last = (p * request.samples for p in (request.first, request.last))
        parts = [self.run_folder / request.folder / part for part in request.parts]
        rows = read_trajectories(read_tokens(parts, first, last))
        generated = GeneratedRows(request.first, request.prompts, request.samples, rows)
        self._store_generated(request.purpose, request.round, generated)

    def _load_demonstrations(self, request: Demonstrate) -> None:
        self._store(TRAIN, 0, self._build_demonstrations(request))

    def _measure_loss(self, request: GivenRows) -> PassStatistics:
        assert self.policy is not None, "a job of demonstrations trains"
        self.stages.device.use_models(*self.policy.models_of_loss)
        return self.policy.loss(self._demonstration_rows(request))

    def _set_demonstrations(self, request: GivenRows) -> None:
        assert self.policy is not None, "a job with demonstrations trains"
        self.policy.demonstrations = self._demonstration_rows(request)

    def _demonstration_rows(self, request: GivenRows) -> BatchRows:
        mine = self._build_demonstrations(request.given).experience
        return self.stages.batch_rows(request.index, mine)

    def _build_demonstrations(self, request: Demonstrate) -> OwnedRows:
        spec = self.generation.spec
        has_rewards = spec.algorithm.type == "kto" or spec.data.margin_key is not None
        return demonstration_rows(request.first, request.rows, has_rewards=has_rewards)

    def _store_generated(self, purpose: str, round_: int, rows: GeneratedRows) -> None:
        spec, mixture = self.generation.spec, None
        if spec.algorithm.router_replay == "rollout" and purpose == TRAIN and self.policy:
            mixture = self.policy.learner.model.config
        owned = build_rows(
            rows.first,
            rows.prompts,
            rows.samples,
            rows.trajectories,
            has_turns=spec.agent is not None and spec.agent.tool_rewards == "add",
            has_given=purpose == TRAIN and spec.algorithm.guidance is not None,
            mixture=mixture,
        )
        self._store(purpose, round_, owned)

    def _store(self, purpose: str, round_: int, rows: OwnedRows) -> None:
        """Store the rows of a round; the first round replaces the rows of the previous step."""
        if round_ == 0:
            self._rows = {key: own for key, own in self._rows.items() if key[0] != purpose}
            self._metadata = {
                batch: own for batch, own in self._metadata.items() if batch.purpose != purpose
            }
        self._rows[purpose, round_] = rows

    def _send_texts(self, request: SendTexts) -> None:
        batch = request.batch
        rows = self._rows[batch.purpose, batch.round]
        owned = range(request.first - rows.first_row, request.last - rows.first_row)
        texts = [self.generation.chat.decode(rows.response(row)[0]) for row in owned]
        peer = Peer(f"{request.role} rank", request.host, request.port, request.role)
        for first, last in chunks([len(text.encode()) for text in texts]):
            row = request.first + first
            id_ = RequestId(request.attempt, batch.step, f"{batch.label}/put_texts", row)
            body = Texts(batch, row, texts[first:last])
            self.generation.caller.call(Call(peer, methods.PUT_TEXTS, body, id_))

    def _place_rows(self, request: PlaceRows) -> None:
        index = request.index
        if request.again:
            mine = self.stages.rows.mine
        elif request.origins is None:
            mine = self._rows[TRAIN, 0].experience
        else:
            own = [request.origins[position] for position in index.owned_by(self.rank)]
            rounds = {key[1]: rows for key, rows in self._rows.items() if key[0] == TRAIN}
            mine = select_rows(rounds, own)
        self.stages.place(index, mine)
        if request.answers and self.policy is not None:
            answers = [request.answers[position] for position in index.owned_by(self.rank)]
            self.policy.answer_rows = replace_answers(
                self.generation.spec, self.generation.chat, mine, answers
            )

    def _write_rows(self, request: WriteRows) -> Saved:
        rows = self._rows[request.purpose, request.round]
        table = rows_table(rows, request, self.generation.chat)
        path = write_part(self.run_folder / request.folder, request.part, table)
        return Saved([entry_of(path.parent, path.name, OWNER, self.rank)])

    def _export_model(self) -> None:
        model = self.generation.spec.model
        template = template_text(model.chat_template) if model.chat_template else None
        dtype = DTYPES[model.dtype]
        assert self.policy is not None, "only trained models are exported"
        trained, on_device = self.policy.learner.model, self.policy.learner.on_device
        average = self.policy.learner.engine.average
        averages = {} if average is None else average.tensors

        def on_any_device(join: AllGather) -> AllGather:
            """Read weights that may be offloaded."""
            plain = plain_weights(trained, on_device)
            return broadcast_by_holders(
                trained, lambda name, tensor, dtype: join(name, plain(name, tensor), dtype)
            )

        export_model(
            self.run_folder / EXPORT_FOLDER if self.rank == 0 else None,
            ((name, averages.get(name, tensor)) for name, tensor in every_tensor(trained)),
            model_folder=Path(model.path),
            dtype=dtype,
            tokenizer_folder=Path(model.tokenizer_path or model.path),
            chat_template=template,
            adapters=replaced(every_adapter(trained), averages, on_device),
            kind=SCORER if self.generation.spec.algorithm.type == "reward_model" else POLICY,
            overrides=config_changes(model.path, model),
            wrap_join=on_any_device,
        )


@contextmanager
def open_actor_rollout_worker(
    environment: PodEnvironment, rank: RankEnvironment, keys: KeyRing
) -> Iterator[ActorRolloutWorker]:
    """Open the worker of one rank; its models are freed with the block."""
    config = environment.config
    if config.spec.steps.trains:
        custom_functions.check(config.spec.algorithm)
    with ExitStack() as stack:
        world = stack.enter_context(open_role_world(environment, rank))
        generation = stack.enter_context(open_generation(environment, world, keys))
        policy, weights = _open_weights(config, world)
        device, reward_model = DeviceSharing(generation.engine.sleep), None
        if "rewardModel" in config.topology.living_in(environment.role):
            reward_model = stack.enter_context(open_reward_model(config.spec, world, device))
        generates = config.topology.generating.role == OWNER
        has_lookahead = generates and config.spec.phases_of_rows > 1
        in_flight = RowsInFlight(generation) if has_lookahead else None
        yield ActorRolloutWorker(
            rank=rank.rank,
            run_folder=environment.run_folder,
            generation=generation,
            policy=policy,
            weights=weights,
            stages=open_stages(environment, world, policy, device, in_flight),
            reward_model=reward_model,
        )


def _open_weights(
    config: RunConfig, world: World
) -> tuple[Policy | None, Callable[[], Iterator[tuple[str, Tensor]]]]:
    """Return the policy, if it is trained, and the weights for engines.

    With adapters, an engine in this rank gets all weights each time, as it drops them when it
    sleeps; one in pods of its own has the base weights, and gets only the adapters.
    """
    spec = config.spec
    if not spec.steps.trains:
        dtype = DTYPES[spec.model.dtype]
        overrides = config_changes(spec.model.path, spec.model)
        return None, lambda: stored_weights(
            spec.model.path, dtype, world.device, overrides, spec.model.lora
        )
    policy = open_policy(spec, world)
    learner = policy.learner  # read late: its model may be reloaded
    has_unmerged = spec.adapters_of_engines is not None
    has_base = has_unmerged and config.topology.generating.role != OWNER

    def weights() -> Iterator[tuple[str, Tensor]]:
        model, on_device = learner.model, learner.resident.host.on_device
        if not has_base:
            yield from named_full_tensors(model, on_device, merges=not has_unmerged)
        if has_unmerged:
            yield from named_full_adapters(model)

    return policy, weights
