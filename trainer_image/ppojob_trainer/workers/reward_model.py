"""Reward model worker: receives response texts, and returns the model's scores."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.media.image_form import ImageForm
from ppojob_trainer.data.media.images import unpacked, with_parts
from ppojob_trainer.engine.score_engine import Answer, ScoreEngine
from ppojob_trainer.models.kinds import REWARD
from ppojob_trainer.models.load import load_model
from ppojob_trainer.parallel.offload import OffloadableWeights
from ppojob_trainer.parallel.world import World
from ppojob_trainer.pod_environment import PodEnvironment, RankEnvironment
from ppojob_trainer.rollout.protocol import DTYPES
from ppojob_trainer.rpc.keys import KeyRing
from ppojob_trainer.rpc.messages.scoring import ModelScored, ScoreByModel
from ppojob_trainer.rpc.methods import PUT_TEXTS, SCORE_BY_MODEL
from ppojob_trainer.rpc.server import Route
from ppojob_trainer.workers.device_sharing import DeviceSharing
from ppojob_trainer.workers.learner import resident_weights
from ppojob_trainer.workers.rank_start import open_role_world
from ppojob_trainer.workers.text_inbox import TextInbox


class RewardModelStages:
    """Handles requests to the reward model on one of its ranks."""

    def __init__(
        self,
        engine: ScoreEngine,
        resident: OffloadableWeights,
        chat: ChatTokenizer,
        device: DeviceSharing,
    ) -> None:
        self._engine = engine
        self._resident = resident
        self._device = device
        self._chat = chat
        self._inbox = TextInbox()

    def routes(self) -> list[Route]:
        return [Route(PUT_TEXTS, self._inbox.put), Route(SCORE_BY_MODEL, self._score)]

    def _score(self, request: ScoreByModel) -> ModelScored:
        rows = [row for item in request.items for row in range(item.first, item.last)]
        texts = iter(self._inbox.take(request.batch, rows))
        answers = []
        for item in request.items:
            prompt, files = msgspec.json.decode(item.prompt), b""
            if item.images and isinstance(self._chat.images, ImageForm):
                files = item.images
                prompt = prompt if isinstance(prompt, str) else with_parts(prompt, unpacked(files))
            answers += [Answer(prompt, next(texts), files) for _ in range(item.first, item.last)]
        self._chat.set_time(request.began)
        with self._device.lend_to(self._resident):
            return ModelScored(self._engine.scores(answers))


@contextmanager
def open_reward_model(
    spec: PPOJobSpec, world: World, device: DeviceSharing
) -> Iterator[RewardModelStages]:
    """Load the reward model; its tokenizer's process ends with the block."""
    model = spec.reward_model
    assert model is not None, "the role has a model"
    chat = ChatTokenizer(
        model.path,
        model.tokenizer_path,
        model.chat_template,
        setting="spec.rewardModel.chatTemplate",
    )
    with chat:
        loaded = load_model(model.path, DTYPES[model.dtype], kind=REWARD, world=world)
        engine = ScoreEngine(loaded, chat, spec.training, world, max_tokens=model.max_tokens)
        offload = () if spec.roles.reward_model is None else spec.roles.reward_model.offload
        yield RewardModelStages(engine, resident_weights(loaded, offload), chat, device)


@contextmanager
def open_reward_model_worker(
    environment: PodEnvironment, rank: RankEnvironment, _keys: KeyRing
) -> Iterator[RewardModelStages]:
    """Open the reward model in pods of its own; it is freed with the block."""
    with (
        open_role_world(environment, rank) as world,
        open_reward_model(environment.config.spec, world, DeviceSharing()) as stages,
    ):
        yield stages
