"""Scores of a tiny classifier are those of transformers, one text at a time."""

import msgspec
import pytest
import torch
import transformers
from padded_reference import whole_logits
from seeing_models import save_seeing_model
from tiny_models import NAMES, TWO_LAYERS, noise, save_model, save_tokenizer

from ppojob_api.v1alpha1.training import TrainingSpec
from ppojob_trainer.checkpoint.export import export_model
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.media.images import packed
from ppojob_trainer.data.template_renderer import BadChatTemplate
from ppojob_trainer.engine.score_engine import Answer, ScoreEngine
from ppojob_trainer.errors import ConfigError, RewardFailed
from ppojob_trainer.models.folder_checks import check_model_folder
from ppojob_trainer.models.kinds import REWARD, SCORER
from ppojob_trainer.models.load import load_model
from ppojob_trainer.models.state_dict import hf_named_tensors
from ppojob_trainer.rpc.messages.rows import BatchName
from ppojob_trainer.rpc.messages.scoring import ModelScoreItem, ScoreByModel, Texts
from ppojob_trainer.workers.device_sharing import DeviceSharing
from ppojob_trainer.workers.learner import resident_weights
from ppojob_trainer.workers.reward_model import RewardModelStages

pytestmark = pytest.mark.processes

FAMILIES = {
    "llama": transformers.LlamaForSequenceClassification,
    "qwen2": transformers.Qwen2ForSequenceClassification,
    "qwen3": transformers.Qwen3ForSequenceClassification,
}
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + ':' + m.content + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant:' }}{% endif %}"
)
ANSWERS = [
    Answer([{"role": "user", "content": "1+1"}], "2"),
    Answer([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3+4"}], "7!"),
    Answer("Once upon", " a time"),
    Answer([{"role": "user", "content": "Say nothing"}], ""),
    Answer([{"role": "user", "content": "1+1"}], "It is not 3, it is 2, I think."),
]


def make_folder(folder, family: str = "llama", *, pad: str | None = "<|pad|>", **options: object):
    save_tokenizer(folder, template=TEMPLATE, pad=pad)
    sizes = {
        **{"vocab_size": len(NAMES), "num_labels": 1, "head_dim": 8, **TWO_LAYERS, **options},
        "pad_token_id": None if pad is None else NAMES.index(pad),
    }
    save_model(folder, FAMILIES[family], **sizes)
    return folder


def our_scores(folder, answers=ANSWERS, *, max_tokens=None, **training) -> list[float]:
    model = load_model(folder, torch.float32, kind=REWARD)
    with ChatTokenizer(folder) as chat:
        engine = ScoreEngine(model, chat, TrainingSpec(**training), max_tokens=max_tokens)
        return engine.scores(answers)


def their_scores(folder, answers=ANSWERS, *, last: int = 10**6) -> list[float]:
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32
    )
    scores = []
    for answer in answers:
        if isinstance(answer.prompt, str):
            ids = tokenizer.encode(answer.prompt + answer.response, add_special_tokens=False)
        else:
            messages = [*answer.prompt, {"role": "assistant", "content": answer.response}]
            ids = tokenizer.apply_chat_template(messages, return_dict=False)
        with torch.no_grad():
            scores.append(model(torch.tensor([ids[-last:]])).logits.item())
    return scores


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_transformers(tmp_path, family):
    folder = make_folder(tmp_path, family)
    expected = their_scores(folder)
    assert max(expected) - min(expected) > 0.1
    for budget in (1, 50, 32768):
        got = our_scores(folder, micro_batch_tokens=budget)
        assert got == pytest.approx(expected, abs=1e-5)
    assert our_scores(folder, []) == []


def test_images_are_scored_as_the_whole_model_sees_them(tmp_path):
    """A head that is a row of the output layer scores a text by its logit."""
    before, folder = tmp_path / "model", tmp_path / "scorer"
    whole = save_seeing_model(before, "internvl")
    scorer = load_model(before, kind=SCORER)
    with torch.no_grad():
        scorer.score.weight.copy_(whole.lm_head.weight[7:8])
    export_model(
        folder, hf_named_tensors(scorer), model_folder=before, dtype=torch.float32, kind=SCORER
    )
    report = check_model_folder(folder, REWARD)
    assert (report.errors, report.warnings) == ([], [])
    asked = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]
    files = packed([noise(1, (40, 20))])
    answers = [Answer(asked, "red", files), Answer([{"role": "user", "content": "1+1"}], "2")]

    def score_of(ids: list[int], images: bytes) -> float:
        with torch.no_grad():
            last = torch.zeros(1).long()
            return whole_logits(whole, folder, torch.tensor(ids), images, last)[0, 7].item()

    with ChatTokenizer(folder) as chat:
        texts, end = [], chat.images.end
        for answer in answers:
            told = [*answer.prompt, {"role": "assistant", "content": answer.response}]
            (ids,) = chat.encode_chats([told], open_turn=False)
            texts.append(chat.images.expanded(ids, answer.images))
    expected = [score_of(ids, one.images) for ids, one in zip(texts, answers, strict=True)]
    assert our_scores(folder, answers) == pytest.approx(expected, abs=1e-5)
    seen = texts[0].index(end) + 1
    cut = score_of(texts[0][:seen] + texts[0][seen + 2 :], files)
    most = len(texts[0]) - 2
    assert our_scores(folder, answers[:1], max_tokens=most) == pytest.approx([cut], abs=1e-5)
    with ChatTokenizer(folder) as chat:  # what a rank is sent
        engine = ScoreEngine(load_model(folder, kind=REWARD), chat, TrainingSpec())
        stages = RewardModelStages(engine, resident_weights(scorer, ()), chat, DeviceSharing())
        batch, prompt = BatchName(0, 1, "train"), [{"role": "user", "content": "<image>?"}]
        stages._inbox.put(Texts(batch, 0, ["red", "red"]))
        items = [ModelScoreItem(0, 2, msgspec.json.encode(prompt), files)]
        sent = stages._score(ScoreByModel(batch, items, began=0.0)).scores
    assert sent == pytest.approx([expected[0]] * 2, abs=1e-5)
    text = Answer(asked, "a ~", files)  # of whose tokens the last is no image
    assert our_scores(folder, [text]) != our_scores(folder, answers[:1])
    with pytest.raises(ConfigError, match=f"^rewardModel: answer 0: got {seen} tokens up to "):
        our_scores(folder, answers, max_tokens=seen)


