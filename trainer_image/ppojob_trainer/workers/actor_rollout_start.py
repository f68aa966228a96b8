"""Building an actor-rollout rank, in the one order that works.

The role's world first, then the rollout engine (vLLM takes the default group for its own world and
measures free memory), which sleeps until it is given weights, then the models that are trained.
Where engines have pods of their own there is none here.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ppojob_trainer.pod_environment import PodEnvironment, RankEnvironment
from ppojob_trainer.rollout.factory import build_engine
from ppojob_trainer.rollout.no_engine import NoEngine
from ppojob_trainer.rollout.protocol import RolloutEngine
from ppojob_trainer.rpc.client import Caller
from ppojob_trainer.rpc.keys import KeyRing
from ppojob_trainer.workers.actor_rollout import ActorRolloutWorker
from ppojob_trainer.workers.generation import Generation, open_policy_chat, open_turns
from ppojob_trainer.workers.policy import open_policy
from ppojob_trainer.workers.rank_start import open_role_world
from ppojob_trainer.workers.reward_model import open_reward_model
from ppojob_trainer.workers.stages_start import open_stages


@contextmanager
def open_actor_rollout_worker(
    environment: PodEnvironment, rank: RankEnvironment, keys: KeyRing
) -> Iterator[ActorRolloutWorker]:
    """The worker of one rank, whose models live as long as the block."""
    spec = environment.config.spec
    with ExitStack() as stack:
        world = stack.enter_context(open_role_world(environment, rank))
        engine: RolloutEngine = NoEngine()
        if spec.roles.rollout is None:
            engine = build_engine(
                spec.rollout,
                Path(spec.model.path),
                device=environment.config.topology.role(environment.role).device,
                trust_remote_code=spec.model.trust_remote_code,
            )
        stack.callback(engine.close)
        chat = stack.enter_context(open_policy_chat(spec))
        caller = Caller(keys, default_deadline_seconds=spec.timeouts.stage_seconds)
        stack.callback(caller.close)
        policy = open_policy(spec, world)
        reward_model = None
        if "rewardModel" in environment.config.topology.living_in(environment.role):
            reward_model = stack.enter_context(open_reward_model(spec, world))
        yield ActorRolloutWorker(
            spec=spec,
            rank=rank.rank,
            run_folder=environment.run_folder,
            engine=engine,
            generation=Generation(spec, engine, chat, caller, open_turns(spec, chat))
            if spec.roles.rollout is None
            else None,
            policy=policy,
            stages=open_stages(environment, world, policy, make_room=engine.sleep),
            reward_model=reward_model,
            chat=chat,
            caller=caller,
        )
