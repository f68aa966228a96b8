#!/usr/bin/env bash
# The recipe whose long rows go on in the next step, by engines that share the GPUs of the trainer.
python3 -m recipe.partial_rollout.main_ppo \
    algorithm.adv_estimator=grpo \
    algorithm.rollout_correction.rollout_is=token \
    data.train_files=train.parquet \
    data.val_files=test.parquet \
    data.train_batch_size=64 \
    data.gen_batch_size=32 \
    actor_rollout_ref.model.path=model \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.rollout.n=4 \
    +async_training.partial_rollout=True \
    trainer.experiment_name=partial \
    trainer.total_epochs=2
