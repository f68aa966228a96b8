from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asking_rows import Row
from seeing_models import save_seeing_model
from tiny_models import IMAGE, SEEING_TEMPLATE, image, save_tokenizer
from tool_calls import turn_of
from turn_templates import ChatInProcess, write_family

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.agents.formats.table import FORMATS
from ppojob_trainer.agents.turn_form import ChatForm
from ppojob_trainer.data.media.images import (
    behind_images,
    data_url,
    packed,
)
from ppojob_trainer.data.turns import TurnTemplate
from ppojob_trainer.rollout.protocol import Finished
from ppojob_trainer.tools.pool import ToolPool

PROGRAMS = '''
import asyncio, json, os, random, subprocess, sys, threading, time, urllib.error, urllib.request

ADDRESS = os.environ["OPENAI_BASE_URL"] + "/chat/completions"  # read when the file is imported
ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}}}

def post(messages, **more):
    body = json.dumps({"model": "policy", "messages": messages, **more}).encode()
    with urllib.request.urlopen(urllib.request.Request(ADDRESS, body)) as answer:
        return json.load(answer)

def ask(messages, **more):
    return post(messages, **more)["choices"][0]

def user(text):
    return {"role": "user", "content": text}

def talk(messages, question="Sure?"):
    """Goes on in its context, as clients hand messages back, then begins another."""
    first = ask(messages, n=1, temperature=1.0, user="me")
    kept = first["message"] | {"refusal": None, "content": [
        {"type": "text", "text": first["message"]["content"]}]}
    second = ask([*messages, kept, user(question)])
    answer = post([{"role": "developer", "content": "Be brief."}, user("Again."),
                   {"role": "assistant", "content": "No."}, user("Yes.")], max_tokens=2)
    third, usage = answer["choices"][0], answer["usage"]
    assert (usage["completion_tokens"], third["finish_reason"]) == (2, "length"), answer
    return float(len(second["message"]["content"]))

async def call(messages):
    """Calls what the model calls."""
    messages = [{"role": "system", "content": "You add."}, *messages]
    while True:
        await asyncio.sleep(0)
        choice = ask(messages, tools=[ADD], parallel_tool_calls=False)
        messages.append({**choice["message"], "name": "adder"})
        if choice["finish_reason"] != "tool_calls":
            return choice["message"]["content"] == "It is 3."
        assert choice["message"]["content"] in (None, "Let me see. ")
        for one in choice["message"]["tool_calls"]:
            told = json.loads(one["function"]["arguments"])
            written = json.dumps(told, separators=(",", ":")).replace(".0", "")  # as JavaScript
            one["function"]["arguments"] = written
            total = str(int(told["a"] + told["b"]))
            messages.append({"role": "tool", "tool_call_id": one["id"], "content": total})

def again(messages):
    """The same once more is another sample."""
    return ask(messages)["message"] != ask(messages)["message"]

def refused(messages, instead=None, **asked):
    try:
        ask(instead or messages, **asked)
    except urllib.error.HTTPError as error:
        raise ValueError(json.load(error)["error"]["message"])

def elsewhere(messages):
    urllib.request.urlopen(ADDRESS.replace("chat/", ""), b"{}")

def streams(messages):
    """Asks for what there is, reads events, and ends a turn by a text."""
    with urllib.request.urlopen(ADDRESS.replace("chat/completions", "models")) as answer:
        (model,) = json.load(answer)["data"]
    asked = {"model": model["id"], "messages": messages, "tools": [ADD], "stream": True,
             "tool_choice": "required", "stop": "Observation:",
             "stream_options": {"include_usage": True}}
    with urllib.request.urlopen(ADDRESS, json.dumps(asked).encode()) as sent:
        assert sent.headers["Content-Type"] == "text/event-stream"
        *events, end, rest = sent.read().decode().split("\\n\\n")
    assert (end, rest) == ("data: [DONE]", "")
    first, last, count = (json.loads(one.removeprefix("data: ")) for one in events)
    assert count["usage"]["completion_tokens"] == 16 and not count["choices"]
    assert last["choices"][0]["finish_reason"] == "stop" and not last["choices"][0]["delta"]
    message = first["choices"][0]["delta"]
    assert message == {"role": "assistant", "content": "Look. "}, message
    choice = ask([*messages, message, user("Seen.")], tools=[ADD], stop=["\\n", "."])
    return float(choice["message"]["content"] == "Yes")

def read_events(text):
    """Put the items together from their events, as clients do."""
    items = []
    for number, sent in enumerate(text.split("\\n\\n")[:-1]):
        event = json.loads(sent.partition("\\ndata: ")[2])
        assert sent.startswith("event: " + event["type"]) and event["sequence_number"] == number
        kind = event["type"].removeprefix("response.")
        item = items[event["output_index"]] if "item_id" in event else None
        if kind == "output_item.added":
            items.append(event["item"])
        elif kind == "content_part.added":
            item["content"].append(event["part"])
        elif kind == "output_text.delta":
            item["content"][event["content_index"]]["text"] += event["delta"]
        elif kind == "function_call_arguments.delta":
            item["arguments"] += event["delta"]
    assert kind == "completed"
    assert [{**one, "status": "completed"} for one in items] == event["response"]["output"]
    return event["response"]

def responds(messages, streams):
    """Calls what the model calls, by the Responses API."""
    asked = {"model": "policy", "instructions": "You add.", "store": False, "stream": streams,
             "text": {"verbosity": "low"}, "reasoning": {"effort": "none"},
             "tool_choice": {"type": "function", "name": "add"},
             "tools": [{"type": "function", **ADD["function"], "strict": True}]}
    items = list(messages)
    while True:
        body = json.dumps({**asked, "input": items}).encode()
        with urllib.request.urlopen(ADDRESS.replace("chat/completions", "responses"), body) as sent:
            answer = sent.read().decode()
        output = (read_events(answer) if streams else json.loads(answer))["output"]
        *said, last = output
        if last["type"] == "message":
            return last["content"][0]["text"] == "It is 3."
        assert [one["content"][0]["text"] for one in said] in ([], ["Let me see. "])
        told = json.loads(last["arguments"])
        items += [*said, {"type": "reasoning", "summary": []}, last,
                  {"type": "function_call_output", "call_id": last["call_id"],
                   "output": str(int(told["a"] + told["b"]))}]

def looks(messages, url):
    """Sees another image in its context, and begins one with both by the other API."""
    ((seen, words),) = (one["content"] for one in messages)
    assert words == {"type": "text", "text": "What?"}
    shot = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    talk = [*messages, ask(messages)["message"], {"role": "user", "content": [
        {"type": "text", "text": "No"}, {"type": "text", "text": "w:"}, shot]}]
    ask(talk)
    both = [{"type": "input_image", "image_url": seen["image_url"]["url"]},
            {"type": "input_image", "image_url": url}, {"type": "input_text", "text": "Same?"}]
    body = json.dumps({"input": [{"role": "user", "content": both}]}).encode()
    urllib.request.urlopen(ADDRESS.replace("chat/completions", "responses"), body).close()
    return 1.0

def forms(messages):
    """Asks for a number in JSON, for any object by the other API, and for a number or a call."""
    schema = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "null"}}}
    form = {"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": schema}}
    said = ask(messages, response_format=form)["message"]
    asked = {"input": [*messages, said, user("And?")], "text": {"format": {"type": "json_object"}}}
    address = ADDRESS.replace("chat/completions", "responses")
    urllib.request.urlopen(address, json.dumps(asked).encode()).close()
    tool = {"type": "function", "function": {"name": "a"}}
    ask(messages, response_format=form, tools=[tool])
    return json.loads(said["content"])["b"]

def circles(messages):
    """Asks for a form whose first mask shows that it has no end."""
    own = {"$ref": "#/$defs/A"}
    schema = {**own, "$defs": {"A": own}}
    ask(messages, response_format={"type": "json_schema", "json_schema": {"schema": schema}})

def leaves(messages):
    """Starts what does not end with its group."""
    started = subprocess.Popen(["sleep", "100"], start_new_session=True)
    with open(__file__ + ".started", "a") as file:
        file.write(f"{started.pid}\\n")
    ask(messages)

def fickle(messages):
    ask(messages)
    ask([user(str(random.random()))])

def hasty(messages):
    ask(messages)
    time.sleep(100)

def idle(messages):
    return 1.0

def dies(messages):
    ask(messages)
    os._exit(3)

def exits(messages):
    ask(messages)
    sys.exit("enough")

def odd(messages):
    ask(messages)
    return "text"

def both(messages):
    threads = [threading.Thread(target=ask, args=(messages,)) for _ in range(2)]
    [one.start() for one in threads]
    [one.join() for one in threads]

async def gathered(messages):
    await asyncio.gather(*(asyncio.to_thread(ask, messages) for _ in range(2)))

def shorter(messages):
    ask(messages)
    if not os.path.exists(__file__ + ".once"):
        open(__file__ + ".once", "w").close()
        ask(messages)

class Kind:
    pass

def loop(messages):
    yield
'''
NAMES = ("talk", "call", "again", "refused", "elsewhere", "fickle", "hasty", "idle", "dies")
NAMES += ("exits", "odd", "both", "gathered", "shorter", "streams", "responds", "leaves")
NAMES += ("looks", "forms", "circles")


