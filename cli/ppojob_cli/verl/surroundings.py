"""Conversion of other settings: data, rewards, agents, pods, schedule and logging."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, get_args

from ppojob_api.problem import ABSENT, shown
from ppojob_api.v1alpha1.job import Logger
from ppojob_api.well_known import JOB_NAME_LIMIT
from ppojob_cli.input_error import InputError
from ppojob_cli.verl import keys, trainers, unread
from ppojob_cli.verl.asynchronous import DRAWN, drawn_steps
from ppojob_cli.verl.draft import Draft, Verl, is_count, listed
from ppojob_cli.verl_tools import read_verl_agent
from ppojob_trainer.rollout.engine_arguments import check_arguments

_ROLLOUT = "actor_rollout_ref.rollout"
_OWN_GPUS = f"{_ROLLOUT}.n_gpus_per_node"
_TURNS = f"{_ROLLOUT}.multi_turn"
_JUDGE_SECONDS: Final = 1_800.0  # of a call: verl waits without end, and an answer may be long
_MANAGERS = ("naive", "dapo", "batch", "prime", "rate_limited", "gdpo", "ttrl")


def train_files(verl: Verl, job: Draft) -> None:
    """Convert the training files, which a job needs even without training."""
    key = "data.val_files" if verl.trainer is trainers.GENERATION else "data.train_files"
    job.set("spec.data.train", _files(verl[key]), key)
    if verl.trainer is trainers.TINY_ZERO:  # which takes the text of the first message as it is
        job.set("spec.model.chatTemplate", "{{ messages[0]['content'] }}", "data.train_files")


def validation_files(verl: Verl, job: Draft) -> None:
    """Convert the validation files."""
    files = _files(verl["data.val_files"])
    job.set("spec.data.validation", files or None, "data.val_files")


def given_answers(verl: Verl, job: Draft) -> None:
    """Convert rows with given answers; verl limits prompt and answer together."""
    longest = "data.max_length"
    if verl.is_given(longest):
        for part in ("Prompt", "Response"):
            if not verl.is_given(f"data.max_{part.lower()}_length"):
                job.set(f"spec.data.max{part}Tokens", verl[longest], longest)
        job.note("of prompt and answer together there, of each of them here", longest)
    if verl.trainer is trainers.FSDP_SFT and verl[turns := "data.multiturn.enable"]:
        messages = "data.multiturn.messages_key"
        job.set("spec.data.promptKey", verl[messages] or "messages", messages, turns)
        if verl.is_given("data.multiturn.tools_key"):
            job.copy("data.multiturn.tools_key", "spec.data.toolsKey")
        return
    has_columns = verl.trainer is trainers.FSDP_SFT
    for field, key, default in (
        ("promptKey", "data.prompt", "question"),
        ("answerKey", "data.response", "answer"),
    ):
        column, inner = f"{key}_key", f"{key}_dict_keys"
        given = list(filter(verl.is_given, (column, inner)))
        if inner in given or (key == "data.response" and given):
            path = [str(name) for name in (verl[column], *listed(verl[inner])) if name]
            job.set(f"spec.data.{field}", ".".join(path), *given)
        elif has_columns and not given:
            job.set(f"spec.data.{field}", default, column)


def _files(value: Any) -> list[dict[str, str]]:
    return [{"path": str(path)} for path in listed(value) if path is not None]


_SEES: Final = re.compile(r"(?i)[-_]vl\b|internvl|smolvlm|idefics3|llava|aya-vision|ovis|ocr")
"""What the names of models that see images have."""


def images(verl: Verl, job: Draft) -> None:
    """Convert the vision tower and media columns; full configurations name them for text, too."""
    tower = "actor_rollout_ref.actor.freeze_vision_tower"
    keys = ("data.image_key", "data.video_key", "data.audio_key")
    given = [key for key in keys if verl.is_given(key)]
    seen = [key for key in given if key != keys[2]]
    is_whole, ranks = len(given) == len(keys), ("lora_rank", "lora.rank")
    sees = _SEES.search(str(verl["actor_rollout_ref.model.path"] or ""))
    if any(verl[f"actor_rollout_ref.model.{rank}"] for rank in ranks):
        job.note("adapters are the language model's alone", tower)
    elif sees or (not is_whole and (seen or verl.is_given(tower))):
        job.set("spec.model.freezeVisionTower", verl[tower], tower)
    elif not verl[tower] and not _is_text_model(str(verl["actor_rollout_ref.model.path"])):
        job.note("spec.model.freezeVisionTower: false, if the model sees images", tower)
    if keys[2] not in given:
        return
    job.set("spec.data.audioKey", verl[keys[2]], keys[2])
    if not is_whole or "spec.data.audioKey" in job.fields:
        job.note("the encoder of a model that hears stays as it is", keys[2])


def _is_text_model(folder: str) -> bool:
    """Return whether a model's folder is here, and its config.json has no vision tower."""
    try:
        return "vision_config" not in Path(folder, "config.json").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def overlong_prompts(verl: Verl, job: Draft) -> None:
    """Convert how overlong prompts are treated."""
    keys = ("data.filter_overlong_prompts", "data.truncation")
    if verl[keys[0]]:
        job.set("spec.data.overlongPrompts", "drop", keys[0])
    else:
        job.set("spec.data.overlongPrompts", verl[keys[1]], keys[1])


