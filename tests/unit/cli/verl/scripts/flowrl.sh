# The recipe FlowRL: a loss with no key of its own, beside which no term of another key stands. Its
# trainer has no loop of its own: a step trains on all prompts that it fetches, and filters none.
python3 -m recipe.flowrl.main_flowrl \
    data.train_files=train.parquet data.val_files=test.parquet \
    data.train_batch_size=64 data.gen_batch_size=192 algorithm.filter_groups.enable=True \
    algorithm.adv_estimator=grpo \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001 \
    actor_rollout_ref.actor.entropy_coeff=0.01 \
    actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.model.path=model \
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \
    actor_rollout_ref.actor.optim.lr_warmup_steps=10 \
    actor_rollout_ref.ref.fsdp_config.param_offload=True \
    actor_rollout_ref.rollout.n=4 \
    trainer.experiment_name=flowrl trainer.total_epochs=2
