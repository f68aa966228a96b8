#!/usr/bin/env bash
set -x
samples=${N_SAMPLES:-4}

python3 -m verl.trainer.main_generation_server \
    trainer.nnodes=2 \
    trainer.n_gpus_per_node=4 \
    data.train_files=$HOME/data/gsm8k/test.parquet \
    data.prompt_key=question \
    +data.output_path=$HOME/data/gsm8k/answers.parquet \
    actor_rollout_ref.model.path=models/qwen2.5-0.5b-instruct \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.load_format=auto \
    actor_rollout_ref.rollout.temperature=0.8 \
    actor_rollout_ref.rollout.top_k=50 \
    actor_rollout_ref.rollout.top_p=0.7 \
    actor_rollout_ref.rollout.prompt_length=2048 \
    actor_rollout_ref.rollout.response_length=1024 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.8 \
    actor_rollout_ref.rollout.n=$samples