def template_arguments(verl: Verl, job: Draft) -> None:
    """Convert the variables of the chat template."""
    key, variable = "data.apply_chat_template_kwargs", "enable_thinking"
    found = dict(verl.below(key))
    names = [f"{key}.{name}" for name in found]
    default, column = f"data.{variable}_default", f"data.{variable}_key"
    if verl["data.multiturn.enable"]:
        column = f"data.multiturn.{variable}_key"
    if verl.is_given(default) and verl[default] is not None:
        found[variable] = bool(verl[default])  # of `none` too, its default, which is a text
        names.append(default)
    if found:
        job.set("spec.data.applyChatTemplateKwargs", found, *names)
    if verl[column] == variable and verl.is_given(column.replace(f"{variable}_key", "tools_key")):
        # A whole configuration, which names it for rows that have none, too.
        job.note("spec.data.templateColumns, if rows have this column", column)
    elif verl.is_given(column) and verl[column] == variable:
        job.set("spec.data.templateColumns", [variable], column)
    elif verl.is_given(column):
        job.leave_out(f"name the column {variable}, for templateColumns", column)


def seed(verl: Verl, job: Draft) -> None:
    """Convert the seed; the random numbers differ from verl's."""
    keys = ("actor_rollout_ref.actor.data_loader_seed", f"{_ROLLOUT}.seed")
    given = [key for key in keys if verl.is_given(key)]
    if given:
        job.set("spec.seed", verl[given[0]], given[0])


def validation_sampling(verl: Verl, job: Draft) -> None:
    """Convert validation sampling; with temperature 0 nothing else has an effect."""
    at = f"{_ROLLOUT}.val_kwargs"
    job.copy(f"{at}.temperature")
    if verl[f"{at}.temperature"]:
        job.copy(f"{at}.top_p")
        job.copy(f"{at}.top_k")
        if verl.is_given(f"{_ROLLOUT}.min_p"):
            job.copy(f"{_ROLLOUT}.min_p", "spec.rollout.validation.minP")
        if verl.is_given(f"{at}.do_sample") and not verl[f"{at}.do_sample"]:
            why = "verl's main samples with val_kwargs.temperature all the same"
            job.note(why, f"{at}.do_sample")
    if verl.is_given(f"{_ROLLOUT}.repetition_penalty"):
        path = "spec.rollout.validation.repetitionPenalty"
        job.copy(f"{_ROLLOUT}.repetition_penalty", path)
    job.copy(f"{at}.n")


def types_by_device(verl: Verl, job: Draft) -> None:
    """Convert data types; auto is bfloat16 on GPUs."""
    engines = [f"actor_rollout_ref.actor.{one}.dtype" for one in ("fsdp_config", "megatron")]
    is_cpu = verl["trainer.device"] == "cpu"
    for path, names in ("rollout.dtype", [f"{_ROLLOUT}.dtype"]), ("training.autocast", engines):
        is_auto = {key: verl[key] in ("bfloat16", "bf16", "auto") for key in names}
        own = [key for key in names if not is_auto[key] or (is_cpu and verl.is_given(key))]
        job.keep(*(key for key in names if key not in own))
        if own:
            job.set(f"spec.{path}", verl[own[-1]], *own)


