# Keys without a counterpart, keys of nobody, and settings without effect.
python3 -m recipe.spin.main_ppo \
    algorithm.adv_estimator=reinforce_plus_plus algorithm.lam=0.9 \
    data.train_files=train.parquet data.val_files=test.parquet data.train_batch_size=32 \
    data.gen_batch_size=8 data.custom_cls.path=rows.py data.custom_cls.name=Rows \
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \
    actor_rollout_ref.actor.clip_ratio=0.3 actor_rollout_ref.actor.kl_loss_coef=0.01 \
    actor_rollout_ref.actor.grad_clip=0.5 actor_rollout_ref.actor.optim.min_lr_ratio=0.1 \
    actor_rollout_ref.actor.optim.optimizer=SGD \
    actor_rollout_ref.actor.use_dynamic_batch=True \
    actor_rollout_ref.model.path=models/small actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.do_sample=False actor_rollout_ref.rollout.response_length=9 \
    +actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_dtype=fp8 \
    distillation.enabled=True distillation.distillation_loss.topk=64 \
    critic.optim.lr=1 trainer.logger='[console,comet]' trainer.total_training_steps=10 \
    actor@actor_rollout_ref.actor=dp_actor model_engine=megatron
