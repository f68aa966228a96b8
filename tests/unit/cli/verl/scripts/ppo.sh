# A critic, an adaptive KL in the reward, warm-up in training steps.
export VLLM_USE_V1=1
data_dir=/volume/data

python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=gae \
    algorithm.gamma=0.99 \
    algorithm.lam=0.95 \
    algorithm.use_kl_in_reward=True \
    algorithm.kl_penalty=kl \
    algorithm.kl_ctrl.type=adaptive \
    algorithm.kl_ctrl.kl_coef=0.01 \
    algorithm.kl_ctrl.target_kl=0.05 \
    data.train_files=$data_dir/train.parquet \
    data.val_files=$data_dir/test.parquet \
    data.train_batch_size=256 \
    actor_rollout_ref.model.path=/volume/models/policy \
    actor_rollout_ref.model.enable_gradient_checkpointing=False \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.optim.lr_warmup_steps=10 \
    actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.ppo_epochs=2 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
    actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.val_kwargs.temperature=0.6 \
    actor_rollout_ref.rollout.val_kwargs.top_p=0.95 \
    actor_rollout_ref.rollout.val_kwargs.n=4 \
    actor_rollout_ref.rollout.val_kwargs.do_sample=True \
    critic.model.path=/volume/models/value \
    critic.model.lora_rank=8 critic.model.lora_alpha=32 critic.model.target_modules=all-linear \
    critic.model.exclude_modules='.*(mlp|k_proj).*' critic.model.lora_adapter_path=/volume/adapters \
    critic.optim.lr=2e-5 \
    critic.optim.lr_warmup_steps=5 \
    critic.ppo_epochs=3 \
    critic.cliprange_value=0.2 \
    critic.ppo_micro_batch_size_per_gpu=8 \
    trainer.critic_warmup=20 \
    trainer.total_training_steps=500 \
    trainer.total_epochs=3 \
    trainer.max_actor_ckpt_to_keep=1 \
    trainer.n_gpus_per_node=8 \
    trainer.nnodes=2 $@