def engine_arguments(verl: Verl, job: Draft) -> None:
    """Convert further arguments of vLLM."""
    at = f"{_ROLLOUT}.engine_kwargs.vllm"
    own, taken = dict[str, Any](), list[str]()
    for path, value in verl.below(at).items():
        *above, last = path.split(".")
        row = keys.find(f"{at}.{path}")
        if row is None or row.how == "nothing":
            continue
        if problem := next(check_arguments({(*above, last)[0]: value}), None):
            job.leave_out(problem.why, f"{at}.{path}", changes_numbers=False)
            continue
        place = own
        for name in above:
            place = place.setdefault(name, {})
        place[last] = value
        taken.append(f"{at}.{path}")
    if own:
        job.set("spec.rollout.engineArguments", own, *taken)


def config_overrides(verl: Verl, job: Draft) -> None:
    """Keys of config.json without a field of their own."""
    at = "actor_rollout_ref.model.override_config"
    own, taken = {}, []
    for name, value in verl.below(at).items():
        key = f"{at}.{name}"
        row = keys.find(key)
        if row is None or row.how != config_overrides.__name__:
            continue
        if "." in name:
            job.leave_out("only keys of the language model can be overridden", key)
        elif value == 0 and row.name == key:
            job.keep(key)
        else:
            own[name] = value
            taken.append(key)
    if own:
        job.set("spec.model.configOverrides", own, *taken)


def config_folder(verl: Verl, job: Draft) -> None:
    """Accept the model's own folder as that of its config.json."""
    model = "actor_rollout_ref.model"
    key, folder = f"{model}.hf_config_path", str(verl.raw(f"{model}.path"))
    given = str(verl.raw(key) or folder)
    if given.removesuffix("/config.json").rstrip("/") == folder.rstrip("/"):
        job.keep(key)
    else:
        job.leave_out(
            "that config.json in the model's folder, or in one with links to its files", key
        )


def rollout_lengths(verl: Verl, job: Draft) -> None:
    """Convert the engine's lengths, which equal those of the data."""
    for name in ("prompt", "response"):
        key = f"{_ROLLOUT}.{name}_length"
        if verl.is_given(key) and verl[key] != verl[f"data.max_{name}_length"]:
            job.leave_out(f"data.max_{name}_length is the one length here", key)


def rollout_pods(verl: Verl, job: Draft) -> None:
    """Convert separate pods for engines."""
    if verl[f"{_ROLLOUT}.nnodes"] > 0:
        job.set("spec.roles.rollout", {}, f"{_ROLLOUT}.nnodes")
        job.copy(f"{_ROLLOUT}.nnodes")
        job.set("spec.roles.rollout.gpusPerReplica", _gpus_of_engines(verl), _OWN_GPUS)


def _gpus_of_engines(verl: Verl) -> int:
    """Return the GPUs per pod with engines, colocated with the trainer or separate."""
    is_own = verl.is_given(_OWN_GPUS) or verl.trainer in (
        trainers.ONE_STEP_OFF,
        trainers.FULLY_ASYNC,
    )
    has_pods = verl[f"{_ROLLOUT}.nnodes"] > 0
    return int(verl[_OWN_GPUS if is_own and has_pods else "trainer.n_gpus_per_node"])


def engine_ranks(verl: Verl, job: Draft) -> None:
    """Convert the ranks of an engine, within a pod or over whole pods, without pipeline stages.

    verl's expert parallelism spans several data-parallel copies; here they also share the rest.
    """
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_parallel_size")
    tensor, stages, expert = keys = [f"{_ROLLOUT}.{name}" for name in names]
    given = [key for key in keys if verl.is_given(key)]
    are_dealt, is_cut = verl[expert] > 1, verl[stages] > 1
    if not (are_dealt or is_cut or tensor in given):
        job.keep(*given)
        return
    shared = expert if are_dealt else tensor
    pods = verl[f"{_ROLLOUT}.nnodes"] or verl["trainer.nnodes"]
    most, wanted = _gpus_of_engines(verl) * pods, verl[shared] * verl[stages]
    ranks = min(wanted, most)
    job.set("spec.rollout.parallelism.tensor", ranks, *dict.fromkeys([shared, *given]))
    if are_dealt:
        job.set("spec.rollout.parallelism.expert", ranks, expert)
    if wanted > most:
        job.note("an engine has as many ranks as there are GPUs for it", *given)


