# A generative reward model in a pool of its own, which a function asks.
python3 -m verl.trainer.main_ppo \
    data.train_files=train.parquet data.val_files=test.parquet data.train_batch_size=32 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.model.path=models/small actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=4 algorithm.adv_estimator=grpo \
    custom_reward_function.path=rewards/judge.py \
    reward_model.enable=True reward_model.enable_resource_pool=True \
    reward_model.nnodes=2 reward_model.n_gpus_per_node=8 \
    reward_model.model.path=models/judge reward_model.rollout.name=sglang \
    reward_model.rollout.gpu_memory_utilization=0.8 \
    reward_model.rollout.tensor_model_parallel_size=4 \
    reward_model.rollout.prompt_length=4096 reward_model.rollout.response_length=1024 \
    reward_model.rollout.free_cache_engine=False \
    trainer.total_training_steps=10
