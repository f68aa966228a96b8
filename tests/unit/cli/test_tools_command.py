from pathlib import Path

import pytest
from click.testing import CliRunner
from golden_lines import read_lines

from ppojob_api.manifest import read_file
from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_cli.main import main

HERE = Path(__file__).parent
BAD = read_lines(HERE / "bad_tool_files.txt")
YAML = """\
tools:
  - class_name: "verl.tools.gsm8k_tool.Gsm8kTool"
    config:
      type: native
    tool_schema:
      type: "function"
      function:
        name: "calc_gsm8k_reward"
        description: "Checks an answer."
        parameters:
          type: "object"
          properties:
            answer:
              type: "string"
              description: "The answer, digits"
          required: ["answer"]
  - class_name: "package.guesses.Guess"
    config: {type: native, step: 3}
    tool_schema:
      type: "function"
      function:
        name: "guess"
        description: "Takes a guess."
        parameters: {type: object, properties: {guess: {type: string}}, required: [guess]}
  - class_name: "package/guesses.py:Guess"
    tool_schema:
      type: "function"
      function: {name: "other", description: "Another.", parameters: {type: object}}
  - class_name: "verl.tools.search_tool.SearchTool"
    config:
      retrieval_service_url: http://127.0.0.1:8000/retrieve
      num_workers: 120
      timeout: 30
      type: native
    tool_schema:
      type: "function"
      function:
        name: "search"
        description: "Searches the web."
        parameters:
          type: object
          properties: {query_list: {type: array, item: {type: string}, description: "Queries."}}
          required: [query_list]
"""
ZOOM = """\
  - class_name: "verl.tools.image_zoom_in_tool.ImageZoomInTool"
    config: {num_workers: 256, rate_limit: 256, timeout: 60, type: native}
    tool_schema:
      type: "function"
      function:
        name: "image_zoom_in_tool"
        description: "Zooms."
        parameters:
          type: "object"
          properties: {bbox_2d: {type: "array", items: {type: "number"}, minItems: 4, maxItems: 4}}
          required: ["bbox_2d"]
"""
INTERACTIONS = """\
interaction:
  - name: "gsm8k"
    class_name: "verl.interactions.gsm8k_interaction.Gsm8kInteraction"
    config: {}
  - class_name: "package.guesses.PatientInteraction"
    config: {patience: 3}
  - name: other
    class_name: "package/guesses.py:Other"
"""
LOOPS = """\
- name: my_agent
  _target_: package.guesses.MyAgentLoop
  depth: 3
- name: other
  _target_: package/guesses.py:Other
"""
FUNCTIONS = '''
from typing import Literal, Optional
import json

def search(query: str, images, top_k: int = 3, unit: Optional[str] = None, kinds: list[str] = ()):
    """Searches the pages.

    Args:
        query: What to look for.
        top_k: How many.
        unit: Of what. (choices: ["a", "b"])
        kinds: Of which kinds.
    """

async def add(a: float, b: float) -> float:
    """Adds two numbers.

    Args:
        a: The one.
        b: The other.
    """
    return a + b

def _private(x):
    pass
'''
MARKED = FUNCTIONS.replace("async def add", '@function_tool("plus")\nasync def add')


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "guesses.py").touch()
    return tmp_path


def printed(file: str) -> str:
    done = CliRunner().invoke(main, ["tools", file])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_verls_yaml(folder: Path) -> None:
    (folder / "tools.yaml").write_text(YAML + ZOOM)
    assert printed("tools.yaml") == (HERE / "tools_of_yaml.txt").read_text()


def test_verls_yaml_of_interactions(folder: Path) -> None:
    (folder / "users.yaml").write_text(INTERACTIONS)
    assert printed("users.yaml") == (HERE / "interactions_of_yaml.txt").read_text()


def test_verls_yaml_of_agent_loops(folder: Path) -> None:
    (folder / "loops.yaml").write_text(LOOPS)
    assert printed("loops.yaml") == (HERE / "agent_loops_of_yaml.txt").read_text()


@pytest.mark.processes
def test_functions(folder: Path) -> None:
    (folder / "mine.py").write_text(FUNCTIONS)
    assert printed("mine.py") == (HERE / "tools_of_functions.txt").read_text()


@pytest.mark.processes
def test_of_marked_functions_no_others(folder: Path) -> None:
    head = "from verl.tools.function_tool import function_tool\n"
    (folder / "mine.py").write_text(head + MARKED)
    (folder / "printed.yaml").write_text(printed("mine.py"))
    read = read_file("printed.yaml")
    assert isinstance(read.value, dict)
    agent = AgentSpec.model_validate(read.value["agent"])
    assert [one.name for one in agent.tools] == ["plus"]
    assert agent.tools[0].source is not None
    assert agent.tools[0].source.function == "add"


FILES = {
    "no list.yaml": "tools: 7\n",
    "no yaml.yaml": "a: [\n",
    "mcp.yaml": "tools: [{class_name: a.B, config: {type: mcp}}]\n",
    "no file.yaml": YAML.replace("package.guesses", "package.other"),
    "twice.yaml": YAML.replace('"other"', '"guess"'),
    "no description.yaml": YAML.replace('description: "Another.", ', ""),
    "text.txt": "",
    "no users.yaml": "interaction: 7\n",
    "no loop.yaml": "[{name: a, _target_: a.B}, 7]\n",
    "search of verl.yaml": YAML.replace(
        "package.guesses.Guess", "verl.tools.search_tool.SearchTool"
    ),
    "sandbox of verl.yaml": YAML.replace(
        "package.guesses.Guess", "verl.tools.sandbox_fusion_tools.SandboxFusionTool"
    ),
    "no user.yaml": "interaction: [{name: a, class_name: a.B}, {config: {}}]\n",
    "renamed.yaml": INTERACTIONS.replace('"gsm8k"', '"math"'),
}
SOURCES = {
    "absent.py": None,
    "broken.py": "def f(:\n",
    "empty.py": "x = 1\n",
    "undescribed.py": "def f(x: int):\n    pass\ndef g(*x):\n    '''A.'''\n",
}


@pytest.mark.processes
@pytest.mark.parametrize("file", [*FILES, *SOURCES])
def test_files_that_hold_no_tools(file: str, folder: Path) -> None:
    text = {**FILES, **SOURCES}[file]
    if text is not None:
        (folder / file).write_text(text)
    done = CliRunner().invoke(main, ["tools", file])
    assert done.exit_code == 2
    assert done.output.splitlines() == BAD[file]