def agent(path: Path, *names: str, **more: Any) -> AgentSpec:
    source = {"path": str(path)}
    user = {"source": source, "interface": "openai", "timeLimitSeconds": 20, **more}
    return AgentSpec.model_validate({"interactions": [{"name": one, **user} for one in names]})


@pytest.fixture(scope="module")
def form(tmp_path_factory: pytest.TempPathFactory) -> ChatForm:
    chat = ChatInProcess(write_family(tmp_path_factory.mktemp("family"), "qwen2.5", None))
    return ChatForm(chat, TurnTemplate(chat), FORMATS["hermes"], [])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "mine.py"
    path.write_text(PROGRAMS)
    return path


@pytest.fixture(scope="module")
def pool(file: Path):
    """Two processes, so that turns of a row are not answered by one."""
    with ToolPool(agent(file, *NAMES), processes=2) as opened:
        yield opened


@pytest.mark.processes
def test_requests_are_turns_of_a_context_or_new_contexts(form: ChatForm, pool: ToolPool, file):
    row = Row(form, agent(file, *NAMES), "talk")
    # Two tokens for what the tokenizer makes one of: what was drawn stays as it was drawn.
    words = form.chat.vocabulary
    pair = next(w for w in sorted(words) if len(w) == 2 and w.isalpha() and w.isascii())
    odd = (*(words[letter] for letter in pair), *form.chat.encode("<|im_end|>"))
    assert form.chat.encode(pair + "<|im_end|>") == [words[pair], odd[-1]]
    episode = row.play(pool, odd, "Yes.", odd[:2])
    first, second, third = row.asked
    assert first.prompt == row.prompt, "the prompt of the data has its tokens already"
    assert second.prompt[: len(first.prompt) + len(odd)] == (*first.prompt, *odd)
    said = f"{pair}<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"
    assert row.shown(1) == row.shown(0) + said
    again = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Again."}]
    again += [{"role": "assistant", "content": "No."}, {"role": "user", "content": "Yes."}]
    assert [list(third.prompt)] == form.chat.encode_chats([again])
    assert third.sampling.max_tokens == 2
    assert [one.is_trained for one in episode.state.segments] == [True, False, True, False, True]
    assert [one.begins_context for one in episode.state.segments].index(True) == 3
    figures = episode.figures
    assert (figures.turn_scores, figures.num_turns) == ([0.0, 0.0, 4.0], 7)
    assert (figures.contexts, figures.tool_failures) == (2, 0)
    assert episode.trajectory.finish_reason == "length", "its last turn was cut"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "told"),
    [("call", {}), ("responds", {"streams": False}), ("responds", {"streams": True})],
)
def test_calls_are_told_and_answered_in_openais_forms(name, told, form, pool, file) -> None:
    row = Row(form, agent(file, *NAMES), name, **told)
    asks = '<tool_call>{"name": "add", "arguments": {"a": 1.0, "b": %d}}</tool_call>'
    episode = row.play(pool, "Let me see. " + asks % 2, asks % 3 + asks % 4, "It is 3.")
    assert row.shown(0).startswith("<|im_start|>system\nYou add.\n\n# Tools")
    head = "\n<|im_start|>user\n<tool_response>\n"
    tail = "\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert row.shown(1) == row.shown(0) + "Let me see. " + asks % 2 + f"<|im_end|>{head}3{tail}"
    assert row.shown(2).endswith(asks % 4 + f"<|im_end|>{head}4{tail}"), "one call a turn is made"
    assert (episode.figures.turn_scores, episode.figures.contexts) == ([0.0, 0.0, 1.0], 1)
    assert episode.state.segments[0].begins_context, "another prompt than that of the data"