def gpus(verl: Verl, job: Draft) -> None:
    """Convert the GPUs per pod; for CPUs, verl's number is that of processes."""
    count, device = "trainer.n_gpus_per_node", "trainer.device"
    section = "spec.roles.actorRollout"
    if verl[device] == "cpu":
        job.keep(device)
        job.set(f"{section}.ranksPerReplica", verl[count] if verl[count] > 1 else None, count)
        return
    job.set(f"{section}.gpusPerReplica", verl[count], count)
    if verl[device] not in ("cuda", "gpu"):
        job.leave_out("GPUs of NVIDIA, or processors", device, changes_numbers=False)


def data_shard(verl: Verl, job: Draft) -> None:
    """Convert the FSDP size, including sequence-parallel ranks; -1 means all ranks."""
    key = "actor_rollout_ref.actor.fsdp_config.fsdp_size"
    shared = verl["actor_rollout_ref.actor.ulysses_sequence_parallel_size"]
    world = verl["trainer.nnodes"] * verl["trainer.n_gpus_per_node"]
    size = verl[key] if 0 < verl[key] != world else None
    if size is not None and size % shared:
        why = "ranks that share tokens hold one copy of the model"
        job.leave_out(why, key, changes_numbers=False)
        return
    shards = None if size is None else size // shared
    job.set("spec.roles.actorRollout.parallelism.dataShard", shards, key)


def agent(verl: Verl, job: Draft) -> None:
    """Convert multi-turn conversations, if enabled."""
    loops = f"{_ROLLOUT}.agent.agent_loop_config_path"
    files = (f"{_TURNS}.tool_config_path", f"{_TURNS}.interaction_config_path", loops)
    default = f"{_ROLLOUT}.agent.default_agent_loop"
    has_files = any(map(verl.is_given, (*files, f"{_TURNS}.function_tool_path")))
    if not verl[f"{_TURNS}.enable"] and not has_files and verl[default] == "single_turn_agent":
        return
    job.set("spec.agent", {}, f"{_TURNS}.enable")
    for name, (items, of_items) in _of_files(verl, job, files).items():
        job.set(f"spec.agent.{name}", items, *of_items)
    if verl.is_given(key := f"{_TURNS}.function_tool_path"):
        job.leave_out(f"ppojob tools {verl[key]} prints its tools", key)
    job.copy(default)
    if verl[default] == "single_turn_agent":
        why = f"rows without agent_name never call tools, as in verl; {default}=tool_agent for all"
        job.note(why, next(filter(verl.is_given, (f"{_TURNS}.enable", *files)), default))
    for name in (
        *("format", "max_assistant_turns", "max_user_turns", "max_parallel_calls"),
        *("max_tool_response_length", "tool_response_truncate_side"),
    ):
        job.copy(f"{_TURNS}.{name}")


def _of_files(
    verl: Verl, job: Draft, files: Sequence[str]
) -> dict[str, tuple[list[dict[str, Any]], list[str]]]:
    """Return the lists of `spec.agent` that verl's files describe, with the keys of the files."""
    found: dict[str, tuple[list[dict[str, Any]], list[str]]] = {}
    for key in filter(verl.is_given, files):
        path = str(verl[key])
        try:
            for name, own in read_verl_agent(path).items():
                items, of_items = found.setdefault(name, ([], []))
                items += own
                of_items.append(key)
        except InputError as problem:
            why = str(problem).splitlines()[0].removeprefix(f"{path}: got {ABSENT}: ")
            job.leave_out(f"{why}; `ppojob tools FILE` prints the tools of a file", key)
    return found


