# TTRL's fork: 64 responses vote, 32 of them are trained on; the last settings change nothing.
python -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files=train.parquet data.val_files=test.parquet data.train_batch_size=8 \
    actor_rollout_ref.model.path=models/small \
    actor_rollout_ref.actor.ppo_mini_batch_size=8 \
    actor_rollout_ref.rollout.do_vote=True \
    actor_rollout_ref.rollout.n_vote=64 \
    actor_rollout_ref.rollout.n=32 \
    actor_rollout_ref.rollout.val_kwargs.n=16 actor_rollout_ref.rollout.val_kwargs.temperature=0.6 \
    reward_model.reward_manager=ttrl \
    reward_model.reward_kwargs.n_samples_per_prompt=32 \
    reward_model.reward_kwargs.n_votes_per_prompt=64 \
    reward_model.reward_kwargs.mode="train" \
    trainer.total_epochs=80 \
    reward.num_workers=8 reward_model.num_workers=null \
    actor_rollout_ref.rollout.over_sample_rate=0 \
    actor_rollout_ref.model.tiled_mlp.enabled=False actor_rollout_ref.model.tiled_mlp.num_shards=4
