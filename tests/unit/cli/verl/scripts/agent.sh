# Tools of a file beside the script, and one that is not there.
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files=train.parquet data.val_files=test.parquet data.train_batch_size=32 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.model.path=models/small \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=2 \
    actor_rollout_ref.rollout.multi_turn.enable=True \
    actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml \
    actor_rollout_ref.rollout.multi_turn.interaction_config_path=users.yaml \
    actor_rollout_ref.rollout.multi_turn.max_assistant_turns=5 \
    actor_rollout_ref.rollout.multi_turn.format=qwen3_coder \
    reward_model.enable=True reward_model.model.path=models/judge reward_model.max_length=1024 \
    reward_model.enable_resource_pool=True reward_model.n_gpus_per_node=1 reward_model.nnodes=1 \
    trainer.total_training_steps=10 trainer.n_gpus_per_node=2
