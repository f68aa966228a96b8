# A KL in the reward and conditions on known words.
USE_KL=${USE_KL:-yes}
if [ "$USE_KL" = yes ] && [[ -n "$HOME" ]]; then
    KL=(algorithm.use_kl_in_reward=True algorithm.kl_penalty=low_var_kl algorithm.kl_ctrl.kl_coef=0.005)
else
    KL=(algorithm.use_kl_in_reward=False)
fi
nodes=2
if (( nodes > 1 )); then
    agg=seq-mean-token-sum
elif [ $nodes -eq 1 ]; then
    agg=token-mean
fi
run() {
    python3 -m verl.trainer.main_ppo algorithm.adv_estimator=rloo "${KL[@]}" \
        data.train_files=train.parquet data.val_files=test.parquet data.train_batch_size=512 \
        data.seed=7 actor_rollout_ref.actor.data_loader_seed=11 \
        actor_rollout_ref.actor.ppo_mini_batch_size=512 \
        actor_rollout_ref.actor.loss_agg_mode=$agg \
        actor_rollout_ref.actor.shuffle=True \
        actor_rollout_ref.actor.optim.lr_scheduler_type=cosine \
        actor_rollout_ref.actor.optim.min_lr_ratio=0.1 \
        actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.03 \
        actor_rollout_ref.model.path=models/small \
        actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=4 \
        trainer.total_epochs=2 trainer.nnodes=$nodes trainer.val_before_train=False
}
run
