# Both generations of reward keys, a reward model in pods of its own, LoRA, engines in pods.
python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer.yaml \
    algorithm.adv_estimator=reinforce_plus_plus_baseline \
    custom_reward_function.path=rewards/score.py \
    custom_reward_function.name=score_all \
    +custom_reward_function.reward_kwargs.strict=true \
    reward_model.reward_manager=prime \
    reward_model.num_examine=1 \
    trainer.log_val_generations=3 \
    data.train_files=train.parquet data.val_files=test.parquet data.train_batch_size=32 \
    +data.apply_chat_template_kwargs.enable_thinking=False \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.model.path=models/small \
    actor_rollout_ref.model.lora_rank=32 \
    actor_rollout_ref.model.lora_alpha=64 \
    actor_rollout_ref.model.target_modules='[q_proj,v_proj]' \
    actor_rollout_ref.model.exclude_modules='.*visual.*' \
    actor_rollout_ref.actor.fsdp_config.model_dtype=bf16 \
    actor_rollout_ref.actor.fsdp_config.dtype=float32 \
    actor_rollout_ref.actor.fsdp_config.fsdp_size=4 \
    actor_rollout_ref.rollout.name=hf actor_rollout_ref.rollout.n=2 \
    actor_rollout_ref.rollout.dtype=float32 \
    trainer.total_training_steps=10 trainer.device=cpu trainer.n_gpus_per_node=8 \
    trainer.resume_mode=resume_path trainer.resume_from_path=/old/global_step_5
