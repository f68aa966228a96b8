# The recipe SPO: one response a prompt, compared with what the prompt scored before.
python3 -m recipe.spo.spo_main_ppo \
    data.train_files=train.parquet data.val_files=test.parquet \
    data.train_batch_size=1024 +data.gen_batch_size=14000 \
    algorithm.adv_estimator=grpo \
    actor_rollout_ref.model.path=model \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \
    actor_rollout_ref.rollout.n=1 \
    trainer.experiment_name=spo trainer.total_epochs=500 \
    trainer.spo.enable=True trainer.spo.offline_values=values.json \
    trainer.spo.rho.type=constant trainer.spo.rho.value=0.9
