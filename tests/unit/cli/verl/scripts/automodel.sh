if [ "$#" -lt 2 ]; then
    echo "Usage: automodel.sh <nproc_per_node> <save_path> [other_configs...]"
    exit 1
fi

nproc_per_node=$1
save_path=$2

shift 2

OPTIM="\
    optim=automodel \
    optim.optimizer=FusedAdam \
    optim.optimizer_impl=transformer_engine.pytorch.optimizers.fused_adam \
    optim.lr_warmup_steps_ratio=0.1 \
    optim.weight_decay=0 \
    optim.betas='[0.9,0.95]' \
    optim.eps=1e-7 \
    optim.init_lr_ratio=0.2 \
    optim.master_weights=true \
    optim.store_param_remainders=true \
    optim.exp_avg_dtype=fp32"

torchrun --standalone --nnodes=1 --nproc_per_node=$nproc_per_node \
    -m verl.trainer.sft_trainer \
    data.train_files=$HOME/data/hellaswag/train.parquet \
    data.val_files=$HOME/data/hellaswag/test.parquet \
    data.train_batch_size=512 \
    model.path=models/qwen3-30b-a3b \
    engine=automodel \
    engine.distributed_strategy=fsdp2 \
    engine.ep_size=8 \
    engine.model_dtype=bf16 \
    $OPTIM \
    trainer.default_local_dir=$save_path \
    trainer.experiment_name=hellaswag-automodel $@
