#!/usr/bin/env bash
# Engines that draw while the policy trains: two trainers, of which the first call counts.
NNODES_ROLLOUT=2
require_batches=4

python -m verl.experimental.fully_async_policy.fully_async_main \
    --config-name=fully_async_ppo_trainer.yaml \
    algorithm.adv_estimator=grpo \
    data.train_files=train.parquet \
    data.val_files=test.parquet \
    data.train_batch_size=0 \
    data.gen_batch_size=1 \
    actor_rollout_ref.model.path=model \
    actor_rollout_ref.hybrid_engine=False \
    actor_rollout_ref.actor.use_rollout_log_probs=True \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.optim.lr_warmup_steps=10 \
    actor_rollout_ref.rollout.n=4 \
    rollout.nnodes="${NNODES_ROLLOUT}" \
    rollout.total_rollout_steps=$((512 * 400)) \
    trainer.experiment_name=async \
    trainer.total_epochs=10 \
    async_training.staleness_threshold=0.5 \
    async_training.trigger_parameter_sync_step=4 \
    async_training.require_batches="${require_batches}" \
    async_training.partial_rollout=True \
    async_training.use_dynamic_resource_scheduling=True \
    async_training.dynamic_schedule_policy=mine
