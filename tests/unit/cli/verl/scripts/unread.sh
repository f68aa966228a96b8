#!/bin/bash
# What only a run could say.
source ./settings.sh
export NODES=$(scontrol show hostnames | wc -l)
if [ -d /fast/models ]; then
    MODEL=/fast/models/small
    EXTRA=(trainer.val_before_train=False)
else
    MODEL=/slow/models/small
fi
for seed in 1 2 3; do
    torchrun -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \
        data.train_files=$DATA_ROOT/train.parquet data.val_files="[$DATA_ROOT/test.parquet]" \
        data.train_batch_size=32 actor_rollout_ref.actor.ppo_mini_batch_size=32 \
        actor_rollout_ref.model.path=$MODEL actor_rollout_ref.rollout.name=vllm \
        actor_rollout_ref.rollout.n=2 data.seed=$seed trainer.nnodes=$NODES \
        trainer.default_local_dir=/ckpt/$seed trainer.experiment_name=$(whoami)_run \
        actor_rollout_ref.actor.fsdp_config.param_offload=$OFFLOAD \
        trainer.total_training_steps=10 "${EXTRA[@]}"
done
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae
