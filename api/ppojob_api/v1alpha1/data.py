"""Prompts, given answers and other rows: their files, columns and order."""

from typing import Annotated, Final, Literal

from pydantic import Field

from ppojob_api.v1alpha1.section import (
    Arguments,
    CodeSource,
    Items,
    Name,
    Path,
    Section,
    Seed,
    Tokens,
)


class DataFile(Section):
    """A file of rows, or several that count as one."""

    path: Path
    """Parquet or JSON file; a pattern such as data/train-*.parquet; a folder: a path that ends in
    /; or a Python file that produces the rows. verl: data.custom_cls.path."""

    format: Literal["auto", "parquet", "jsonl", "python"] = "auto"
    """auto: by the file's extension. jsonl: one object per line, or one array of objects."""

    function: Name | None = None
    """In a Python file, the function or class (such as a PyTorch Dataset) that produces the rows;
    absent: rows. verl: data.custom_cls.name."""

    arguments: Arguments | None = None
    """Keyword arguments of the function."""

    weight: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Its share of every batch, relative to the weights of the other training files, which then all
    need one; absent: all rows count equally."""

    max_rows: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Use only its first rows; absent: all."""


class CurriculumSpec(Section):
    """An order of the training rows by difficulty."""

    key: Name
    """Column, or entry of extra_info, that holds a number for each row."""

    order: Literal["ascending", "descending"] = "ascending"
    """ascending: the smallest number first, in every epoch."""


class SamplerSpec(Section):
    """A function that chooses the rows of each step by earlier scores of rows."""

    function: Name
    """Name of a function in `source`, or of a built-in one: nearest, uncertain."""

    source: CodeSource | None = None
    """Where the function comes from; absent: built in."""

    arguments: Arguments = Field(default_factory=dict)
    """Keyword arguments of every call."""

    columns: Annotated[Items[Name], Field(max_length=16)] = ()
    """Entries of extra_info that the function gets for every row, for example [level]."""


_OF_ALL_ROWS: Final = (
    "text_prompts",
    "max_prompt_tokens",
    "max_response_tokens",
    "max_image_pixels",
    "min_image_pixels",
    "audio_key",
    "shuffle",
    "seed",
    "overlong_prompts",
    "apply_chat_template_kwargs",
    "template_columns",
    "tools_key",
)
"""How rows are read and shuffled, whatever is learnt of them."""


