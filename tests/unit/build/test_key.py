"""What a build depends on: each part, changed alone, makes the version stale and misses the cache."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from triton_toolkit._progress import Silent
from triton_toolkit.build import recipe as recipes
from triton_toolkit.build.cache import StageCache
from triton_toolkit.build.plan import Action, decide
from triton_toolkit.build.recipe import Context
from triton_toolkit.build.reuse import fetch_version
from triton_toolkit.build.run import BuildOptions, recipe_for, run_build
from triton_toolkit.core.releases import export_target
from triton_toolkit.spec.load import load_project

pytestmark = pytest.mark.torch

SPEC = """
spec: 1
models:
  net:
    source: nets.main:model
    sample: samples:sample
    inputs: {x: {dtype: fp32, shape: [batch, 4]}}
    outputs: {y: {shape: [batch, 3]}}
    dims: {batch: [1, 2, 4]}
    batch_dim: batch
    hashed: [vocabulary.txt]
    accuracy: {metric: "metrics:agreement", max_absolute_drop: 0.5}
"""

FILES = {
    "nets/__init__.py": "",
    "nets/main.py": """
        from pathlib import Path
        import torch
        from nets.layers import Net

        def model():
            net = Net()
            try:
                print(open("finetuned.txt").read())
            except FileNotFoundError:
                pass
            net.load_state_dict(torch.load(Path(__file__).parent / "net.pt", weights_only=True))
            return net
    """,
    "nets/layers.py": """
        import torch
        from nets import sizes

        try:
            from nets.override import OUT
        except ImportError:
            OUT = sizes.OUT

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(4, OUT)

            def forward(self, x):
                return self.linear(x)
    """,
    "nets/sizes.py": "OUT = 3\n",
    "samples.py": """
        import numpy as np

        def sample(batch):
            row = np.array([float(word) for word in open("sample.txt").read().split()], np.float32)
            return {"x": np.stack([row * number for number in range(1, batch + 1)])}
    """,
    "sample.txt": "1 2 3 4\n",
    "metrics.py": """
        import json
        import numpy as np

        def agreement(predict):
            rows = json.load(open("labels.json"))
            return float(predict({"x": np.array(rows, np.float32)})["y"].shape[0] / len(rows))
    """,
    "labels.json": "[[1, 2, 3, 4], [4, 3, 2, 1]]",
    "vocabulary.txt": "a b c\n",
    "unrelated.py": "",
}


def write_project(root: Path) -> None:
    import textwrap

    import torch

    for name, text in FILES.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(textwrap.dedent(text))
    (root / "tt.yaml").write_text(SPEC)
    torch.manual_seed(0)
    torch.save(torch.nn.Linear(4, 3).state_dict(), root / "weights.tmp")
    state = {f"linear.{key}": value for key, value in torch.load(root / "weights.tmp").items()}
    torch.save(state, root / "nets/net.pt")
    (root / "weights.tmp").unlink()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a project that is built, and its cache."""
    folder = tmp_path_factory.mktemp("key")
    (folder / "project").mkdir()
    write_project(folder / "project")
    project = load_project(folder / "project/tt.yaml")
    (report,) = run_build(project, BuildOptions(cache=folder / "cache"), Silent())
    assert report.error is None, report.error
    return folder


@dataclass
class State:
    """A copy of the built project, to be changed and then judged."""

    root: Path
    cache: Path

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        assert path.is_file()
        path.write_bytes(text.encode() if not name.endswith(".pt") else path.read_bytes() + text.encode())

    def edit_spec(self, old: str, new: str) -> None:
        text = (self.root / "tt.yaml").read_text()
        assert old in text
        (self.root / "tt.yaml").write_text(text.replace(old, new))

    def judge(self) -> tuple[tuple[str, ...], bool]:
        """Return why the version is stale, and whether the cache has it."""
        project = load_project(self.root / "tt.yaml")
        opset, ir_version = export_target(project.spec.release)
        cache = StageCache(self.cache, self.root)
        context = Context(
            project=project, release=project.spec.release, opset=opset, ir_version=ir_version, cache=cache
        )
        recipe = recipe_for(context, "net")
        decision = decide(context, recipe, force=False)
        assert (decision.action is Action.BUILD) == bool(decision.reasons)
        into = self.root / "fetched"
        into.mkdir()
        return decision.reasons, fetch_version(context, recipe, into, Silent()) is not None