def rewards(verl: Verl, job: Draft) -> None:
    """Convert a custom reward function; by default the data source of a row chooses."""
    at, managed = "reward.custom_reward_function", "reward.reward_manager"
    if verl[f"{managed}.name"] == "ttrl":
        _votes(verl, job, f"{managed}.name")
    elif verl.is_given(f"{at}.path"):
        path, function = str(verl[f"{at}.path"]), verl[f"{at}.name"] or "compute_score"
        package = path.removeprefix("pkg://")
        source = {"path": path} if package == path else {"package": package}
        arguments = verl.below(f"{at}.reward_kwargs")
        reward: dict[str, Any] = {"function": function, "source": source}
        names = [f"{at}.{name}" for name in ("path", "name")]
        if _asks_a_judge(verl):
            reward["timeLimitSeconds"] = _JUDGE_SECONDS
        if arguments:
            reward["arguments"] = arguments
            names += [f"{at}.reward_kwargs.{name}" for name in arguments]
        job.set("spec.rewards", [reward], *names)
    elif verl.trainer is trainers.ENTROPY:
        job.set("spec.rewards", [{"function": "math_verify"}], f"{managed}.name")
        job.note("the recipe's own grader of mathematics; math_verify is here", f"{managed}.name")
    is_own = verl[f"{managed}.source"] != "register"
    if is_own or verl[f"{managed}.name"] not in _MANAGERS:
        why = "a reward function takes its place"
        job.leave_out(why, f"{managed}.{'source' if is_own else 'name'}")


def _votes(verl: Verl, job: Draft, manager: str) -> None:
    """Convert TTRL's majority vote, which uses more responses than are trained on."""
    job.set("spec.rewards", [{"function": "majority_vote"}], manager)
    why = "math_verify reads and compares answers here (arguments.scorer); validations vote too"
    job.note(f"{why}, and acc there is by the truth", manager)
    at = "reward_model.reward_kwargs"
    votes, kept = f"{at}.n_votes_per_prompt", f"{at}.n_samples_per_prompt"
    trained_on = verl[kept] or verl[f"{_ROLLOUT}.n"]
    if is_count(verl[votes]) and is_count(trained_on) and verl[votes] > trained_on:
        job.set("spec.algorithm.samplesPerPrompt", verl[votes], votes)
        # All responses to a prompt have the same ratio, so the first ones are kept, as there.
        first = {"keep": trained_on, "metric": "majority_ratio"}
        job.set("spec.algorithm.groupFilter", first, kept, f"{_ROLLOUT}.n")


def overlong(verl: Verl, job: Draft) -> None:
    """Convert DAPO's overlong penalty, which verl reads only with the manager dapo."""
    at, section = "reward.reward_kwargs.overlong_buffer_cfg", "spec.algorithm.overlongPenalty"
    if not verl[f"{at}.enable"]:
        return
    if verl["reward.reward_manager.name"] != "dapo":
        job.note("without effect in verl, where only the manager dapo reads it", f"{at}.enable")
        return
    job.set(section, {}, f"{at}.enable")
    job.copy(f"{at}.len", f"{section}.bufferTokens")
    job.copy(f"{at}.penalty_factor", f"{section}.factor")
    longest = "reward.reward_kwargs.max_resp_len"
    if verl[longest] not in (None, verl["data.max_response_length"]):
        job.leave_out("the penalty counts from data.max_response_length here", longest)


def _asks_a_judge(verl: Verl) -> bool:
    """Return whether the reward model is generative, and called by a function."""
    keys = ("reward.custom_reward_function.path", "reward.reward_model.rollout.name")
    return bool(verl["reward.reward_model.enable"]) and all(map(verl.is_given, keys))


def reward_model(verl: Verl, job: Draft) -> None:
    """Convert a reward model: a classifier or, with a function, a generative model."""
    at = "reward.reward_model"
    if not verl[f"{at}.enable"]:
        return
    if _asks_a_judge(verl):
        _judge(verl, job)
        return
    if verl.is_given("reward.custom_reward_function.path"):
        why = (
            "beside a reward function it becomes spec.judge, if reward_model.rollout.name is given"
        )
        job.leave_out(why, f"{at}.enable", f"{at}.model_path")
        return
    job.set("spec.rewardModel", {}, f"{at}.enable")
    job.copy(f"{at}.model_path", "spec.rewardModel.path")
    if verl.is_given("reward_model.max_length"):
        job.copy("reward_model.max_length")
    if verl[f"{at}.enable_resource_pool"]:
        pool = (f"{at}.{name}" for name in ("enable_resource_pool", "nnodes", "n_gpus_per_node"))
        job.own_pods("rewardModel", *pool)


