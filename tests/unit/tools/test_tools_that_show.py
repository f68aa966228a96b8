import base64
import random
from collections.abc import Sequence
from math import ceil, floor
from pathlib import Path

import pytest
from PIL import Image
from tool_calls import ask

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.data.media.image_cells import BadImage, read_images
from ppojob_trainer.data.media.images import MOST_BYTES, encoded, opened, unpacked
from ppojob_trainer.rewards.results import BadResult
from ppojob_trainer.rpc.messages.agents import SeenImage
from ppojob_trainer.tools.answers import read_answer, response
from ppojob_trainer.tools.built_in.zoom import within
from ppojob_trainer.tools.custom import returned
from ppojob_trainer.tools.pool import ToolPool
from ppojob_trainer.tools.verl.tools import ToolResponse

IMAGE = Image.radial_gradient("L").resize((64, 40)).convert("RGB")
PNG = encoded(IMAGE)
SEEN = SeenImage(PNG, 128, 80)
TOOLS = '''
from PIL import Image
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse

def left(part: float, images: list):
    """Shows the left part of the last image."""
    width, height = images[-1].size
    assert images[-1].info["seen_size"] == (128, 80)
    return images[-1].crop((0, 0, round(width * part), height)), 0.5

def bad():
    """Shows what is no image."""
    return ToolResponse(image=[b"GIF8"])

def dot():
    """Shows one."""
    return Image.new("L", (8, 8))

class Turned(BaseTool):
    async def execute(self, instance_id, parameters, agent_data, **kwargs):
        (image,) = agent_data.image_data or [None]
        if image is None:
            return ToolResponse(text="none"), 0.0, {}
        return ToolResponse(text="turned", image=[image.rotate(180)]), 0.0, {}
'''


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (IMAGE, ""),
        (ToolResponse(text="a", image=[IMAGE]), "a"),
        (ToolResponse(image=[None, IMAGE.convert("CMYK")]), ""),
        ([IMAGE], ""),
        (response("a", [base64.b64encode(encoded(IMAGE)).decode()]), "a"),
        (returned({"images": f"data:image/png;base64,{base64.encodebytes(PNG).decode()}"})[0], ""),
    ],
)
def test_what_a_tool_may_show(value: object, text: str) -> None:
    for given_back, reward in ((value, 0.0), ((value, 0.5, {}), 0.5)):
        found, (file,), given = read_answer(given_back)
        assert (found, given) == (text, reward)
        assert opened(file).tobytes() == IMAGE.tobytes()


@pytest.mark.parametrize(
    "value", [ToolResponse(image=["a.png"]), ToolResponse(video=[IMAGE]), IMAGE.convert("F")]
)
def test_what_it_may_not(value: object) -> None:
    with pytest.raises(BadResult):
        read_answer(value)
    with pytest.raises(BadResult):
        response("a", ["no base64!"])


