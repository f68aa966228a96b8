from typing import Any

import pytest
from bad_specs import changed_job

from ppojob_api import validation
from ppojob_api.problem import Problem

# What a user writes, and where it stands here; a word in capitals is what is not in this version.
# test_from_verl has verl's names.
NAMES = """
adv_estimator                algorithm.type
ppo_mini_batch_size          algorithm.miniBatchPrompts
beta                         algorithm.kl.coefficient
epsilon                      algorithm.policyLoss.clipLow
epsilon_high                 algorithm.policyLoss.clipHigh
delta                        algorithm.policyLoss.dualClip
loss_type                    algorithm.lossAggregation
scale_rewards                algorithm.grpo.normalizeByStd
num_generations              algorithm.samplesPerPrompt
max_completion_length        data.maxResponseTokens
learning_rate                optimizer.learningRate
num_train_epochs             steps.epochs
num_iterations               algorithm.epochs
per_device_train_batch_size  training.microBatchTokens
use_vllm                     rollout.engine
vllm_structured_outputs_regex  rollout.structuredOutput.regex
stop_strings                 rollout.stopStrings
max_grad_norm                optimizer.gradientClip
cliprange                    algorithm.policyLoss.clipLow
sync_ref_model               algorithm.kl.referenceRefresh
ref_model_mixup_alpha        algorithm.kl.referenceRefresh.mixup
off_policy_mask_threshold    algorithm.offPolicyThreshold
importance_sampling_level    algorithm.policyLoss.type
use_peft                     model.lora
lora_r                       model.lora.rank
r                            model.lora.rank
lora_dropout                 model.lora.dropout
use_rslora                   model.lora.rankStabilized
use_dora                     model.lora.weightDecomposed
lora_modules_to_save         model.lora.modulesToSave
load_in_4bit                 model.lora.baseType
load_in_8bit                 QUANTIZED WEIGHTS
use_bnb_nested_quant         SCALES ARE FLOAT32
advantage_estimator          algorithm.type
n_samples_per_prompt         algorithm.samplesPerPrompt
rollout_batch_size           algorithm.promptsPerStep
micro_train_batch_size       training.microBatchTokens
init_kl_coef                 algorithm.kl.coefficient
eps_clip                     algorithm.policyLoss.clipLow
lambd                        algorithm.ppo.lambda
value_clip                   critic.valueClip
actor_learning_rate          optimizer.learningRate
critic_learning_rate         critic.optimizer.learningRate
generate_max_len             data.maxResponseTokens
num_episodes                 steps.epochs
dynamic_filtering            algorithm.dynamicSampling
use_wandb                    loggers
aux_loss_coef                algorithm.routerBalanceCoefficient
router_aux_loss_coef         algorithm.routerBalanceCoefficient
max_length                   data.maxPromptTokens
vespo_k_pos                  algorithm.policyLoss.vespo.kPositive
discopop_tau                 algorithm.dpo.discopopTau
mixture_coef                 RESPONSES OF A MIXTURE OF POLICY AND REFERENCE
freeze_visual_encoder        model.freezeVisionTower
min_p                        rollout.minP
repetition_penalty           rollout.repetitionPenalty
"""
CASES = [line.split(maxsplit=1) for line in NAMES.strip().splitlines()]


def found(*changes: str) -> list[Problem]:
    problems: Any = validation.validate(changed_job(list(changes)))
    assert isinstance(problems, list), "nothing was found"
    return problems


@pytest.mark.parametrize(("name", "answer"), CASES)
def test_field(name: str, answer: str) -> None:
    camel = name.split("_")[0] + "".join(word.capitalize() for word in name.split("_")[1:])
    for place in (name, f"trainer.{camel}", f"algorithm.policyLoss.{name.replace('_', '-')}"):
        (problem,) = found(f"spec.{place}: 1")
        assert problem.where == f"spec.{place}"
        if answer.isupper():
            assert problem.reason_code == "NotInThisVersion"
            assert problem.why.upper() == f"{answer}: NOT IN THIS VERSION"
        else:
            assert problem.reason_code == "UnknownField"
            assert problem.allowed.replace(",", " ").split()[:2] == ["write", f"spec.{answer}"]


