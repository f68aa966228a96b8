# The recipe PRIME: what it says of a reward model is said of the critic here.
model=models/sft
python3 -m recipe.prime.main_prime \
    data.train_files=train.parquet data.val_files=test.parquet \
    data.train_batch_size=64 data.filter_overlong_prompts=True \
    data.max_prompt_length=1024 data.max_response_length=3072 \
    data.accuracy_lower_bound=0.2 data.accuracy_upper_bound=0.75 \
    actor_rollout_ref.model.path=$model \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.actor.fsdp_config.param_offload=True \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    algorithm.adv_estimator=rloo algorithm.use_kl_in_reward=True algorithm.kl_ctrl.kl_coef=0.001 \
    reward_model.model.path=models/prm reward_model.model.ref_path=$model \
    reward_model.model.update=after reward_model.model.beta_train=0.1 \
    reward_model.model.optim.lr=2e-6 reward_model.model.optim.lr_warmup_steps=5 \
    reward_model.model.input_tokenizer=null \
    reward_model.mini_batch_size=64 reward_model.micro_batch_size_per_gpu=1 \
    trainer.total_training_steps=101 trainer.n_gpus_per_node=8
