# The recipe FlowRL: a loss with no key of its own, and the reference that it asks for by a KL of 0.
python3 -m recipe.flowrl.main_flowrl \
    data.train_files=train.parquet data.val_files=test.parquet \
    data.train_batch_size=64 \
    algorithm.adv_estimator=grpo \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.0 \
    actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.model.path=model \
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \
    actor_rollout_ref.rollout.n=4 \
    trainer.experiment_name=flowrl trainer.total_epochs=2