@pytest.mark.processes
def test_images_of_requests_are_those_of_the_row(pool: ToolPool, file: Path, tmp_path: Path):
    save_seeing_model(tmp_path)
    save_tokenizer(tmp_path, template=SEEING_TEMPLATE)
    chat = ChatInProcess(tmp_path)
    form = ChatForm(chat, TurnTemplate(chat), FORMATS["hermes"], [], chat.images)
    held, shot = image("red", (40, 20)), image("blue", (16, 9))
    asked = [{"role": "user", "content": "<image>What?"}]
    row = Row(
        form, agent(file, *NAMES), "looks", prompt=asked, files=packed([held]), url=data_url(shot)
    )
    episode = row.play(pool, "Red.", "Blue.", "No.")
    first, second, third = row.asked
    assert (first.prompt, first.images) == (row.prompt, packed([held]))
    whole = [{"role": "user", "content": behind_images("Same?", 2)}]
    assert (second.images, third.images) == (packed([held, shot]), packed([held, shot]))
    (ids,) = form.chat.encode_chats([whole])
    assert list(third.prompt) == form.images.expanded(ids, third.images)
    head, tail = "Red.<|im_end|>\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    marks = IMAGE * len(form.images.tokens_of(shot)[1])
    assert row.shown(1) == f"{row.shown(0)}{head}Now:{marks}{tail}"
    assert [one.file for one in episode.trajectory.images] == [shot, held, shot]
    response = [*row.prompt, *episode.trajectory.tokens]
    starts = [one.start + len(row.prompt) for one in episode.trajectory.images]
    assert starts[0] == second.later[0]
    for asked, later in ((second, starts[:1]), (third, starts[1:])):
        at = later[0] - asked.later[0]
        assert tuple(response[at : at + len(asked.prompt)]) == asked.prompt
        assert [one - at for one in later] == list(asked.later)
    assert (episode.figures.turn_scores, episode.figures.contexts) == ([0.0, 0.0, 1.0], 2)


