#!/usr/bin/env bash
# One step off-policy, whose configuration has pods for engines and the engine's ratios by itself.
python3 -m verl.experimental.one_step_off_policy.main_ppo \
    --config-path=config \
    --config-name='one_step_off_ppo_trainer.yaml' \
    algorithm.adv_estimator=grpo \
    data.train_files=train.parquet \
    data.val_files=test.parquet \
    data.train_batch_size=64 \
    actor_rollout_ref.model.path=model \
    actor_rollout_ref.rollout.n=4 \
    trainer.experiment_name=ahead \
    trainer.n_gpus_per_node=6 \
    rollout.n_gpus_per_node=2 \
    trainer.total_epochs=2
