"""What verl, TRL and OpenRLHF call otherwise: one table of fields, one of words.

Messages, `ppojob fields` and docs/fields.md answer from it; a test holds docs/from-verl.md to it.

A line has names apart by spaces, what they are here, and what to know besides. `critic.lr` is an
`lr` anywhere below a `critic`; of two lines that fit, the longer name counts. What they are here is
fields apart by spaces, `not yet` with what is not there, or `not needed` with why not.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from ppojob_api import shape as shapes

NOT_YET: Final = "not yet"
NOT_NEEDED: Final = "not needed"

_TOLD: Final = re.compile(r"([\w.]*\w)(?=[,.;]|$)")


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table, the names as the other framework writes them."""

    names: tuple[str, ...]
    here: tuple[str, ...]
    """Fields or a word; empty where `status` says why there is none."""

    remark: str
    """What to know besides, as it follows a comma."""

    status: str
    """NOT_YET, NOT_NEEDED, or empty."""


def rows(text: str) -> tuple[Row, ...]:
    """The rows of a table."""
    return tuple(_row(line) for line in text.strip().splitlines())


def rows_by_field(text: str) -> dict[str, list[Row]]:
    """The rows of a table whose first column is the field."""
    found: dict[str, list[Row]] = {}
    for line in text.strip().splitlines():
        fields, _, rest = line.partition(" | ")
        for field in fields.split():
            found.setdefault(field, []).append(_row(rest))
    return found


def _of_models(table: tuple[Row, ...]) -> Iterator[Row]:
    """What the models say of verl's names, of fields that a table does not have.

    A name is told by its last word, or where another field has that by as many as it takes.
    """
    fields = {field for row in table for field in row.here}
    names = {name for row in table for name in row.names}
    told = set[str]()
    for path, member in shapes.fields():
        found = _TOLD.match(member.verl)
        if found is None or found[1] in told:
            continue
        told.add(found[1])
        words = found[1].split(".")
        tails = (".".join(words[-length:]) for length in range(1, len(words) + 1))
        name = next((tail for tail in tails if tail not in names), None)
        if name is not None and path not in fields:
            names.add(name)
            yield Row((name,), (path,), "", "")


def _row(line: str) -> Row:
    names, here, remark = (part.strip() for part in f"{line} | ".split(" | ")[:3])
    status = here if here in {NOT_YET, NOT_NEEDED} else ""
    return Row(tuple(names.split()), () if status else tuple(here.split()), remark, status)