@pytest.fixture
def state(built: Path, tmp_path: Path) -> State:
    shutil.copytree(built, tmp_path / "copy")
    return State(tmp_path / "copy/project", tmp_path / "copy/cache")


def test_unchanged_it_stands_and_is_in_the_cache(state: State) -> None:
    assert state.judge() == ((), True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nets/main.py", "# changed\n"),
        ("nets/layers.py", "# changed\n"),
        ("nets/sizes.py", "OUT = 4\n"),
        ("nets/__init__.py", "# changed\n"),
        ("nets/net.pt", "x"),
        ("samples.py", "# changed\n"),
        ("sample.txt", "4 3 2 1\n"),
        ("metrics.py", "# changed\n"),
        ("labels.json", "[]"),
        # what a variant's calibration reads: test_key_of_variants.py
    ],
)
def test_the_bytes_of_what_was_read_count(state: State, name: str, text: str) -> None:
    state.write(name, text)
    assert state.judge() == ((f"{name} changed",), False)


def test_a_file_that_is_gone_counts(state: State) -> None:
    (state.root / "nets/sizes.py").unlink()
    assert state.judge() == (("nets/sizes.py is gone",), False)


@pytest.mark.parametrize("name", ["finetuned.txt", "nets/override.py", "nets/override/__init__.py"])
def test_a_file_that_was_asked_for_in_vain_counts_when_it_is_there(state: State, name: str) -> None:
    (state.root / name).parent.mkdir(exist_ok=True)
    (state.root / name).write_text("OUT = 3\n")
    assert state.judge() == ((f"{name} is new",), False)


def test_a_hashed_file_counts(state: State) -> None:
    state.write("vocabulary.txt", "d e f\n")
    assert state.judge() == (("hashed vocabulary.txt changed",), False)


def test_a_file_that_nobody_reads_does_not_count(state: State) -> None:
    state.write("unrelated.py", "# changed\n")
    assert state.judge() == ((), True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("batch: [1, 2, 4]", "batch: [1, 2, 5]"),
        ("max_absolute_drop: 0.5", "max_absolute_drop: 0.4"),
        ("batch_dim: batch", "batch_dim: batch\n    tolerance: {absolute: 0.1}"),
    ],
)
def test_the_models_part_of_the_spec_counts(state: State, old: str, new: str) -> None:
    state.edit_spec(old, new)
    assert state.judge() == (("spec changed",), False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("batch_dim: batch", "batch_dim: batch\n    slo: {require: ['p99<1ms']}"),
        ("  net:", "  other: {kind: onnx, source: other.onnx}\n  net:"),
        ("  net:", "  # a remark\n\n  net:"),
    ],
)
def test_what_is_not_built_from_does_not_count(state: State, old: str, new: str) -> None:
    state.edit_spec(old, new)
    assert state.judge() == ((), True)


def test_the_release_counts(state: State) -> None:
    state.edit_spec("spec: 1", 'spec: 1\nrelease: "23.03"')
    reasons, cached = state.judge()
    assert [reason.partition(":")[0] for reason in reasons] == ["ir_version", "opset"]
    assert not cached


@pytest.mark.parametrize("tool", ["triton-toolkit", "torch", "onnx", "onnxscript", "onnxruntime"])
def test_the_version_of_every_tool_counts(state: State, monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    version: Callable[[str], str] = recipes._version
    monkeypatch.setattr(recipes, "_version", lambda name: "9.9" if name == tool else version(name))
    reasons, cached = state.judge()
    assert reasons == (f"tool {tool}: {version(tool)} -> 9.9",)
    assert not cached


def test_a_lock_counts(state: State) -> None:
    (state.root / "env.lock").write_text("numpy\n")
    state.edit_spec("batch_dim: batch", "batch_dim: batch\n    env: {lock: env.lock}")
    first, _ = state.judge()
    assert "tool environment changed" in first