def test_sections_of_verl_are_read_to_their_last_field() -> None:
    actor = "{optim: {lr: 1.0e-6}, policy_loss: {loss_mode: vanilla}, use_remove_padding: true}"
    problems = found(
        f"spec.actor_rollout_ref: {{actor: {actor}, ref: {{odd: 1}}}}",
        "spec.critic: {optim: {lr: 1.0e-5}}",
        "spec.reward_model: {enable: true, model: {path: /m}}",
        'spec: {"actor_rollout_ref.rollout.val_kwargs.n": 4}',
    )
    actor = "spec.actor_rollout_ref.actor"
    assert {problem.where: problem.allowed for problem in problems} == {
        f"{actor}.optim.lr": "write spec.optimizer.learningRate",
        f"{actor}.policy_loss.loss_mode": "write spec.algorithm.policyLoss.type: clip",
        f"{actor}.use_remove_padding": "remove it",
        "spec.actor_rollout_ref.ref.odd": "remove it",
        "spec.critic.optim.lr": "write spec.critic.optimizer.learningRate",
        "spec.reward_model.enable": "write spec.rewardModel",
        "spec.reward_model.model.path": "write spec.rewardModel.path",
        'spec["actor_rollout_ref.rollout.val_kwargs.n"]': "write spec.rollout.validation.samples",
    }


def test_a_section_of_verl_is_told_key_by_key() -> None:
    groups = "{enable: true, metric: acc, max_num_gen_batches: 10, odd: 1}"
    arguments = "{temperature: 0.5}"
    problems = found(
        f"spec.algorithm.filter_groups: {groups}",
        "spec.rollout.agent: {num_workers: 8}",
        f"spec.custom_reward_function.reward_kwargs: {arguments}",
        "spec.distillation: {teacher_model: {model_path: /m}}",
        "spec.global_profiler: {steps: [1]}",
        "spec.transfer_queue: {enable: true}",
    )
    section = "spec.algorithm.filter_groups"
    sampling = "write spec.algorithm.dynamicSampling"
    assert {problem.where: problem.allowed for problem in problems} == {
        section: f"{sampling}, on where it is given",
        f"{section}.enable": f"{sampling}, on where it is given",
        f"{section}.metric": f"{sampling}.metric",
        f"{section}.max_num_gen_batches": f"{sampling}.maxRounds",
        "spec.rollout.agent.num_workers": "remove it",
        # What such a section holds is its author's, or not verl's key for a field of ours.
        "spec.custom_reward_function.reward_kwargs": "write spec.rewards[].arguments",
        "spec.distillation.teacher_model.model_path": "write spec.reference.path",
        "spec.global_profiler.steps": "write spec.profile.steps",
        "spec.transfer_queue": "remove it",
    }


@pytest.mark.parametrize(
    ("field", "word", "ours"),
    [
        ("algorithm.type", "dr_grpo", "grpo, with spec.algorithm.grpo.normalizeByStd: false"),
        ("algorithm.policyLoss.type", "vanilla", "clip"),
        ("algorithm.type", "bco", "kto, with kto.lossType: bco"),
        ("algorithm.type", "nash_md", ""),
        ("algorithm.lossAggregation", "seq-mean-token-sum", "sequence_mean_token_sum"),
        ("model.dtype", "float16", ""),
        ("critic.optimizer.schedule", "inverse_square_root", "inverse_sqrt"),
    ],
)
def test_word(field: str, word: str, ours: str) -> None:
    problem = found(f"spec.{field}: {word}")[0]
    assert problem.where == f"spec.{field}"
    assert problem.reason_code == ("NotOneOf" if ours else "NotInThisVersion")
    assert problem.allowed == f"write {ours}" if ours else "did you mean" not in problem.why


@pytest.mark.parametrize(
    ("field", "answer"),
    [
        ("optimizer.lerningRate", "write spec.optimizer.learningRate"),
        ("teacher", "write spec.reference"),
        ("optimizer.betaz", "write spec.optimizer.betas"),
        ("algorithm.kl.betas", "write spec.optimizer.betas or spec.critic.optimizer.betas"),
        ("rollout.learningRat", "fields here are"),
        ("roles.actorRollout.dataShard", "write spec.roles.actorRollout.parallelism.dataShard"),
    ],
)
def test_letters_count_for_slips_in_the_same_section_alone(field: str, answer: str) -> None:
    (problem,) = found(f"spec.{field}: 1")
    assert problem.allowed.startswith(answer)