@pytest.mark.processes
def test_answers_of_a_form(form: ChatForm, pool: ToolPool, file: Path, tmp_path: Path) -> None:
    row = Row(form, agent(file, *NAMES), "forms")
    episode = row.play(pool, '{"b": 12}', '{"c": 1}', "No.")
    first, second, third = (asked.sampling.grammar for asked in row.asked)
    assert third is None
    found = []
    for text in ('{"b": 12}', '{"b": true}', "No."):
        tokens = form.chat.encode(text + "<|im_end|>")
        counts = [one.matcher().count_allowed(tokens) for one in (first, second)]
        found.append([count == len(tokens) for count in counts])
    assert found == [[True, True], [False, True], [False, False]]
    assert (episode.figures.turn_scores, episode.figures.contexts) == ([0.0, 0.0, 12.0], 2)
    # Over the rest of a turn that was stopped.
    cut = Row(form, agent(file, *NAMES), "forms")
    wanted = cut.episode.opening()
    cut.episode.add_answers(wanted.calls, pool.start(turn_of(3, wanted.calls)).result().answers)
    begun = tuple(form.chat.encode('{"b'))
    cut.episode.add_response(Finished("r", begun, (0.0,) * len(begun), "abort", 0))
    assert cut.episode.request().sampling.grammar == replace(first, before=begun)
    endless = Row(form, agent(file, *NAMES), "circles")
    endless.play(pool, "No.")
    assert "response_format: got a response that can neither" in endless.answers[0].text
    save_tokenizer(tmp_path)
    without_bytes = ChatInProcess(tmp_path)
    own = replace(form, chat=without_bytes, template=TurnTemplate(without_bytes))
    failed = Row(own, agent(file, *NAMES), "forms")
    failed.play(pool, "No.")
    assert "it needs the bytes of each token" in failed.answers[0].text


