#!/bin/bash
# A model that sees images, whose responses vLLM draws over two ranks an engine.
ENGINE=${1:-vllm}
GEOMETRY=$HOME/data/geometry

python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=False \
    data.train_files=$GEOMETRY/train.parquet data.val_files=$GEOMETRY/test.parquet \
    data.train_batch_size=512 data.max_prompt_length=1024 data.max_response_length=2048 \
    data.filter_overlong_prompts=True data.image_key=images data.video_key=videos \
    actor_rollout_ref.model.path=$HOME/models/Qwen2.5-VL-7B-Instruct \
    actor_rollout_ref.actor.freeze_vision_tower=True \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.01 \
    actor_rollout_ref.rollout.name=$ENGINE actor_rollout_ref.rollout.n=5 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    +actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache=True \
    trainer.total_epochs=15 trainer.n_gpus_per_node=8 trainer.nnodes=1 \
    trainer.experiment_name=geometry