_VERL = rows("""
train_files | spec.data.train | a list of {path: FILE}
val_files | spec.data.validation | a list of {path: FILE}
train_batch_size | spec.algorithm.promptsPerStep | in prompts; OpenRLHF's is miniBatchPrompts
data.shuffle shuffle_train_dataloader | spec.data.shuffle
data.seed | spec.data.seed
truncation filter_overlong_prompts | spec.data.overlongPrompts
val_batch_size | not needed | promptsPerStep prompts are one batch
filter_overlong_prompts_workers dataloader_num_workers | not needed | data is read ahead
return_raw_chat return_full_prompt | not needed | rows on disk hold the prompt
return_raw_input_ids return_multi_modal_inputs | not needed | rows on disk hold the prompt
validation_shuffle | not needed | a validation reads all rows
image_key | not needed | pictures are in the column images
video_key audio_key | not yet | videos and sound
image_patch_size mm_processor_kwargs | not yet | pictures and sound
data.tokenizer | spec.model.tokenizerPath
use_shm | not needed | files are read where they are
hybrid_engine | not needed | engines live in the trainer's ranks, or in pods of spec.roles.rollout
nccl_timeout ray_wait_register_center_timeout | not needed | spec.timeouts says what is too long
prompt_key | spec.data.promptKey
messages_key | spec.data.promptKey | of algorithm.type: sft
data.max_length | spec.data.maxPromptTokens spec.data.maxResponseTokens | one for each
data.max_token_len_per_gpu | spec.training.microBatchTokens
tools_key | spec.data.toolsKey | of algorithm.type: sft
enable_thinking_key | spec.data.templateColumns | a list of columns, each a variable of its name
data.apply_chat_template_kwargs | spec.data.applyChatTemplateKwargs
enable_thinking_default | spec.data.applyChatTemplateKwargs | {enable_thinking: true}
pad_mode balance_dp_token | not needed | rows are packed and nothing is padded
ignore_input_ids_mismatch | not needed | turns are read as a rollout would have made them
data.num_workers | not needed | data is read ahead
trainer.seed | spec.seed
profile_interval | not yet | spec.profile.steps
prompt_dict_keys | spec.data.promptKey | a path: extra_info.question
response_key response_dict_keys | spec.data.answerKey | a path: extra_info.answer
custom_cls.path | spec.data.train[].path | a Python file
custom_cls.name | spec.data.train[].function | it makes rows, not tokens
custom_cls | spec.data.train[] | path: a Python file; function: its name
sampler | spec.data.curriculum | the column that orders rows; no sampler by code
tool_config_path function_tool_path | spec.agent.tools | as `ppojob tools FILE` prints them
multi_turn.enable | spec.agent | on where it is given
multi_turn.format | spec.agent.format
interaction_config_path | spec.agent.interactions | as `ppojob tools FILE` prints them
interactions.class_name | spec.agent.interactions[].source
use_inference_chat_template | not needed | the tokens that were drawn are trained on
tokenization_sanity_check_mode | not needed | no conversation is tokenised anew
num_repeat_rollouts | not needed | samplesPerPrompt
agent.num_workers | not needed | rows take turns in the rank that holds the engine
agent_loop_config_path | spec.agent.agents | the names of agents
custom_async_server | not needed | the engine is in the rank that drives it
model.path | spec.model.path
partial_pretrain | spec.model.path | of fsdp_sft_trainer
model.tokenizer_path | spec.model.tokenizerPath
custom_chat_template | spec.model.chatTemplate
calculate_sum_pi_squared | not needed | estimators that read it have it computed
use_remove_padding | not needed | rows are packed and nothing is padded
use_fused_kernels | spec.training.logprobChunkTokens | a number of tokens
fused_kernel_options use_prefix_grouper | not needed | kernels are chosen here
external_lib override_config hf_config_path | not yet | code and settings beside the model folder
override_config.attn_implementation | not needed | attention is chosen here, and rows are packed
rope_scaling.type rope_scaling.rope_type | spec.model.ropeScaling.type
embd_pdrop resid_pdrop | not needed | the families that are trained have no such dropout
model.lora model.lora.type | not yet | other adapters of Megatron's layers
lora_rank lora.rank | spec.model.lora.rank
lora_alpha lora.alpha | spec.model.lora.alpha
lora.dropout | spec.model.lora.dropout
lora.target_modules | spec.model.lora.targetModules | q_proj for linear_q
lora.exclude_modules | spec.model.lora.targetModules | those that are left
critic.lora.rank | spec.critic.lora.rank
critic.lora.alpha | spec.critic.lora.alpha
critic.lora.dropout | spec.critic.lora.dropout
critic.lora.target_modules | spec.critic.lora.targetModules | q_proj for linear_q
critic.lora.exclude_modules | spec.critic.lora.targetModules | those that are left
lora.dropout_position | not yet | inputs of adapters are dropped, before A
lora_A_init_method lora_B_init_method | not needed | A is drawn as PEFT draws it, and B is zero
lora.dtype | not needed | adapters are float32
a2a_experimental | not needed | how ranks speak is chosen here
param_offload grad_offload | spec.roles.actorRollout.offload | [weights]
optimizer_offload | spec.roles.actorRollout.offload | [optimizer]
enable_activation_offload | spec.roles.actorRollout.offload | [activations]
offload_policy | spec.roles.actorRollout.offload | [weights, optimizer]
ref.param_offload ref.offload_policy | spec.roles.reference.offload | [weights]
critic.param_offload critic.grad_offload | spec.roles.critic.offload | [weights]
critic.optimizer_offload | spec.roles.critic.offload | [optimizer]
critic.enable_activation_offload | spec.roles.critic.offload | [activations]
critic.offload_policy | spec.roles.critic.offload | [weights, optimizer]
reward_model.param_offload reward_model.model.fsdp_config \
| spec.roles.rewardModel.offload | [weights]
lora.merge | spec.rollout.adapters | where true is merged, and false beside
critic.lora_rank | spec.critic.lora.rank
critic.lora_alpha | spec.critic.lora.alpha
critic.target_modules | spec.critic.lora.targetModules
target_modules | spec.model.lora.targetModules
exclude_modules | spec.model.lora.targetModules | those that are left
critic.exclude_modules | spec.critic.lora.targetModules | those that are left
target_parameters | not yet | adapters of experts
critic.lora_adapter_path | spec.critic.lora.path
use_liger tiled_mlp | not yet | other kernels
mtp | not yet | prediction of several tokens
qat quantization_config_file | not yet | quantized weights
actor.shuffle critic.shuffle critic.data_loader_seed | spec.algorithm.shuffleMiniBatches
data_loader_seed rollout.seed | spec.seed
ppo_max_token_len_per_gpu log_prob_max_token_len_per_gpu | spec.training.microBatchTokens
forward_max_token_len_per_gpu critic.use_dynamic_bsz | spec.training.microBatchTokens
ppo_micro_batch_size_per_gpu log_prob_use_dynamic_bsz | spec.training.microBatchTokens | in tokens
ppo_micro_batch_size log_prob_micro_batch_size | spec.training.microBatchTokens | in tokens
forward_micro_batch_size_per_gpu forward_micro_batch_size | spec.training.microBatchTokens
micro_batch_size_per_gpu micro_batch_size | spec.training.microBatchTokens | in tokens
log_prob_micro_batch_size_per_gpu | spec.training.microBatchTokens | in tokens
use_dynamic_bsz | not needed | micro-batches are always budgets of tokens
clip_ratio_low | spec.algorithm.policyLoss.clipLow
clip_ratio | spec.algorithm.policyLoss.clipLow spec.algorithm.policyLoss.clipHigh | for both
clip_ratio_high | spec.algorithm.policyLoss.clipHigh
loss_mode | spec.algorithm.policyLoss.type
use_kl_loss | spec.algorithm.kl.in | where true is loss
use_kl_in_reward | spec.algorithm.kl.in | where true is reward
kl_loss_coef | spec.algorithm.kl.coefficient | with spec.algorithm.kl.in: loss
kl_coef | spec.algorithm.kl.coefficient | with spec.algorithm.kl.in: reward
kl_loss_type kl_penalty | spec.algorithm.kl.estimator
kl_ctrl.type | spec.algorithm.kl.controller
kl_ctrl.horizon | spec.algorithm.kl.horizon
optim.weight_decay | spec.optimizer.weightDecay
grad_clip optim.clip_grad | spec.optimizer.gradientClip
optim.optimizer | spec.optimizer.type
critic.optim.optimizer | spec.critic.optimizer.type
override_optimizer_config | not yet | other settings of optimizers
override_optimizer_config.momentum | spec.optimizer.momentum | with type: muon or sgd
critic.override_optimizer_config.momentum | spec.critic.optimizer.momentum
exp_avg_dtype exp_avg_sq_dtype | not yet | moments are float32
main_grads_dtype master_weight_dtype | not yet | gradients and weights are float32
master_weights store_param_remainders | not needed | what is trained is float32
use_precision_aware_optimizer | not needed | how Megatron stores it
use_checkpoint_opt_param_scheduler | not needed | a checkpoint always holds everything
wd_incr_style weight_decay_incr_style | not yet | a weight decay that grows
optim.eps | spec.optimizer.epsilon
init_lr_ratio | spec.optimizer.warmupStartRatio
optimizer_impl zero_indexed_step | not needed | spec.optimizer.type says which
lr_scheduler_type lr_decay_style warmup_style | spec.optimizer.schedule
min_lr_ratio min_lr_factor | spec.optimizer.minLearningRateRatio
optim.min_lr lr_min | spec.optimizer.minLearningRateRatio | as a share of the learning rate
critic.optim.min_lr | spec.critic.optimizer.minLearningRateRatio | as a share of the learning rate
critic.lr_min | spec.critic.optimizer.minLearningRateRatio | as a share of the learning rate
lr_decay_steps | spec.optimizer.decaySteps | in optimizer steps
critic.lr_decay_steps | spec.critic.optimizer.decaySteps | in optimizer steps
critic.lr_decay_ratio | spec.critic.optimizer.decayRatio
lr_warmup_init lr_start | spec.optimizer.warmupStartRatio | as a share of the learning rate
critic.lr_warmup_init critic.lr_start | spec.critic.optimizer.warmupStartRatio | as a share
lr_wsd_decay_steps | spec.optimizer.stableRatio | as a share of the schedule
critic.lr_wsd_decay_steps | spec.critic.optimizer.stableRatio | as a share of the schedule
lr_wsd_decay_style | spec.optimizer.schedule | linear or cosine, with stableRatio
critic.lr_wsd_decay_style | spec.critic.optimizer.schedule | linear or cosine, with stableRatio
calculate_entropy | not needed | the entropy is always measured
optim.betas | spec.optimizer.betas
lr_warmup_steps | spec.optimizer.warmupSteps | in optimizer steps
critic.num_cycles | spec.critic.optimizer.cycles
critic.lr_warmup_steps_ratio | spec.critic.optimizer.warmupRatio
fsdp_config.dtype megatron.dtype | spec.training.autocast
save_contents load_contents | not needed | a checkpoint always holds everything
use_orig_params forward_only mixed_precision fsdp_config.seed | not needed | FSDP2 does without
actor.use_torch_compile ref.use_torch_compile | not needed | it computes the same
fsdp_config.use_torch_compile | not needed | it computes the same
entropy_from_logits_with_chunking entropy_from_logits_chunk_size | not needed | always in chunks
entropy_checkpointing | not needed | always in chunks
pad_to_length pad_to_length_bucket | not needed | rows are packed and nothing is padded
rollout_n | not needed | samplesPerPrompt
model_engine | not needed | FSDP2 trains: with other trainers numbers agree to rounding
turbo_config megatron veomni torchtitan | not yet | other trainers than FSDP2
actor.engine ref.engine critic.engine | not yet | other trainers than FSDP2
moe_aux_loss_coeff moe_router_load_balancing_type | spec.algorithm.routerBalanceCoefficient
moe_z_loss_coeff | spec.algorithm.routerZCoefficient
fp8_recipe override_transformer_config.fp8 | not yet | float8
strategy fsdp_size | spec.roles.actorRollout.parallelism.dataShard
megatron.tensor_model_parallel_size | spec.roles.actorRollout.parallelism.tensor
megatron.tp megatron.tp_size engine.tp engine.tp_size | spec.roles.actorRollout.parallelism.tensor
megatron.pipeline_model_parallel_size | spec.roles.actorRollout.parallelism.pipeline
megatron.pp megatron.pp_size engine.pp engine.pp_size | spec.roles.actorRollout.parallelism.pipeline
megatron.expert_model_parallel_size | spec.roles.actorRollout.parallelism.expert
megatron.ep megatron.ep_size engine.ep engine.ep_size | spec.roles.actorRollout.parallelism.expert
veomni.expert_parallel_size | spec.roles.actorRollout.parallelism.expert
torchtitan.expert_parallel_size | spec.roles.actorRollout.parallelism.expert
megatron.expert_tensor_parallel_size | not needed | experts that ranks share are whole
critic.megatron.tensor_model_parallel_size | spec.roles.critic.parallelism.tensor
ref.megatron.tensor_model_parallel_size | spec.roles.reference.parallelism.tensor
critic.megatron.pipeline_model_parallel_size | spec.roles.critic.parallelism.pipeline
ref.megatron.pipeline_model_parallel_size | spec.roles.reference.parallelism.pipeline
critic.megatron.expert_model_parallel_size | spec.roles.critic.parallelism.expert
ref.megatron.expert_model_parallel_size | spec.roles.reference.parallelism.expert
ulysses_sequence_parallel_size | spec.roles.actorRollout.parallelism.sequence
critic.ulysses_sequence_parallel_size | spec.roles.critic.parallelism.sequence
ref.ulysses_sequence_parallel_size | spec.roles.reference.parallelism.sequence
reshard_after_forward | spec.training.reshardAfterForward
wrap_policy ref.fsdp_config | not yet | FSDP's own
forward_prefetch | not needed | FSDP2 fetches the next layer while one computes
enable_gradient_checkpointing recompute_granularity | spec.training.activationCheckpointing
recompute_method recompute_num_layers recompute_modules | not needed | all layers are computed again
full_determinism | not needed | a step is a function of weights, data and seed
checkpoint.async_save | spec.checkpoint.background
checkpoint.strict | not needed | all of a checkpoint is read
save_lora_only | not needed | with spec.model.lora a checkpoint holds adapters alone
router_replay router_replay.mode | spec.algorithm.routerReplay
ref.router_replay ref.router_replay.mode | not yet | the reference's routers choose for themselves
router_replay.record_file router_replay.replay_file | not yet | records of routers in files
enable_rollout_routing_replay | not needed | engines are asked with routerReplay: rollout
skip.rollout | spec.rollout.replay
rollout.name | spec.rollout.engine
temperature | spec.rollout.temperature
do_sample | spec.rollout.temperature | where false is 0
top_k | spec.rollout.topK | -1: all
rollout.dtype | spec.rollout.dtype
gpu_memory_utilization standalone_gpu_memory_utilization | spec.rollout.gpuMemoryShare
data_parallel_size | spec.rollout.parallelism.data
rollout.nnodes | spec.roles.rollout.replicas | and for 0 no spec.roles.rollout
rollout.n_gpus_per_node | spec.roles.rollout.gpusPerReplica
val_kwargs.temperature | spec.rollout.validation.temperature
val_kwargs.do_sample | spec.rollout.validation.temperature | where false is 0
val_kwargs.n validation.n | spec.rollout.validation.samples
calculate_log_probs logprobs_mode | not needed | always, after temperature
free_cache_engine enable_sleep_mode | not needed | engine and trainer take turns with a GPU
load_format | not needed | the engine gets its weights from the trainer
enable_prefix_caching | not needed | a prompt is computed once for all of its samples
enable_chunked_prefill | not needed | vLLM's own choice on GPUs; on processors prompts are whole
engine_kwargs | not yet | arguments of other engines
engine_kwargs.vllm | spec.rollout.engineArguments
mm_processor_cache_gb disable_mm_preprocessor_cache | not needed | vLLM keeps no pixels
skip_mm_profiling limit_mm_per_prompt | not needed | as many pictures as fit a prompt
expert_parallel_size pipeline_model_parallel_size moe_tensor_parallel_size | not yet | other layouts
max_prompt_length prompt_length | spec.data.maxPromptTokens
over_sample_rate | not yet | rows drawn beyond those that are trained on
multi_stage_wake_up layered_summon cudagraph_capture_sizes | not needed | the engine's own choice
disable_log_stats skip_tokenizer_init scheduling_policy | not needed | the engine's own choice
moe_load_balance_metrics_interval | not needed | there is no such metric
use_legacy_worker_impl | not needed | there is one trainer
rollout.mode | not needed | the engine is in the rank that drives it
total_training_steps | spec.steps.total
total_rollout_steps | spec.steps.total | in steps; there in prompts of the whole run
staleness_threshold | spec.rollout.maxStaleness | in versions; there a share
partial_rollout | not needed | long rows go on with newer weights where maxStaleness is above 1
trigger_parameter_sync_step require_batches | spec.algorithm.promptsPerStep | all of both
use_rollout_log_probs | not needed | rollout_correction.bypass_mode says so
use_trainer_do_validate concurrent_samples_per_replica | not needed | the engines' own choice
async_training | not yet | ranks that train and draw by turns beside engines in pods of their own
rollout.agent | spec.agent
rollout.trace | not needed | the rows of every step are kept in the run folder
checkpoint_engine rollout.prometheus disaggregation quantization | not yet
norm_adv_by_std_in_grpo | spec.algorithm.grpo.normalizeByStd \
spec.algorithm.grpoPassk.normalizeByStd \
spec.algorithm.gdpo.normalizeByStd
gamma | spec.algorithm.ppo.gamma spec.algorithm.reinforcePlusPlus.gamma | in the section of its type
use_pf_ppo pf_ppo | spec.algorithm.resampling | on where it is given
filter_groups filter_groups.enable | spec.algorithm.dynamicSampling | on where it is given
max_inflight_gen_batches | not yet | rounds under way at once
rollout_rs | spec.algorithm.rolloutCorrection.rejection | a list of {mode, low, high}
rollout_rs_threshold | spec.algorithm.rolloutCorrection.rejection | as low and high
bypass_mode | spec.algorithm.policyLoss.type | where true is bypass
rollout_correction.loss_type | spec.algorithm.policyLoss.bypass.form | ppo_clip is clip
rollout_is | spec.algorithm.rolloutCorrection.weights | where null is none
critic.enable | not needed | spec.algorithm.type: ppo has a critic
critic.model.path | spec.critic.path
ref.model.path | spec.reference.path
critic.tokenizer_path critic.model.tokenizer_path | not needed | they are the policy's
critic.lr | spec.critic.optimizer.learningRate
critic.optim.clip_grad | spec.critic.optimizer.gradientClip
critic.lr_decay_style critic.warmup_style | spec.critic.optimizer.schedule
critic.optim.weight_decay | spec.critic.optimizer.weightDecay
critic.optim.betas | spec.critic.optimizer.betas
critic.lr_warmup_steps | spec.critic.optimizer.warmupSteps | in optimizer steps
critic.lr_scheduler_type | spec.critic.optimizer.schedule
critic.min_lr_ratio critic.min_lr_factor | spec.critic.optimizer.minLearningRateRatio
critic.grad_clip | spec.critic.optimizer.gradientClip
critic.fsdp critic.fsdp_size critic.fsdp.fsdp_size | spec.roles.critic.parallelism
critic.model.fsdp_config | spec.roles.critic.parallelism
reward.num_workers reward_model.num_workers | spec.roles.reward.cpu
reward_manager reward_manager.name reward_manager.source reward_manager.module | spec.rewards
reward_loop_source reward_loop_module_path reward_loop_class_name | spec.rewards
overlong_buffer overlong_buffer.enable | spec.algorithm.overlongPenalty | on where it is given
overlong_buffer_cfg | spec.algorithm.overlongPenalty | on where it is given
overlong_buffer_cfg.enable | spec.algorithm.overlongPenalty | on where it is given
max_response_length max_resp_len | spec.data.maxResponseTokens
overlong_buffer.log overlong_buffer_cfg.log | not needed | its metrics are always there
reward_model.enable | spec.rewardModel
reward_model.model.path reward_model.model_path | spec.rewardModel.path
input_tokenizer | spec.rewardModel.tokenizerPath
reward_model.max_length | spec.rewardModel.maxTokens
reward_model.rollout | not needed | a classifier needs no engine
reward_model.rollout.dtype | spec.rewardModel.dtype
enable_resource_pool | spec.roles.rewardModel.colocateWith
reward_model.nnodes reward_model.n_gpus_per_node | spec.roles.rewardModel
retriever.url retriever.topk | spec.agent.tools | of the tool search
max_assistant_turns max_turns | spec.agent.maxAssistantTurns
do_search | spec.agent | format: search_r1
max_tool_response_length max_obs_length | spec.agent.maxToolResponseCharacters
state_masking | not needed | what tools answer is never trained on
no_think_rl | not needed | Search-R1 itself refuses it
structure_format_score final_format_score retrieval_score | spec.rewards | search_r1_format
max_start_length | spec.data.maxPromptTokens
train_max_samples train_data_num | spec.data.maxTrainRows
val_max_samples val_data_num | spec.data.maxValidationRows
rollout.n n_agent | spec.algorithm.samplesPerPrompt
sglang_rollout_mode rollout.server | not needed | ranks call engines by the control RPC
launch_reward_fn_async use_reward_loop | not needed \
| reward functions always work beside the passes of the models
sandbox_fusion.memory_limit_mb | spec.sandbox.memoryMib
sandbox_fusion.url | spec.sandbox.url
sandbox_fusion.max_concurrent | spec.roles.reward.cpu | calls of a pod at one time
experiment_name | metadata.name
project_name | spec.pods[].env | WANDB_PROJECT, MLFLOW_EXPERIMENT_NAME
n_gpus_per_node | spec.roles.actorRollout.gpusPerReplica
device | spec.roles.actorRollout.gpusPerReplica | where 0 is the CPU
default_local_dir | spec.checkpoint.volume.claimName | and `ppojob run --output` here
max_ckpt_to_keep max_actor_ckpt_to_keep max_critic_ckpt_to_keep | spec.checkpoint.keepLast
num_examine log_val_generations | spec.numExamine
rollout_data_dir validation_data_dir | not needed | the run folder always has them
balance_batch | not needed | work is always balanced
critic_warmup | spec.critic.warmupSteps | one less than in verl
resume_from_path | not needed | a run goes on in its folder, and a new one begins with an export
default_hdfs_dir | spec.checkpoint.copyTo | in a folder of the job's name there
del_local_ckpt_after_load esi_redundant_time | not yet
use_v1 v1 | not yet | other trainers; spec.rollout.maxStaleness has engines draw ahead
ray_kwargs | not needed | there is no Ray
hydra defaults | not needed | there is no Hydra
skip.rollout.enable | spec.rollout.replay
global_profiler.steps | spec.profile.steps
profiler.ranks profiler.all_ranks | spec.profile.ranks
global_profiler.tool | spec.profile
global_profiler.save_path global_profiler.relocate_results | not needed | they lie in profile/
profiler.tool_config.torch.contents | spec.profile.contents
profiler global_profiler | not yet | nsys, npu and memory; spec.profile traces by torch
n_samples | spec.rollout.validation.samples
output_path | not needed | `ppojob generate` writes responses.parquet to its --output
reward_model_key | not needed | `ppojob evaluate` reads verl's columns
adv_estimator | spec.algorithm.type
distillation.enabled | spec.algorithm.type | where true is distillation
distillation_loss | spec.algorithm.distillation | with spec.reference, the teacher
distillation | not yet | other losses; spec.algorithm.distillation
teacher_model.inference distillation.num_workers | not needed | the teacher needs no engine
teacher teacher_model | spec.reference
teacher_models | spec.reference.teachers | one by itself is spec.reference.path
teacher.path teacher_model.model_path teacher_models.model_path | spec.reference.path
reward_fn_key teacher_key | spec.data.dataSourceKey
teacher_models.key | spec.reference.teachers | dataSources of one
distillation_loss.loss_mode | spec.algorithm.distillation.divergence
use_policy_gradient | spec.algorithm.distillation.divergence | where true is sampled_reverse_kl
use_task_rewards | spec.algorithm.type | where true the type of the rewards, with kl.in: loss
distillation_loss_coef | spec.algorithm.kl.coefficient | beside rewards, with kl.in: loss
policy_loss_mode | spec.algorithm.policyLoss.type
distillation_loss.topk | not needed | all tokens are compared
log_prob_min_clamp | not needed | the whole vocabulary is compared, and no logarithm is infinite
distillation.nnodes teacher_model.nnodes | spec.roles.reference.replicas
distillation.n_gpus_per_node teacher_model.n_gpus_per_node | spec.roles.reference.gpusPerReplica
teacher_model.enable_resource_pool | spec.roles.reference.colocateWith | where true is none
transfer_queue skip | not yet
""")


