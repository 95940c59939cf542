"""``tt build --changed-since``: of many models only the changed one is built, as on a runner of CI."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from tests.unit.build.test_checkout import git
from triton_toolkit.cli import cli

PYTHON_MODELS = 56

HEAD = """
spec: 1
include: [models/*.yaml]
families:
  small: {kind: python, outputs: {y: {dtype: fp32, shape: [3]}}}
models:
  net:
    kind: onnx
    source: net.onnx
    dims: {batch: [1, 2, 4]}
    batch_dim: batch
    serve: {output: {y: {label_filename: labels.txt}}}
  sampled: {kind: onnx, source: net.onnx, dims: {batch: [1, 2, 4]}, sample: "samples:x", batch_dim: batch}
  old: {kind: prebuilt, path: old}
"""
INCLUDED = "{name}: {{extends: small, files: py/{name}, inputs: {{x: {{dtype: fp32, shape: [3]}}}}}}\n"
SAMPLES = (
    "import numpy as np\nimport sizes\n\ndef x(batch):\n    return {'x': np.ones((batch, 3), np.float32)}\n"
)
OLD = """
backend: "python"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: 3 }
output { name: "y" data_type: TYPE_FP32 dims: 3 }
"""


def write_project(root: Path) -> None:
    """Write 60 models: 56 of Python in an included file, two ONNX, one prebuilt and one ensemble."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", tensors[:1], tensors[1:])
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), root / "net.onnx")
    (root / "models").mkdir()
    names = [f"m{number}" for number in range(PYTHON_MODELS)]
    for name in names:
        (root / "py" / name).mkdir(parents=True)
        (root / "py" / name / "model.py").write_text("class TritonPythonModel: pass\n")
    (root / "models/python.yaml").write_text("".join(INCLUDED.format(name=name) for name in names))
    (root / "samples.py").write_text(SAMPLES)
    (root / "labels.txt").write_text("one\ntwo\nthree\n")
    (root / "sizes.py").write_text("")
    (root / "old/1").mkdir(parents=True)
    (root / "old/1/model.py").write_text("")
    (root / "old/config.pbtxt").write_text(OLD)
    steps = "  chain: {kind: ensemble, steps: [m0, {model: m1, inputs: {x: y}, outputs: {y: z}}]}\n"
    (root / "tt.yaml").write_text(HEAD + steps)


def build(root: Path, *arguments: str) -> dict[str, dict[str, object]]:
    """Run ``tt build --json`` and return the models that were built, by name."""
    result = CliRunner().invoke(cli, ["build", "--spec", str(root / "tt.yaml"), "--json", *arguments])
    assert result.exit_code == 0, result.output
    models = json.loads(result.stdout)["models"]
    assert len(models) == PYTHON_MODELS + 4
    return {model["name"]: model for model in models if model["action"] != "unchanged"}


@pytest.fixture(scope="module")
def main_branch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkout of main beside a cache that main's builds have filled; nothing else is built."""
    folder = tmp_path_factory.mktemp("ci")
    root = folder / "project"
    root.mkdir()
    write_project(root)
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    assert len(build(root, "--cache", str(folder / "cache"))) == PYTHON_MODELS + 4
    shutil.rmtree(root / "model_repository")
    return folder


Runner = Callable[..., dict[str, dict[str, object]]]


@pytest.fixture
def root(main_branch: Path, tmp_path: Path) -> Path:
    """Return a fresh checkout of main, as a runner has it."""
    shutil.copytree(main_branch, tmp_path / "ci")
    return tmp_path / "ci" / "project"


@pytest.fixture
def built(root: Path) -> Runner:
    """Build what changed since main with the shared cache; ``cache=""`` has an empty one."""

    def run(*arguments: str, cache: str = "cache") -> dict[str, dict[str, object]]:
        return build(root, "--changed-since", "main", "--cache", str(root.parent / cache), *arguments)

    return run


def test_nothing_changed_builds_nothing(built: Runner, root: Path) -> None:
    assert built() == {}
    assert list((root / "model_repository").glob("*")) == []


@pytest.mark.parametrize("state", ["edited", "staged", "committed"])
def test_one_changed_model_among_sixty_is_built_alone(built: Runner, root: Path, state: str) -> None:
    git(root, "checkout", "-q", "-b", "work")
    (root / "py/m7/model.py").write_text("class TritonPythonModel:\n    pass\n")
    if state == "staged":
        git(root, "add", ".")
    if state == "committed":
        git(root, "commit", "-q", "-a", "-m", "second")
    models = built()
    assert list(models) == ["m7"]
    assert models["m7"]["reasons"] == ["py/m7/model.py changed since main", "not built yet"]
    assert models["m7"]["from_cache"] is False
    assert [path.name for path in (root / "model_repository").iterdir()] == ["m7"]


def test_an_added_file_in_a_models_folder_builds_it(built: Runner, root: Path) -> None:
    (root / "py/m7/words.txt").write_text("a")
    assert list(built()) == ["m7"]


def test_a_helper_module_of_a_sample_builds_the_model_that_uses_it(built: Runner, root: Path) -> None:
    (root / "sizes.py").write_text("ROWS = 2\n")
    models = built()
    assert list(models) == ["sampled"]
    assert models["sampled"]["reasons"] == ["sizes.py changed since main", "not built yet"]


def test_a_changed_source_builds_all_that_share_it(built: Runner, root: Path) -> None:
    data = onnx.load(root / "net.onnx")
    data.producer_name = "another"
    onnx.save(data, root / "net.onnx")
    assert list(built()) == ["net", "sampled"]


def test_a_changed_label_file_builds_its_model(built: Runner, root: Path) -> None:
    (root / "labels.txt").write_text("1\n2\n3\n")
    assert list(built()) == ["net"]


def test_a_changed_prebuilt_folder_builds_it(built: Runner, root: Path) -> None:
    (root / "old/labels.txt").write_text("one\n")
    assert list(built()) == ["old"]


def test_a_changed_step_builds_its_ensemble_and_the_other_steps_that_it_needs(
    built: Runner, root: Path
) -> None:
    (root / "py/m1/model.py").write_text("class TritonPythonModel:\n    pass\n")
    models = built()
    assert list(models) == ["m0", "m1", "chain"]
    assert models["m0"]["from_cache"] is True
    assert models["chain"]["reasons"] == ["step m1 changed since main", "not built yet"]


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        ("models/python.yaml", "m7: {extends", "m7: {serve: {instance_group: [{count: 2}]}, extends", ["m7"]),
        ("tt.yaml", "  sampled: {", "  sampled: {slo: {require: ['p99<1ms']}, ", []),
        ("tt.yaml", "# nothing", "", []),
        ("models/python.yaml", "m7: {", "\n\n# a remark\nm7: {", []),
    ],
    ids=["serve", "slo", "nothing", "remark"],
)
def test_a_changed_part_of_the_spec_builds_its_model(
    built: Runner, root: Path, file: str, old: str, new: str, changed: list[str]
) -> None:
    path = root / file
    path.write_text(path.read_text().replace(old, new, 1))
    assert list(built()) == changed


def test_a_changed_family_builds_the_models_that_extend_it(built: Runner, root: Path) -> None:
    spec = root / "tt.yaml"
    spec.write_text(
        spec.read_text().replace("small: {kind: python,", "small: {requirements: [numpy], kind: python,")
    )
    models = built()
    assert len(models) == PYTHON_MODELS + 1  # and the ensemble over them
    assert models["m7"]["reasons"][0] == "its part of the spec changed since main"  # type: ignore[index]


def test_a_new_model_is_built(built: Runner, root: Path) -> None:
    spec = root / "tt.yaml"
    spec.write_text(spec.read_text().replace("  old:", "  new: {kind: prebuilt, path: old}\n  old:"))
    result = CliRunner().invoke(
        cli,
        [
            "build",
            "--spec",
            str(spec),
            "--json",
            "--changed-since",
            "main",
            "--cache",
            str(root.parent / "cache"),
        ],
    )
    models = json.loads(result.stdout)["models"]
    assert [model["name"] for model in models if model["action"] == "build"] == ["new"]


def test_another_release_builds_everything(built: Runner, root: Path) -> None:
    spec = root / "tt.yaml"
    spec.write_text(spec.read_text().replace("spec: 1", 'spec: 1\nrelease: "24.10"'))
    assert len(built("--dry-run")) == PYTHON_MODELS + 4


def test_without_a_cache_what_is_not_known_is_built(built: Runner) -> None:
    models = built("--dry-run", cache="empty")
    assert len(models) == PYTHON_MODELS + 4
    assert models["net"]["reasons"][0] == "no build from its present files is known"  # type: ignore[index]


def test_a_repository_that_is_built_needs_no_cache(root: Path) -> None:
    build(root, "--cache", str(root.parent / "cache"))
    (root / "sizes.py").write_text("ROWS = 2\n")
    models = build(root, "--changed-since", "main", "--no-cache")
    assert list(models) == ["sampled"]
    assert models["sampled"]["reasons"] == ["sizes.py changed since main", "sizes.py changed"]


def test_an_old_repository_is_not_taken_for_what_main_has(root: Path) -> None:
    """A module that came in before the commit is no dependency in the passport, and a change of it counts."""
    build(root, "--cache", str(root.parent / "cache"))
    (root / "sizes.py").write_text("import more\n")
    (root / "more.py").write_text("")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "after the build")
    (root / "more.py").write_text("ROWS = 2\n")
    models = build(root, "--changed-since", "main", "--no-cache")
    assert list(models) == ["sampled"]
    assert models["sampled"]["reasons"][0] == "no build from its present files is known"  # type: ignore[index]


def test_all_sixty_come_out_of_the_cache_where_the_repository_is_empty(root: Path) -> None:
    models = build(root, "--cache", str(root.parent / "cache"))
    assert len(models) == PYTHON_MODELS + 4
    assert all(model["from_cache"] for model in models.values())


def test_a_result_of_the_cache_is_the_fresh_one(root: Path) -> None:
    def files(*arguments: str) -> dict[str, object]:
        models = build(root, *arguments)
        found = {str(name): model["passport"] for name, model in models.items()}
        text = {
            path.relative_to(root).as_posix(): path.read_bytes()
            for path in (root / "model_repository").rglob("*")
            if path.is_file() and path.name != "passport.json"
        }
        shutil.rmtree(root / "model_repository")
        for passport in found.values():
            passport.pop("created")  # type: ignore[attr-defined]
        return {**found, **text}

    assert files("--cache", str(root.parent / "cache")) == files("--no-cache")


def test_force_asks_no_cache(root: Path) -> None:
    assert not any(model["from_cache"] for model in build(root, "--force", "--cache", "c").values())


def test_a_folder_that_is_no_checkout_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "tt.yaml").write_text("spec: 1\nmodels:\n  a: {kind: onnx, source: a.onnx}\n")
    words = ["build", "--spec", str(tmp_path / "tt.yaml"), "--changed-since", "main"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 3
    assert result.stderr.startswith(f"Error: {tmp_path} is not in a git checkout")
    assert not (tmp_path / "model_repository").exists()
