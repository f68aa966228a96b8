# In the idiom of Search-R1's scripts.
export DATA_DIR='data/nq_search'
export BASE_MODEL='models/qwen2.5-3b'
export EXPERIMENT_NAME=nq-search-grpo

PYTHONUNBUFFERED=1 python3 -m verl.trainer.main_ppo_format \
    data.train_files=$DATA_DIR/train.parquet \
    data.val_files=$DATA_DIR/test.parquet \
    data.train_data_num=null \
    data.train_batch_size=512 \
    data.max_prompt_length=4096 \
    data.max_response_length=500 \
    data.max_start_length=2048 \
    data.max_obs_length=500 \
    data.shuffle_train_dataloader=True \
    algorithm.adv_estimator=grpo \
    algorithm.no_think_rl=false \
    actor_rollout_ref.model.path=$BASE_MODEL \
    actor_rollout_ref.actor.use_kl_loss=true \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.fsdp_config.grad_offload=true \
    actor_rollout_ref.actor.state_masking=true \
    actor_rollout_ref.rollout.n_agent=5 \
    reward_model.structure_format_score=0.2 \
    reward_model.final_format_score=0.1 \
    trainer.experiment_name=$EXPERIMENT_NAME \
    trainer.total_training_steps=1005 \
    max_turns=2 \
    retriever.url="http://127.0.0.1:8000/retrieve" \
    2>&1 | tee $EXPERIMENT_NAME.log