@cache
def sections() -> frozenset[str]:
    """Names of verl's sections, in which its table or the models know more names."""
    told = (_TOLD.match(member.verl) for _, member in shapes.fields())
    names = [*(name for row in _VERL for name in row.names), *(one[1] for one in told if one)]
    return frozenset(part for name in names for part in name.split(".")[:-1])


TRL = rows("""
model_name_or_path | spec.model.path | a folder
reward_model_path | spec.rewardModel.path | a folder
dataset_name train_dataset | spec.data.train | a list of {path: FILE}
eval_dataset | spec.data.validation | a list of {path: FILE}
reward_funcs | spec.rewards
reward_weights | spec.rewards[].weight
max_completion_length response_length | spec.data.maxResponseTokens
shuffle_dataset | spec.data.shuffle
chat_template_kwargs | spec.data.applyChatTemplateKwargs
num_generations | spec.algorithm.samplesPerPrompt
num_generations_eval | spec.rollout.validation.samples
learning_rate | spec.optimizer.learningRate
critic.learning_rate | spec.critic.optimizer.learningRate
weight_decay | spec.optimizer.weightDecay
adam_beta1 adam_beta2 | spec.optimizer.betas | both in a list
adam_epsilon | spec.optimizer.epsilon
max_grad_norm | spec.optimizer.gradientClip
warmup_steps | spec.optimizer.warmupSteps
warmup_ratio | spec.optimizer.warmupRatio
lr_scheduler_kwargs min_lr_rate | spec.optimizer.minLearningRateRatio | that of cosine_with_min_lr
num_stable_steps | spec.optimizer.stableRatio | as a share, of warmup_stable_decay
per_device_train_batch_size | spec.training.microBatchTokens | in tokens
per_device_eval_batch_size | not needed | the engine makes batches itself
gradient_accumulation_steps | not needed | miniBatchPrompts is one optimizer step
generation_batch_size batch_size | spec.algorithm.promptsPerStep | in prompts
steps_per_generation num_mini_batches mini_batch_size | spec.algorithm.miniBatchPrompts | in prompts
num_train_epochs | spec.steps.epochs
max_steps | spec.steps.total
num_iterations num_ppo_epochs | spec.algorithm.epochs
beta | spec.algorithm.kl.coefficient | with kl.in: loss (GRPO) or reward (RLOO); dpo.beta of DPO
epsilon | spec.algorithm.policyLoss.clipLow spec.algorithm.policyLoss.clipHigh | for both
epsilon_high | spec.algorithm.policyLoss.clipHigh
delta | spec.algorithm.policyLoss.dualClip
cliprange | spec.algorithm.policyLoss.clipLow spec.algorithm.policyLoss.clipHigh
loss_type | spec.algorithm.lossAggregation | spec.algorithm.dpo.lossType of DPO
label_smoothing | spec.algorithm.dpo.labelSmoothing
rpo_alpha cpo_alpha | spec.algorithm.dpo.sftWeight
simpo_gamma | spec.algorithm.dpo.targetMargin
teacher_model_name_or_path | spec.reference.path | a folder
lmbda | not needed | the policy draws all responses; sft learns given ones
seq_kd teacher_model_init_kwargs | not yet | responses of the teacher, settings beside its folder
precompute_ref_log_probs | not needed | the reference lives in the ranks of the policy
center_rewards_coefficient | spec.algorithm.rewardModel.centering
scale_rewards | spec.algorithm.grpo.normalizeByStd | where group is true, none is false
vf_coef | not needed | the critic has an optimizer of its own, spec.critic.optimizer
whiten_rewards reward_clip_range normalize_advantages | not yet | other normalisation
missing_eos_penalty | not yet | penalties by length; a reward function can give one
importance_sampling_level | spec.algorithm.policyLoss.type | where sequence is gspo
sapo_temperature_neg | spec.algorithm.policyLoss.sapo.tauNegative
sapo_temperature_pos | spec.algorithm.policyLoss.sapo.tauPositive
entropy_coef | spec.algorithm.entropyCoefficient
use_adaptive_entropy | spec.algorithm.entropyControl | on where it is given
entropy_target | spec.algorithm.entropyControl.target
entropy_coef_delta | spec.algorithm.entropyControl.step
entropy_coef_min | spec.algorithm.entropyControl.minCoefficient
entropy_coef_max | spec.algorithm.entropyControl.maxCoefficient | 0.1 here where absent, 1 there
top_entropy_quantile | spec.algorithm.highEntropyShare
mask_truncated_completions | spec.algorithm.maskTruncated
sync_ref_model | spec.algorithm.kl.referenceRefresh | on where it is given
ref_model_sync_steps | spec.algorithm.kl.referenceRefresh.everySteps | in steps of training
ref_model_mixup_alpha | spec.algorithm.kl.referenceRefresh.mixup | 1 here where absent, 0.6 there
vllm_importance_sampling_correction | spec.algorithm.rolloutCorrection.weights
vllm_importance_sampling_cap | spec.algorithm.rolloutCorrection.weightLimit
off_policy_mask_threshold | spec.algorithm.offPolicyThreshold
multi_objective_aggregation | spec.algorithm.type | where normalize_then_sum is gdpo
use_bias_correction_kl | not yet
use_vllm | spec.rollout.engine | where true is vllm
max_staleness | spec.rollout.maxStaleness | in versions; 1 is one step off-policy
vllm_mode | spec.roles.rollout | for server; none for colocate
vllm_server_base_url vllm_server_host vllm_server_port | not yet | servers of others
vllm_max_model_length | spec.rollout.maxModelTokens
generation_kwargs | not yet | other ways of sampling
use_peft peft_config | spec.model.lora | on where it is given
lora_r | spec.model.lora.rank
lora_target_modules | spec.model.lora.targetModules
lora_dropout | spec.model.lora.dropout
use_rslora | spec.model.lora.rankStabilized
use_dora lora_modules_to_save lora_target_parameters | not yet | other adapters
load_in_4bit load_in_8bit | not yet | quantized weights
use_liger_kernel torch_compile attn_implementation | not yet | other kernels
model_init_kwargs | not yet | settings beside the model folder
fp16 | spec.training.autocast | where true is float16
gradient_checkpointing | spec.training.activationCheckpointing
deepspeed fsdp | not needed | models are sharded by FSDP2 over all ranks of their role
output_dir | spec.checkpoint.volume.claimName | and `ppojob run --output` here
run_name | metadata.name
report_to | spec.loggers
logging_steps | not needed | every step is logged
save_total_limit | spec.checkpoint.keepLast
load_best_model_at_end metric_for_best_model | spec.checkpoint.best.metric
greater_is_better | spec.checkpoint.best.mode | max or min
resume_from_checkpoint | spec.checkpoint.resume
push_to_hub hub_model_id | not yet | uploads; `ppojob export` writes a folder
log_completions num_completions_to_print | spec.numExamine
""")

