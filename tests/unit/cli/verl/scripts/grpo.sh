#!/usr/bin/env bash
# Arrays, defaults from the environment, a probe for other hardware, a KL in the loss.
set -xeuo pipefail

DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}
MODEL=${MODEL:-$HOME/models/small}
PROMPTS=${PROMPTS:-64}   # a step
STAMP=$(date +%Y%m%d)
rollout_tp=${ROLLOUT_TP:-}
ANSWER=$((512 * 2))

EXTRA=()
case "${DEVICE}" in
    gpu)
        gpus=${GPUS:-4}
        rollout_tp=${rollout_tp:-2}
        EXTRA+=(actor_rollout_ref.rollout.enforce_eager=True)
        ;;
    npu) gpus=16 ;;
    *) echo "DEVICE?"; exit 1 ;;
esac

DATA=(
    algorithm.adv_estimator=grpo
    # two sets
    data.train_files="['$HOME/data/gsm8k/train.parquet', '$HOME/data/math/train.parquet']"
    data.val_files="['$HOME/data/gsm8k/test.parquet']"
    data.train_batch_size=${PROMPTS}
    data.max_prompt_length=256
    data.max_response_length=${ANSWER}
    data.filter_overlong_prompts=True
    data.truncation='error'
)
ACTOR=(
    actor_rollout_ref.model.path="$MODEL"
    actor_rollout_ref.model.use_remove_padding=True
    actor_rollout_ref.actor.optim.lr=2e-6
    actor_rollout_ref.actor.ppo_mini_batch_size=16
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$(((256 + ANSWER) * 4))
    actor_rollout_ref.actor.use_kl_loss=True
    actor_rollout_ref.actor.kl_loss_coef=0.002
    actor_rollout_ref.actor.kl_loss_type=low_var_kl
    actor_rollout_ref.actor.entropy_coeff=0
    actor_rollout_ref.actor.fsdp_config.param_offload=False
    actor_rollout_ref.ref.fsdp_config.param_offload=True
)

python3 -m verl.trainer.main_ppo \
    "${DATA[@]}" \
    "${ACTOR[@]}" \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.tensor_model_parallel_size=${rollout_tp} \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    actor_rollout_ref.rollout.n=5 \
    algorithm.use_kl_in_reward=False \
    trainer.logger='["console","wandb"]' \
    trainer.project_name='sums' \
    trainer.experiment_name="grpo_${DEVICE}_${STAMP}" \
    trainer.n_gpus_per_node=${gpus} \
    trainer.save_freq=20 \
    trainer.test_freq=5 \
    trainer.total_epochs=15 \
    "${EXTRA[@]}" "$@"