@pytest.mark.parametrize("pad", ["<|pad|>", "<|im_end|>", None])
def test_padding_at_the_end_is_not_scored(tmp_path, pad):
    # Where padding is the end token, transformers scores the token before it.
    folder = make_folder(tmp_path, pad=pad)
    answers = [*ANSWERS, Answer("a", "b<|pad|><|pad|>"), Answer("<|pad|>", "<|pad|>")]
    assert our_scores(folder, answers) == pytest.approx(their_scores(folder, answers), abs=1e-5)


def test_long_conversations_lose_their_beginning(tmp_path):
    folder = make_folder(tmp_path)
    got = our_scores(folder, max_tokens=12)
    assert got == pytest.approx(their_scores(folder, last=12), abs=1e-5)
    assert got != pytest.approx(their_scores(folder), abs=1e-3)


def test_the_model_s_own_length_is_the_limit_where_none_is_given(tmp_path):
    folder = make_folder(tmp_path, max_position_embeddings=16)
    assert our_scores(folder) == pytest.approx(their_scores(folder, last=16), abs=1e-5)
    with pytest.raises(ConfigError, match=r"^spec.rewardModel.maxTokens: got 17: "):
        our_scores(folder, max_tokens=17)


def test_what_the_template_refuses_is_told(tmp_path):
    folder = make_folder(tmp_path)
    with pytest.raises(BadChatTemplate, match="no tools"):
        our_scores(folder, [Answer([{"role": "tool", "content": "5"}], "6")])
    with pytest.raises(ConfigError, match=r"^rewardModel: answer 0: "):
        our_scores(folder, [Answer("", "")])


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    folder = make_folder(tmp_path, vocab_size=len(NAMES) - 1)
    match = f"^spec.rewardModel.tokenizerPath: got token ids up to {len(NAMES) - 1}: "
    with ChatTokenizer(folder) as chat, pytest.raises(ConfigError, match=match):
        ScoreEngine(load_model(folder, torch.bfloat16, kind=REWARD), chat, TrainingSpec())


def test_a_score_that_is_no_number_is_told(tmp_path):
    folder = make_folder(tmp_path)
    model = load_model(folder, torch.bfloat16, kind=REWARD)
    with torch.no_grad():
        model.score.weight.fill_(float("nan"))
    with (
        ChatTokenizer(folder) as chat,
        pytest.raises(RewardFailed, match="rewardModel: answer 0: got nan"),
    ):
        ScoreEngine(model, chat, TrainingSpec()).scores(ANSWERS)
