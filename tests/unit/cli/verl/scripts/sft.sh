#!/usr/bin/env bash
set -x
nproc_per_node=8
save_path=checkpoints

torchrun --standalone --nnodes=2 --nproc_per_node=$nproc_per_node \
    -m verl.trainer.sft_trainer \
    data.train_files=$HOME/data/gsm8k/train.parquet \
    data.val_files=$HOME/data/gsm8k/test.parquet \
    data.messages_key=messages \
    data.micro_batch_size_per_gpu=4 \
    data.max_length=2048 \
    data.pad_mode=no_padding \
    optim.lr=1e-4 \
    optim.lr_scheduler_type=cosine \
    optim.lr_warmup_steps_ratio=0.2 \
    engine=fsdp \
    engine.ulysses_sequence_parallel_size=2 \
    engine.tensor_model_parallel_size=1 \
    model.path=models/qwen2.5-0.5b-instruct \
    model.lora_rank=8 \
    model.use_remove_padding=true \
    checkpoint.save_contents='["model","optimizer"]' \
    trainer.default_local_dir=$save_path \
    trainer.project_name=gsm8k-sft \
    trainer.experiment_name=gsm8k-sft-gemma \
    trainer.seed=1 \
    trainer.max_ckpt_to_keep=3 \
    trainer.total_epochs=2