OPENRLHF = rows("""
pretrain | spec.model.path | a folder
critic_pretrain | spec.critic.path | a folder
reward_pretrain | spec.rewardModel.path | a folder
remote_rm_url | spec.rewards[].function | http_score, with arguments: {url: ...}
agent_func_path | not yet | tools and several turns
prompt_data | spec.data.train | a list of {path: FILE}
prompt_data_probs | spec.data.train[].weight | one for each file
input_key | spec.data.promptKey
label_key | spec.data.answerKey
chosen_key | spec.data.chosenKey
rejected_key | spec.data.rejectedKey
ipo | spec.algorithm.dpo.lossType | where true is ipo
nll_loss_coef | spec.algorithm.dpo.sftWeight
margin_loss | not yet | margins of pairs
apply_chat_template | not needed | prompts that are messages go through the template
prompt_max_len | spec.data.maxPromptTokens
generate_max_len max_new_tokens | spec.data.maxResponseTokens
max_samples | spec.data.maxTrainRows
n_samples_per_prompt | spec.algorithm.samplesPerPrompt
eval_n_samples_per_prompt | spec.rollout.validation.samples
eval_temperature | spec.rollout.validation.temperature
rollout_batch_size | spec.algorithm.promptsPerStep
vllm_generate_batch_size | not needed | the engine makes batches itself
micro_train_batch_size micro_rollout_batch_size | spec.training.microBatchTokens | in tokens
train_max_tokens_per_gpu rollout_max_tokens_per_gpu | spec.training.microBatchTokens
use_dynamic_batch | not needed | micro-batches are always budgets of tokens
max_epochs | spec.algorithm.epochs
num_episodes | spec.steps.epochs
actor_learning_rate | spec.optimizer.learningRate
critic_learning_rate | spec.critic.optimizer.learningRate
lr_warmup_ratio | spec.optimizer.warmupRatio
lr_scheduler | spec.optimizer.schedule
adam_betas | spec.optimizer.betas
l2 | spec.optimizer.weightDecay
max_norm | spec.optimizer.gradientClip
advantage_estimator | spec.algorithm.type
no_advantage_std_norm | spec.algorithm.grpo.normalizeByStd | where true is false
policy_loss_type | spec.algorithm.policyLoss.type
eps_clip eps_clip_low_high | spec.algorithm.policyLoss.clipLow spec.algorithm.policyLoss.clipHigh
value_clip | spec.critic.valueClip
lambd | spec.algorithm.ppo.lambda
init_kl_coef | spec.algorithm.kl.coefficient | with spec.algorithm.kl.in: reward or loss
kl_estimator | spec.algorithm.kl.estimator
kl_target | spec.algorithm.kl.target | with spec.algorithm.kl.controller: adaptive
kl_horizon | spec.algorithm.kl.horizon | with spec.algorithm.kl.controller: adaptive
entropy_loss_coef | spec.algorithm.entropyCoefficient
freezing_actor_steps | spec.critic.warmupSteps
ptx_coef aux_loss_coef | not yet | other terms of the loss
normalize_reward | not yet | normalised rewards
overlong_buffer_len | spec.algorithm.overlongPenalty.bufferTokens
overlong_penalty_factor | spec.algorithm.overlongPenalty.factor
dynamic_filtering | spec.algorithm.dynamicSampling | on where it is given
dynamic_filtering_reward_range | spec.algorithm.dynamicSampling.meanAbove \
spec.algorithm.dynamicSampling.meanBelow
enable_vllm_is_correction | not yet | correction of the rollout's policy
async_train | spec.rollout.maxStaleness | where true is 1
async_queue_size | spec.rollout.maxStaleness | in steps
bf16 | spec.training.autocast | where true is bfloat16
zero_stage zpg | not needed | models are sharded by FSDP2 over all ranks of their role
packing_samples | not needed | rows are packed and nothing is padded
adam_offload | spec.roles.actorRollout.offload | [optimizer]
ref_reward_offload | spec.roles.reference.offload spec.roles.rewardModel.offload | [weights]
ds_tensor_parallel_size | spec.roles.actorRollout.parallelism.tensor
ring_attn_size | spec.roles.actorRollout.parallelism.sequence | by heads, without a ring
enable_ema ema_beta | not yet | averages of weights
actor_num_nodes | spec.roles.actorRollout.replicas
actor_num_gpus_per_node | spec.roles.actorRollout.gpusPerReplica
critic_num_nodes critic_num_gpus_per_node | spec.roles.critic
ref_num_nodes ref_num_gpus_per_node | spec.roles.reference
reward_num_nodes reward_num_gpus_per_node | spec.roles.rewardModel
colocate_all_models colocate_actor_ref colocate_critic_reward | not needed | so by itself
vllm_num_engines | spec.rollout.parallelism.data
vllm_tensor_parallel_size | spec.rollout.parallelism.tensor
vllm_gpu_memory_utilization | spec.rollout.gpuMemoryShare
vllm_enable_sleep vllm_enable_sleep_mode deepspeed_enable_sleep | not needed | always
vllm_sync_backend | not needed | the engine lives in the trainer's ranks
ckpt_path save_path | spec.checkpoint.volume.claimName | and `ppojob run --output` here
save_steps | spec.checkpoint.every
eval_steps | spec.steps.validateEvery
max_ckpt_num | spec.checkpoint.keepLast
save_hf_ckpt | spec.checkpoint.export
load_checkpoint | spec.checkpoint.resume
use_tensorboard | spec.loggers | [console, tensorboard]
use_wandb | spec.loggers | [console, wandb]
wandb_run_name | metadata.name
wandb_project wandb_group wandb_org | spec.pods[].env | WANDB_PROJECT, WANDB_RUN_GROUP, WANDB_ENTITY
""")