@pytest.mark.processes
def test_the_same_request_again_is_another_context(form: ChatForm, pool: ToolPool, file: Path):
    row = Row(form, agent(file, *NAMES), "again")
    assert row.play(pool, "One.", "Two.").figures.turn_scores == [0.0, 1.0]
    assert row.asked[0].prompt == row.asked[1].prompt == row.prompt


@pytest.mark.processes
def test_events_and_texts_that_end_a_turn(form: ChatForm, pool: ToolPool, file: Path) -> None:
    row = Row(form, agent(file, *NAMES), "streams")
    turns = [tuple(form.chat.encode(text)) for text in ("Look. Observation:", "Yes.")]
    assert len(turns[0]) == 16
    episode = row.play(pool, *turns, end="stop")
    for asked, turn in zip(row.asked, turns, strict=True):
        ends = [asked.sampling.ends_with(turn[: n + 1]) for n in range(len(turn))]
        assert ends == [False] * (len(turn) - 1) + [True]
    assert row.shown(1).startswith(row.shown(0) + "Look. Observation:<|im_end|>\n"), (
        "drawn tokens stay"
    )
    assert (episode.figures.turn_scores, episode.figures.contexts) == ([0.0, 1.0], 1)


@pytest.mark.processes
def test_experts_of_a_prompt_that_no_engine_reads_are_none(form: ChatForm, pool, file: Path):
    row = Row(form, agent(file, *NAMES), "call")
    episode = row.episode
    wanted = episode.opening()
    episode.add_answers(wanted.calls, pool.start(turn_of(3, wanted.calls)).result().answers)
    read = len(episode.request().prompt)
    episode.add_response(Finished("r", (5, 6), (0.0, 0.0), "abort", 0, bytes([7]) * 2 * (read + 1)))
    whole = bytes(2 * len(row.prompt)) + bytes([7]) * 2 * (read + 1)
    assert episode.trajectory.experts == whole


def sees(url: str) -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": url}}
    return {"instead": [{"role": "user", "content": [part]}]}


