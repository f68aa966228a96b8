# Losses that share verl's keys; verl's default bounds; what it does not read.
python -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    algorithm.norm_adv_by_std_in_grpo=False \
    actor_rollout_ref.actor.policy_loss.loss_mode=gspo \
    actor_rollout_ref.actor.clip_ratio_low=0.0003 \
    actor_rollout_ref.actor.clip_ratio_c=10 \
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum \
    actor_rollout_ref.actor.policy_loss.tau_pos=2.0 \
    data.train_files=train.parquet data.val_files=test.parquet data.train_batch_size=32 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.model.path=models/small \
    actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.n=8 \
    algorithm.rollout_correction.rollout_is=token \
    algorithm.rollout_correction.rollout_is_threshold=0.5_5.0 \
    algorithm.rollout_correction.rollout_rs=seq_mean_k1,token_k2 \
    algorithm.rollout_correction.rollout_rs_threshold=0.5_2.0,0.1 \
    reward.reward_manager.name=naive \
    +reward.reward_kwargs.overlong_buffer_cfg.enable=True \
    +reward.reward_kwargs.overlong_buffer_cfg.len=64 \
    trainer.device=npu trainer.total_epochs=1