@cache
def fields() -> dict[str, tuple[Row, ...]]:
    """The rows by framework; a name that several have stands with the first of them.

    verl's are those above and what the models say behind `verl: `, read when somebody asks.
    """
    return {"verl": (*_VERL, *_of_models(_VERL)), "TRL": TRL, "OpenRLHF": OPENRLHF}


# Words that fields take: the field, the words apart by spaces, and as above.
WORDS: Final = rows_by_field("""
spec.algorithm.type | gae | ppo
spec.algorithm.type | group_norm | grpo
spec.algorithm.type | dr_grpo | grpo | with spec.algorithm.grpo.normalizeByStd: false
spec.algorithm.type | dapo | grpo | with policyLoss.clipHigh: 0.28 and dynamicSampling
spec.algorithm.type | reinforce reinforce++ | reinforce_plus_plus
spec.algorithm.type | reinforce_baseline reinforce++_baseline | reinforce_plus_plus_baseline
spec.algorithm.type | gspo | grpo | with policyLoss.type: gspo
spec.algorithm.type | grpo_vectorized | grpo
spec.algorithm.type | rloo_vectorized | rloo
spec.algorithm.type | sft_trainer supervised | sft
spec.algorithm.type | rm bradley_terry | reward_model
spec.algorithm.type | ipo | dpo | with dpo.lossType: ipo
spec.algorithm.type | simpo | dpo | with dpo.lossType: simpo
spec.algorithm.type | orpo | dpo | with dpo.lossType: orpo
spec.algorithm.type | cpo | dpo | with dpo.lossType: cpo
spec.algorithm.type | kto bco | not yet
spec.algorithm.type | gkd minillm opd on_policy_distillation distill | distillation
spec.algorithm.type | maxrl | not yet
spec.algorithm.distillation.divergence | k1 kl | sampled_reverse_kl
spec.algorithm.distillation.divergence | reverse | reverse_kl
spec.algorithm.distillation.divergence | forward forward_kl_topk | forward_kl
spec.algorithm.distillation.divergence | generalized_jsd | jsd
spec.algorithm.distillation.divergence | k2 k3 abs mse low_var_kl | reverse_kl
spec.algorithm.policyLoss.type | vanilla regular ppo grpo dapo dual_clip | clip
spec.algorithm.policyLoss.type | gmpo | geo_mean
spec.algorithm.policyLoss.type | bypass_mode | bypass
spec.algorithm.policyLoss.type | reinforce | bypass | with bypass.form: reinforce
spec.algorithm.policyLoss.type | luspo | gspo | with lossAggregation: sequence_mean_token_sum
spec.algorithm.routerReplay | disabled off | none
spec.algorithm.routerReplay | r2 | recompute
spec.algorithm.routerReplay | r3 | rollout
spec.algorithm.lossAggregation | dapo bnpo | token_mean
spec.algorithm.lossAggregation | seq-mean-token-sum | sequence_mean_token_sum
spec.algorithm.lossAggregation | seq-mean-token-sum-norm dr_grpo | sequence_mean_token_sum_norm
spec.algorithm.lossAggregation | seq-mean-token-mean sequence_mean grpo | sequence_mean_token_mean
spec.algorithm.lossAggregation | cispo | token_mean | with policyLoss.type: cispo
spec.algorithm.lossAggregation | sapo | sequence_mean_token_mean | with policyLoss.type: sapo
spec.algorithm.lossAggregation | gspo | sequence_mean_token_mean | with policyLoss.type: gspo
spec.algorithm.lossAggregation | vespo | token_mean | with policyLoss.type: vespo
spec.algorithm.lossAggregation | luspo | sequence_mean_token_sum | with policyLoss.type: gspo
spec.algorithm.kl.estimator spec.algorithm.kl.lossTerm.estimator | kl | k1
spec.algorithm.kl.estimator | mse | k2
spec.algorithm.kl.lossTerm.estimator | mse k2+ mse+ | k2
spec.algorithm.kl.estimator spec.algorithm.kl.lossTerm.estimator | low_var_kl | k3
spec.algorithm.kl.estimator spec.algorithm.kl.lossTerm.estimator | kl+ | k1+
spec.algorithm.kl.estimator spec.algorithm.kl.lossTerm.estimator | low_var_kl+ | k3+
spec.algorithm.kl.estimator | k2+ mse+ | k2
spec.optimizer.schedule spec.critic.optimizer.schedule | constant_with_warmup | constant
spec.optimizer.schedule spec.critic.optimizer.schedule | cosine_with_min_lr | cosine
spec.optimizer.schedule spec.critic.optimizer.schedule | wsd warmup_stable_decay \
| cosine | with stableRatio
spec.optimizer.schedule spec.critic.optimizer.schedule | polynomial inverse_sqrt | not yet
spec.optimizer.schedule spec.critic.optimizer.schedule | inverse_square_root | not yet
spec.model.dtype spec.rollout.dtype spec.rewardModel.dtype | fp32 float | float32
spec.model.dtype spec.rollout.dtype spec.rewardModel.dtype | bf16 | bfloat16
spec.rollout.dtype | fp16 half | float16
spec.model.dtype spec.rewardModel.dtype | fp16 float16 half | not yet
spec.model.dtype spec.rollout.dtype spec.rewardModel.dtype | fp8 float8 | not yet
spec.training.autocast | float32 fp32 no false | none
spec.training.autocast | bf16 | bfloat16
spec.training.autocast | fp16 half | float16
spec.agent.format | qwen qwen25 | hermes
spec.rollout.engine | hf transformers | huggingface
spec.rollout.engine | sglang trtllm | not yet
spec.data.overlongPrompts | left | truncate_left
spec.data.overlongPrompts | right | truncate_right
spec.data.overlongPrompts | middle | truncate_middle
spec.data.overlongPrompts | filter | drop
spec.checkpoint.resume | latest | auto
spec.checkpoint.resume | disable resume_path from_path | not yet
spec.loggers | file | not needed | metrics.jsonl is always written
spec.loggers | swanlab vemlp_wandb clearml comet rl_insight | not yet
""")
