"""Small tasks for a shell: each row has files, a request, and a test that decides its score."""

import json
import random

WORDS = (
    *("amber", "birch", "cedar", "daisy", "ember", "fern", "grape", "hazel", "iris", "juniper"),
    *("kale", "lemon", "maple", "nettle", "olive", "peach", "quince", "rose", "sage", "thyme"),
)
NAMES = (
    *("bag", "box", "card", "desk", "door", "file", "gate", "hall", "jar", "key", "lamp", "list"),
    *("map", "note", "page", "road", "shed", "tent", "wall", "yard"),
)
KINDS = ("write", "append", "copy", "rename", "delete")


def rows(*, count: int, held_out: bool = False):
    """Make rows. Two or four worked tasks begin them, two if held out; one is of the same kind."""
    draw = random.Random(held_out)
    part = slice(12, None) if held_out else slice(12)
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        others = [one for one in KINDS if one != kind]
        worked = draw.sample(others, draw.choice((1, 3)) if not held_out else 1)
        worked.insert(draw.randint(0, len(worked)), kind)
        names = draw.sample(NAMES[part], 2 * (len(worked) + 1))
        words = draw.sample(WORDS[part], len(worked) + 1)
        made = [
            task(one, *names[2 * at : 2 * at + 2], words[at])
            for at, one in enumerate([*worked, kind])
        ]
        shown = [message for one in made[:-1] for message in worked_task(*one[:2])]
        request, _, files, test = made[-1]
        yield {
            "prompt": [*shown, {"role": "user", "content": request}],
            "data_source": f"shell/{kind}",
            "extra_info": {
                "tools_kwargs": {"bash": {"create_kwargs": {"files": files, "test": test}}}
            },
        }


def task(kind, name, other, word):
    """Return a request, a command that does it, the files before, and a test."""
    file, second = f"{name}.txt", f"{other}.txt"
    files = {file: f"{word}\n"}
    if kind == "write":
        test = f'test "$(cat {file})" = {word}'
        return f"Write the word {word} into {file}.", f"echo {word} > {file}", {}, test
    if kind == "append":
        test = f'test "$(cat {file})" = "old\n{word}"'
        files = {file: "old\n"}
        return f"Append the word {word} to {file}.", f"echo {word} >> {file}", files, test
    if kind == "copy":
        test = f"cmp {file} {second}"
        return f"Copy {file} to {second}.", f"cp {file} {second}", files, test
    if kind == "rename":
        test = f"test ! -e {file} && grep {word} {second}"
        return f"Rename {file} to {second}.", f"mv {file} {second}", files, test
    test = f"test ! -e {file} && test -e {second}"
    return f"Delete {file}.", f"rm {file}", {**files, second: "kept\n"}, test


def worked_task(request, command):
    """Return a task and its call, in the format hermes."""
    call = {"name": "bash", "arguments": {"command": command}}
    return [
        {"role": "user", "content": request},
        {"role": "assistant", "content": f"<tool_call>{json.dumps(call)}</tool_call>"},
        {"role": "tool", "content": ""},
        {"role": "assistant", "content": "Done."},
    ]