def test_a_file_that_asks_for_gigabytes_is_not_opened() -> None:
    bomb = encoded(Image.new("L", (9_500, 9_500)))
    with pytest.raises(BadImage, match="exceeds limit"):
        read_images([{"bytes": bomb}])
    with pytest.raises(BadImage, match="unknown image format"):
        read_images([{"bytes": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"}])


def is_valid(left: float, top: float, right: float, bottom: float) -> bool:
    if not (left < right and top < bottom):
        return False
    height, width = bottom - top, right - left
    return max(height, width) / min(height, width) <= 100


def verls_box(box: Sequence[float], image_width: int, image_height: int) -> list[float] | None:
    """verl's `_maybe_resize_bbox`, line by line."""
    left, top = max(0.0, float(box[0])), max(0.0, float(box[1]))
    right, bottom = min(float(image_width), box[2]), min(float(image_height), box[3])
    if not is_valid(left, top, right, bottom):
        return None
    current = [left, top, right, bottom]
    height, width = bottom - top, right - left
    if height < 28 or width < 28:
        center_x, center_y = (left + right) / 2.0, (top + bottom) / 2.0
        ratio = 28 / min(height, width)
        target_width, target_height = width * ratio, height * ratio
        if target_width > image_width:
            scale_down = image_width / target_width
            target_width = image_width
            target_height *= scale_down
        if target_height > image_height:
            scale_down = image_height / target_height
            target_height = image_height
            target_width *= scale_down
        new_left = max(center_x - target_width / 2.0, 0)
        new_top = max(center_y - target_height / 2.0, 0)
        if new_left + target_width > image_width:
            new_left = image_width - target_width
        if new_top + target_height > image_height:
            new_top = image_height - target_height
        ends = ceil(new_left + target_width), ceil(new_top + target_height)
        current = [floor(new_left), floor(new_top), *ends]
    height, width = floor(current[3]) - floor(current[1]), floor(current[2]) - floor(current[0])
    return current if is_valid(*current) and min(height, width) >= 28 else None


def test_a_box_is_that_of_verls_tool() -> None:
    draw, same = random.Random(0), 0
    for _ in range(2_000):
        size = draw.randrange(20, 300), draw.randrange(20, 300)
        box = tuple(draw.choice([draw.uniform(-9, 310), draw.randrange(310)]) for _ in range(4))
        box = box if draw.random() < 0.5 else (*box[:2], box[0] + box[2] / 9, box[1] + box[3] / 9)
        ours, theirs = within(box, *size), verls_box(box, *size)
        assert ours == (theirs if theirs is None else pytest.approx(theirs, abs=1))
        same += ours == (theirs and tuple(theirs))
    assert same > 1_990  # the others round the last bit of a side the other way


@pytest.mark.processes
def test_tools_are_given_the_images_of_a_row(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    number = {"type": "object", "properties": {"part": {"type": "number"}}, "required": ["part"]}

    def tool(name: str, **more: object) -> dict[str, object]:
        source = {"path": str(tmp_path / "tools.py"), "function": name}
        return {"name": name, "description": "It.", "source": source, **more}

    names = ("Turned", "bad", "dot")
    tools = [tool("left", parameters=number), *map(tool, names), {"name": "image_zoom_in_tool"}]
    box = '{"bbox_2d": [64, 0, 128, 40], "label": "dot"}'
    with ToolPool(AgentSpec.model_validate({"tools": tools})) as pool:
        answers = {
            name: ask(pool, name, asked, images=[SEEN])
            for name, asked in (
                ("left", '{"part": 0.25}'),
                ("Turned", "{}"),
                ("image_zoom_in_tool", box),
            )
        }
        shown = {name: opened(*unpacked(one.images)) for name, one in answers.items()}
        assert shown["left"].tobytes() == IMAGE.crop((0, 0, 16, 40)).tobytes()
        assert (answers["left"].text, answers["left"].reward) == ("", 0.5)
        assert shown["Turned"].tobytes() == IMAGE.rotate(180).tobytes()
        # Half as wide as the model sees it.
        assert shown["image_zoom_in_tool"].tobytes() == IMAGE.crop((32, 0, 64, 20)).tobytes()
        told = "Zoomed in on the image to the region [64, 0, 128, 40] with label dot."
        assert answers["image_zoom_in_tool"].text == told
        wrong = ask(pool, "image_zoom_in_tool", '{"bbox_2d": [9, 9, 9, 9]}', images=[SEEN])
        assert (wrong.reward, wrong.failure, wrong.images) == (-0.05, "", b"")
        assert ask(pool, "Turned", images=[]).text == "none"
        full = SeenImage(bytes(MOST_BYTES), 8, 8)
        for name, held, words in (
            ("bad", [], "unknown image format"),
            ("dot", [full], "bytes of images in a row"),
            ("dot", None, "critic or reference takes none after the prompt"),
        ):
            answer = ask(pool, name, images=held)
            assert answer.failure == "raised"
            assert words in answer.text
