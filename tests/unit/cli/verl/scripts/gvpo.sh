# The recipe GVPO: a loss of whole prompts, with one key of its own.
python3 -m recipe.gvpo.gvpo_main_ppo \
    algorithm.adv_estimator=grpo algorithm.norm_adv_by_std_in_grpo=False \
    data.train_files=train.parquet data.val_files=test.parquet \
    data.train_batch_size=64 \
    actor_rollout_ref.model.path=model \
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \
    actor_rollout_ref.actor.policy_loss.loss_mode=gvpo actor_rollout_ref.actor.gvpo_beta=0.2 \
    actor_rollout_ref.rollout.n=4 \
    trainer.experiment_name=gvpo trainer.total_epochs=2