def _judge(verl: Verl, job: Draft) -> None:
    at = "reward.reward_model"
    engine = f"{at}.rollout"
    job.set("spec.judge", {}, f"{at}.enable")
    job.copy(f"{at}.model_path", "spec.judge.path")
    job.copy(f"{engine}.gpu_memory_utilization", "spec.judge.gpuMemoryShare")
    if verl.is_given(f"{engine}.dtype"):
        job.copy(f"{engine}.dtype", "spec.judge.dtype")
    lengths = [f"{engine}.{name}" for name in ("prompt_length", "response_length")]
    if verl[f"{engine}.max_model_len"]:
        job.copy(f"{engine}.max_model_len", "spec.judge.maxTokens")
    elif any(map(verl.is_given, lengths)):
        job.set("spec.judge.maxTokens", sum(verl[key] for key in lengths), *lengths)
    if verl[f"{engine}.name"] == "vllm":
        job.keep(f"{engine}.name")
    else:
        job.note("vLLM serves it here; SGLang's /generate is answered, too", f"{engine}.name")
    tensor = verl[f"{engine}.tensor_model_parallel_size"]
    job.set("spec.roles.judge.gpusPerReplica", tensor, f"{engine}.tensor_model_parallel_size")
    pool, of_pool = f"{at}.enable_resource_pool", (f"{at}.nnodes", f"{at}.n_gpus_per_node")
    if verl[pool]:
        replicas = max(1, (verl[of_pool[0]] or 1) * verl[of_pool[1]] // tensor)
        job.set("spec.roles.judge.replicas", replicas, *of_pool)
        job.keep(pool)
    else:
        why = "it takes turns with the trainer there; here it has GPUs of its own, spec.roles.judge"
        job.note(why, f"{at}.enable", pool)


def length(verl: Verl, job: Draft) -> None:
    """Convert steps and epochs; verl ends at the first limit."""
    if verl.trainer is trainers.GENERATION:
        job.set("spec.steps.generateOnly", value=True)
        return
    total, epochs = "trainer.total_training_steps", "trainer.total_epochs"
    drawn, ends_early = drawn_steps(verl), verl.trainer in (*trainers.FORKS, trainers.PRIME)
    if drawn is not None:
        job.set("spec.steps.total", drawn, DRAWN)
    elif verl.is_given(total) and ends_early and is_count(verl[total]) and verl[total] > 1:
        job.set("spec.steps.total", verl[total] - 1, total)
        job.note("it ends before the last of them, and so does this job", total)
    elif verl.is_given(total):
        job.copy(total)
    else:
        job.copy(epochs)
        if ends_early:
            job.note("the last step of the last pass is left out there, and done here", epochs)
        return
    if verl.is_given(epochs):
        why = "the steps count here; verl ends after so many passes over the data at the latest"
        job.note(why, epochs)


def background(verl: Verl, job: Draft) -> None:
    """Convert asynchronous checkpoints; the last one is synchronous."""
    for key in (f"{at}.checkpoint.async_save" for at in ("actor_rollout_ref.actor", "critic")):
        if verl.is_given(key) and verl[key] and verl["trainer.save_freq"] <= 0:
            job.leave_out("the last checkpoint is the only one", key, changes_numbers=False)
        elif verl.is_given(key):
            job.copy(key)


def name(verl: Verl, job: Draft) -> None:
    """Convert the experiment name to a valid name of a job."""
    key = "trainer.experiment_name"
    given = verl.raw(key) if verl.is_given(key) else verl[key]
    plain = re.sub(r"[^a-z0-9]+", "-", unread.without(str(given)).lower())
    slug = re.sub(r"^[^a-z]+", "", plain)[:JOB_NAME_LIMIT].strip("-")
    job.set("metadata.name", slug or "from-verl", key)
    _goes_without(verl, job, "metadata.name", key)


def _goes_without(verl: Verl, job: Draft, what: str, key: str) -> None:
    """Note the unknown parts of a name, which are dropped."""
    lost = ", ".join(unread.place(*one) for one in unread.marks(verl.raw(key)))
    if lost:
        job.note(f"{lost} was not read, and {what} goes without it", key)


def loggers(verl: Verl, job: Draft) -> None:
    """Convert the supported trackers."""
    key = "trainer.logger"
    given = listed(verl[key])
    known = [one for one in given if one in get_args(Logger)]
    job.set("spec.loggers", known, key)
    others = [one for one in given if one not in known and one != "file"]
    if others:
        job.leave_out(f"no logger here: {shown(others)}", key, changes_numbers=False)


def project(verl: Verl, job: Draft) -> None:
    """Convert the trackers' project to an environment variable of the pods."""
    key = "trainer.project_name"
    written = job.fields.get("spec.loggers")
    trackers = {
        "wandb": "WANDB_PROJECT",
        "mlflow": "MLFLOW_EXPERIMENT_NAME",
        "swanlab": "SWANLAB_PROJ_NAME",
        "trackio": "TRACKIO_PROJECT",
        "clearml": "CLEARML_PROJECT",
    }
    used = [] if written is None else [trackers[one] for one in written.value if one in trackers]
    value = unread.without(str(verl.raw(key))).strip("-_ ")
    if used and verl.is_given(key) and value:
        env = [{"name": variable, "value": value} for variable in used]
        job.set("spec.pods", [{"env": env}], key)
        _goes_without(verl, job, "the project", key)


def profile(verl: Verl, job: Draft) -> None:
    """Convert torch profiles of steps."""
    steps, tool, of_actor, interval = (
        "global_profiler.steps",
        "global_profiler.tool",
        "actor_rollout_ref.actor.profiler",
        "trainer.profile_interval",
    )
    traced = verl[steps]
    match verl[interval]:
        case [int(first), int(last)] if first > 0:
            traced = list(range(first, min(last, first + 63) + 1))
    if not traced:
        return
    if verl[tool] not in (None, "torch"):
        job.leave_out("torch.profiler alone", steps, tool, interval, changes_numbers=False)
        return
    job.set("spec.profile.steps", traced, *filter(verl.is_given, (steps, interval)))
    job.keep(tool)
    ranks, every, contents = (
        f"{of_actor}.{name}" for name in ("ranks", "all_ranks", "tool_config.torch.contents")
    )
    if verl.is_on(every):
        gpus = verl["trainer.nnodes"] * verl["trainer.n_gpus_per_node"]
        job.set("spec.profile.ranks", list(range(int(min(gpus, 64)))), every)
    elif verl.is_on(ranks):
        job.copy(ranks)
    if verl.is_on(contents):
        told = [one for one in listed(verl[contents]) if one in ("shapes", "stack", "memory")]
        job.set("spec.profile.contents", told, contents)


def resume(verl: Verl, job: Draft) -> None:
    """Convert resuming; checkpoints of verl are not read."""
    mode, path = "trainer.resume_mode", "trainer.resume_from_path"
    if verl[mode] == "resume_path":
        job.leave_out("no checkpoint of verl's is read", mode)
        if verl.is_given(path):
            why = "a model that verl.model_merger makes of it can be spec.model.path"
            job.leave_out(why, path)
    elif verl[mode] == "disable":
        why = "another run folder, or a job of another name, begins anew"
        job.leave_out(why, mode, changes_numbers=False)
    else:
        job.copy(mode)


def checkpoints_kept(verl: Verl, job: Draft) -> None:
    """Convert the number of kept checkpoints, at least two."""
    keys = ("trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep")
    kept = {key: verl[key] for key in keys if is_count(verl[key])}
    if kept:
        job.set("spec.checkpoint.keepLast", max(2, *kept.values()), *filter(verl.is_given, keys))
    if set(kept.values()) == {1}:
        job.note("two are kept, the least allowed here", *kept)


def examples(verl: Verl, job: Draft) -> None:
    """Convert the number of printed samples."""
    keys = ("trainer.log_val_generations", "reward_model.num_examine")
    shown_samples = max(verl[key] for key in keys)
    job.set("spec.numExamine", max(0, shown_samples), *filter(verl.is_given, keys))
