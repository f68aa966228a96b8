#!/bin/bash
# A model that hears, whose rows name the audios by a column of their own.
set -x
AUDIOS=$HOME/data/audios

python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=False \
    data.train_files=$AUDIOS/train.parquet data.val_files=$AUDIOS/test.parquet \
    data.train_batch_size=64 data.max_prompt_length=1024 data.max_response_length=256 \
    data.image_key=images data.video_key=videos data.audio_key=audio \
    actor_rollout_ref.model.path=$HOME/models/Qwen2-Audio-7B-Instruct \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 \
    trainer.total_epochs=2 trainer.n_gpus_per_node=8 trainer.nnodes=1 \
    trainer.experiment_name=audios