def in_form(schema: Any, **more: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return {"response_format": form, **more}


TOOL = {"type": "function", "function": {"name": "a"}}
BAD = {
    "form": (in_form("x"), "response_format {'type': 'json_schema', 'json_schema': {'name':"),
    "schema": (
        in_form({"type": "array", "uniqueItems": True}),
        'schema \'{"type": "array", "uniqueItems": true}\': llguidance does not support it: ',
    ),
    "image": (
        sees("data:image/png;base64,AAAA"),
        "an image: the model, its chat template, critic or reference takes none after the prompt",
    ),
    "address of an image": (
        sees("https://a.b/c.png"),
        "image_url 'https://a.b/c.png': an image is sent as data:image/png;base64,...",
    ),
    "file in no base64": (
        sees("data:image/png;base64,A A!"),
        "'data:image/png;base64,A A!': an image is a file in base64",
    ),
    "temperature": ({"temperature": 0.5}, "temperature 0.5: this row is sampled with 1.0; omit it"),
    "n": ({"n": 2}, "n 2: supported: 1; omit it"),
    "tool_choice": (
        {"tool_choice": "none", "tools": [TOOL]},
        "tool_choice 'none': the model may call any tool; omit the tools",
    ),
    "calls": ({"instead": [{"role": "assistant", "tool_calls": 5}]}, "tool_calls 5: a list"),
    "stop": ({"stop": ["a", ""]}, "stop ['a', '']: at most 16 texts of 1 to 100 characters"),
    "top_k": ({"top_k": 5}, "top_k 5: it is not supported; omit it"),
    "none": ({"max_tokens": 0}, "max_tokens 0: a number of tokens, at least 1"),
    "tools": ({"tools": [{"type": "web"}]}, "tool {'type': 'web'}: {\"type\": \"function\""),
}


@pytest.mark.processes
@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_done_as_it_is_asked_is_refused(case, form, pool, file: Path, caplog):
    asked, words = BAD[case]
    caplog.set_level("INFO")
    row = Row(form, agent(file, *NAMES), "refused", **asked)
    episode = row.play(pool, "So.")
    assert f"Error: refused failed: ValueError: got {words}" in row.answers[0].text
    told = "step 1/train/row 3: refused with status 400"
    assert told in caplog.messages[0]
    assert words[:80] in caplog.messages[0]
    assert (row.asked[0].prompt, episode.figures.tool_failures) == (row.prompt, 1)
    assert episode.trajectory.finish_reason == "stop", "a row of one turn behind its prompt"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "turns", "failure", "words"),
    [
        ("idle", 0, "raised", "got its end: a program calls the model at least once"),
        ("elsewhere", 0, "raised", "HTTPError: HTTP Error 404"),
        ("fickle", 2, "raised", 'got messages[0] {"role": "user", "content": "0.'),
        ("shorter", 2, "raised", "got its end: before, it was another"),
        ("dies", 1, "died", "ended without an answer"),
        ("exits", 1, "raised", "SystemExit: enough"),
        ("odd", 1, "raised", "not a number: a score is a number"),
        ("both", 0, "raised", "got two requests at once"),
        ("gathered", 0, "raised", "got two requests at once"),
    ],
)
def test_what_goes_wrong_ends_the_row(name, turns, failure, words, form, pool, file, caplog):
    row = Row(form, agent(file, *NAMES), name)
    episode = row.play(pool, *["So."] * max(1, turns))
    assert (row.answers[-1].failure, episode.state.is_over) == (failure, True)
    assert words in row.answers[-1].text
    assert len(caplog.messages) == 1
    assert not caplog.text.endswith(": \n")
    assert (episode.figures.tool_failures, episode.state.turns) == (1, max(1, turns))


@pytest.mark.processes
def test_what_a_program_has_started_ends_with_each_run(form: ChatForm, pool: ToolPool, file: Path):
    Row(form, agent(file, *NAMES), "leaves").play(pool, "So.")
    started = Path(f"{file}.started").read_text().split()
    assert [Path("/proc", number).exists() for number in started] == [False, False]


@pytest.mark.processes
def test_a_program_that_hangs_is_killed_and_the_next_one_runs(form, file: Path, caplog) -> None:
    spec = agent(file, "hasty", "again", timeLimitSeconds=2)
    with ToolPool(spec) as own:
        row = Row(form, spec, "hasty")
        row.play(own, "So.")
        assert [one.function for one in own.row_calls["again"]] == ["again"]
        assert row.answers[-1].failure == "timeout"
        assert caplog.messages == ["step 1/train/row 3: hasty: no answer in 2 s"]
        assert Row(form, spec, "again").play(own, "1", "2").figures.tool_failures == 0


@pytest.mark.processes
def test_a_first_request_that_leaves_the_model_no_token(form: ChatForm, pool, file: Path) -> None:
    row = Row(form, agent(file, *NAMES), "call", tokens=40)
    episode = row.play(pool, "So.")
    assert "fewer than data.maxResponseTokens" in row.answers[0].text
    assert (episode.figures.tool_failures, row.asked[0].prompt) == (1, row.prompt)