class DataSpec(Section):
    """Where prompts come from, and how they become tokens."""

    train: Annotated[Items[DataFile], Field(min_length=1, max_length=256)]
    """Training files, read one after the other; with weights each has its share of every batch.
    verl: data.train_files."""

    validation: Annotated[Items[DataFile], Field(max_length=256)] = ()
    """Held-out files. verl: data.val_files."""

    demonstrations: Annotated[Items[DataFile], Field(max_length=256)] = ()
    """Files of demonstrations (SFT data) for algorithm.supervised: rows as of type sft, in their
    own order. OpenRLHF: pretrain_data."""

    prompt_key: Name = "prompt"
    """Column of chat messages or of text; with algorithm.type: sft of conversations with their
    answers if answerKey is absent. verl: data.prompt_key, prompt."""

    text_prompts: Literal["as_is", "user_message"] = "as_is"
    """How to use a text prompt: user_message, for a model with a chat template; as_is, for one
    without."""

    teacher_prompt_key: Name | None = None
    """Column, or path into a struct (extra_info.hint), that the reference reads instead of the
    prompt, before the same response: text or messages like the prompt, for example with the
    solution (OPSD: arXiv:2601.18734). Absent: the reference reads the prompt. TRL:
    privileged_context, a part of it."""

    answer_key: Name | None = None
    """Column of the ground truth; the row's other columns are then its extra_info. Absent:
    reward_model.ground_truth, and extra_info, as in verl. With type sft the answer, with kto the
    labelled answer (absent: completion). It and promptKey may be a path into a struct:
    extra_info.answer."""

    guidance_key: Name | None = None
    """Column, or path, of the responses for algorithm.guidance: a text, an assistant message, or a
    list of them; null: none. LUFFY: target."""

    demonstration_prompt_key: Name | None = None
    """Prompt column, or path, of data.demonstrations: conversations with their answers, or prompts
    if demonstrationAnswerKey is given; absent: promptKey."""

    demonstration_answer_key: Name | None = None
    """Answer column, or path, of data.demonstrations; absent: answers are in the conversations."""

    chosen_key: Name = "chosen"
    """With algorithm.type: dpo or reward_model the column, or path, of the preferred answer: text,
    messages, or the whole conversation; the prompt is then the common beginning of both. OpenRLHF:
    chosen_key, chosen."""

    rejected_key: Name = "rejected"
    """The same for the rejected answer. OpenRLHF: rejected_key, rejected."""

    margin_key: Name | None = None
    """With algorithm.type: reward_model the column, or path, of the target difference of a pair's
    rewards (Llama 2: arXiv:2307.09288); absent: 0 for all. TRL: margin."""

    label_key: Name = "label"
    """With algorithm.type: kto the column, or path, of the label: true for a good answer, else
    false. TRL: label."""

    split_pairs: bool = False
    """With algorithm.type: kto rows are pairs: the answer in chosenKey is good and the one in
    rejectedKey is bad. TRL does so with files of pairs."""

    data_source_key: Name = "data_source"
    """Column that selects the reward of a row, and its model in reference.teachers. verl:
    data.reward_fn_key, data_source."""

    data_source: Name | None = None
    """Data source of every row, if no column has it."""

    max_prompt_tokens: Tokens = 512
    """Longest prompt. verl: data.max_prompt_length, 512."""

    max_teacher_prompt_tokens: Tokens | None = None
    """Longest prompt of teacherPromptKey; absent: maxPromptTokens. With distillation.reprompt the
    longest prompt that is built; absent: maxPromptTokens + maxResponseTokens + 256. TRL:
    max_reprompt_len."""

    max_response_tokens: Tokens = 512
    """Longest response, including its end token; for given answers everything after the first
    prompt. verl: data.max_response_length, 512."""

    max_image_pixels: Annotated[int, Field(ge=1, le=2**40)] | None = None
    """Larger images and video frames are scaled down to about this many pixels; absent: the
    limit of the model's processor, and for a frame 768 tokens. verl:
    data.mm_processor_kwargs.max_pixels."""

    min_image_pixels: Annotated[int, Field(ge=1, le=2**40)] | None = None
    """Smaller images and video frames are scaled up to about this many pixels; absent: the limit of
    the model's processor, and for a frame 128 tokens. verl: data.mm_processor_kwargs.min_pixels."""

    audio_key: Name = "audios"
    """Column of the audio for the marks <audio> of a row. verl: data.audio_key, audios."""

    max_train_rows: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Use only the first rows; absent: all. verl: data.train_max_samples, -1."""

    max_validation_rows: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Use only the first rows; absent: all. verl: data.val_max_samples, -1."""

    shuffle: bool = True
    """Shuffle the rows in each epoch, with the seed. verl: data.shuffle, true."""

    seed: Seed | None = None
    """Seed of the order; absent: spec.seed. verl: data.seed."""

    curriculum: CurriculumSpec | None = None
    """Order rows by a number; absent: as shuffle says. Rows with equal numbers are shuffled."""

    sampler: SamplerSpec | None = None
    """A function chooses the rows of each step; absent: as shuffle and curriculum say. verl:
    data.sampler.class_path, a class."""

    scores_key: Name | None = None
    """Column, or entry of extra_info, with the scores of responses that were generated beforehand,
    a list of numbers: the initial knowledge of type spo and of samplers about a row. Absent: none.
    verl: trainer.spo.offline_values, a file."""

    overlong_prompts: Literal[
        "error", "drop", "truncate_left", "truncate_right", "truncate_middle"
    ] = "error"
    """What happens to a prompt above maxPromptTokens, or of teacherPromptKey above
    maxTeacherPromptTokens; also to a given answer above maxResponseTokens, which is truncated at
    its end. verl: data.truncation, error; data.filter_overlong_prompts is drop."""

    apply_chat_template_kwargs: Arguments = Field(default_factory=dict)
    """Variables passed to the chat template; null values are omitted. verl:
    data.apply_chat_template_kwargs."""

    template_columns: Annotated[Items[Name], Field(max_length=16)] = ()
    """Columns of a row that its chat template gets as variables of the same names, overriding
    applyChatTemplateKwargs: for example enable_thinking. Null cells are omitted. verl:
    enable_thinking_key of the SFT trainer, enable_thinking."""

    tools_key: Name = "tools"
    """With algorithm.type: sft, dpo or kto, and for data.demonstrations, the column with the tools
    of a row, which the chat template shows: a list of schemas in OpenAI's form, or the same as JSON
    text. Rows without it show none. verl: tools_key of the SFT trainer, tools."""

    def tools_column(self, given: str | None) -> str | None:
        """toolsKey, where rows of a job of this type have their answers and these are chats."""
        return self.tools_key if given in {"sft", "dpo", "kto"} else None

    def answer_columns(self, given: str | None) -> tuple[str, ...]:
        """Those of the answers of a row of a job of this type, the better one first, if any."""
        if given in {"dpo", "reward_model"} or self.split_pairs:
            return self.chosen_key, self.rejected_key
        if given == "kto":
            return (self.answer_key or "completion",)
        return (self.answer_key,) if self.answer_key else ()

    @property
    def of_validation(self) -> "DataSpec":
        """The files of a validation, as those to read: in any order, by the policy alone."""
        of_training = (
            *("curriculum", "sampler", "scores_key", "guidance_key"),
            *("teacher_prompt_key", "max_teacher_prompt_tokens"),
        )
        changes: dict[str, object] = {"train": self.validation, "validation": ()}
        changes |= {"max_train_rows": self.max_validation_rows, **dict.fromkeys(of_training)}
        return self.model_copy(update=changes)

    @property
    def of_demonstrations(self) -> "DataSpec":
        """How demonstrations are read: as the training rows of a job of type sft."""
        return DataSpec(
            train=self.demonstrations,
            prompt_key=self.demonstration_prompt_key or self.prompt_key,
            answer_key=self.demonstration_answer_key,
            demonstration_prompt_key=self.demonstration_prompt_key,
            demonstration_answer_key=self.demonstration_answer_key,
            **{name: getattr(self, name) for name in _OF_ALL_ROWS},
        )
