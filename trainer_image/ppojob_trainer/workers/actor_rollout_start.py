"""Building an actor-rollout rank, in the one order that works.

The role's world first, then the rollout engine (vLLM takes the default group for its own world and
measures free memory), then the models that are trained.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.engine.forward_engine import ForwardEngine
from ppojob_trainer.models.load import load_model
from ppojob_trainer.parallel.world import world_of_one
from ppojob_trainer.pod_environment import PodEnvironment, RankEnvironment
from ppojob_trainer.rollout.factory import build_engine
from ppojob_trainer.rpc.client import Caller
from ppojob_trainer.rpc.keys import KeyRing
from ppojob_trainer.workers.actor_rollout import ActorRolloutWorker
from ppojob_trainer.workers.policy import Policy, policy_head


@contextmanager
def open_actor_rollout_worker(
    environment: PodEnvironment, rank: RankEnvironment, keys: KeyRing
) -> Iterator[ActorRolloutWorker]:
    """The worker of one rank, whose models live as long as the block."""
    spec = environment.config.spec
    role = environment.config.topology.role("actorRollout")
    device = torch.device(role.device)
    torch.set_num_threads(role.threads_per_rank)
    torch.use_deterministic_algorithms(device.type == "cpu")
    torch.manual_seed(spec.seed)
    with ExitStack() as stack:
        stack.enter_context(world_of_one(device))
        engine = build_engine(
            spec.rollout,
            Path(spec.model.path),
            max_model_tokens=spec.rollout.max_model_tokens or _longest(spec),
            device=role.device,
            trust_remote_code=spec.model.trust_remote_code,
        )
        stack.callback(engine.close)
        chat = stack.enter_context(
            ChatTokenizer(Path(spec.model.path), Path(spec.model.tokenizer_path or spec.model.path))
        )
        caller = Caller(keys, default_deadline_seconds=spec.timeouts.stage_seconds)
        stack.callback(caller.close)
        yield ActorRolloutWorker(
            spec=spec,
            rank=rank.rank,
            run_folder=environment.run_folder,
            engine=engine,
            policy=_policy(spec, device),
            chat=chat,
            caller=caller,
        )


def _longest(spec: PPOJobSpec) -> int:
    return spec.data.max_prompt_tokens + spec.data.max_response_tokens


def _policy(spec: PPOJobSpec, device: torch.device) -> Policy:
    dtype = torch.float32 if spec.model.dtype == "float32" else torch.bfloat16
    folder = Path(spec.model.path)
    reference = None
    if spec.algorithm.kl.in_ != "none":
        frozen = load_model(folder, dtype, device)
        reference = ForwardEngine(frozen, policy_head(spec, "none"), spec.training)
    return Policy(spec, load_model(folder, dtype, device), reference)
