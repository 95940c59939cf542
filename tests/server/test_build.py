"""``tt build`` of the kinds that need no PyTorch, golden answers from the real server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from triton_toolkit.cli import cli
from triton_toolkit.client.triton import TritonClient
from triton_toolkit.repository.layout import versions
from triton_toolkit.repository.passport import check_files, read_passport, read_samples
from triton_toolkit.server.embedded import EmbeddedServer

pytestmark = pytest.mark.server

SPEC = """
spec: 1
models:
  double:
    kind: onnx
    source: double.onnx
    dims: {batch: [1, 4, 8]}
    batch_dim: batch
    serve: {dynamic_batching: {max_queue_delay_microseconds: 1ms}, warmup: auto}
  words:
    kind: python
    files: words
    inputs: {text: {dtype: bytes, shape: [batch, 1]}}
    outputs: {x: {dtype: fp32, shape: [batch, 3]}}
    dims: {batch: [1, 4, 16]}
    batch_dim: batch
    sample: samples:text
    serve: {output: {x: {label_filename: words.txt}}}
  both:
    kind: ensemble
    steps: [words, double]
    sample: samples:text
  adopted:
    kind: prebuilt
    path: old
    sample: samples:text
"""

WORDS = """
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb.get_input_tensor_by_name(request, "text").as_numpy()
            rows = [[len(t), t.count(b"a"), FACTOR] for t in text[:, 0]]
            responses.append(pb.InferenceResponse([pb.Tensor("x", np.array(rows, np.float32))]))
        return responses
"""

OLD = """
backend: "python"
max_batch_size: 4
input { name: "text" data_type: TYPE_STRING dims: 1 }
output { name: "x" data_type: TYPE_FP32 dims: 3 label_filename: "labels.txt" }
"""


def write_project(root: Path) -> None:
    """Write a project of an ONNX file, a Python model, an ensemble over both, and a prebuilt model."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "double",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, root / "double.onnx")
    (root / "words").mkdir()
    (root / "words/model.py").write_text(WORDS.replace("FACTOR", "1"))
    (root / "old/3").mkdir(parents=True)
    (root / "old/3/model.py").write_text(WORDS.replace("FACTOR", "7"))
    (root / "old/config.pbtxt").write_text(OLD)
    (root / "old/labels.txt").write_text("one\ntwo\n")
    (root / "words.txt").write_text("length\n")
    (root / "samples.py").write_text(
        "import numpy as np\n\n"
        "def text():\n    return {'text': np.array([[b'banana'], [b'']], dtype=object)}\n"
    )
    (root / "tt.yaml").write_text(SPEC)


def build(root: Path, *arguments: str) -> dict[str, dict[str, object]]:
    """Run ``tt build --json`` and return its models by name."""
    result = CliRunner().invoke(cli, ["build", "--spec", str(root / "tt.yaml"), "--json", *arguments])
    assert result.exit_code == 0, result.output
    return {model["name"]: model for model in json.loads(result.stdout)["models"]}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    write_project(root)
    build(root)
    return root


@pytest.fixture
def project(built: Path, tmp_path: Path) -> Path:
    """Return a copy of the built project that a test may change."""
    return Path(shutil.copytree(built, tmp_path / "project"))


def golden(root: Path, name: str) -> np.ndarray:
    samples = read_samples(root / "model_repository" / name / "1")
    assert samples is not None
    (output,) = samples.outputs.values()
    return output


def test_golden_outputs_are_the_models_own(built: Path) -> None:
    """Two of them have label files, without which the server does not load them."""
    np.testing.assert_array_equal(golden(built, "words"), [[6, 3, 1], [0, 0, 1]])
    np.testing.assert_array_equal(golden(built, "both"), [[12, 6, 2], [0, 0, 2]])
    np.testing.assert_array_equal(golden(built, "adopted"), [[6, 3, 7], [0, 0, 7]])


def test_every_version_has_a_passport_that_matches_its_files(built: Path) -> None:
    for name in ("double", "words", "both", "adopted"):
        folder = built / "model_repository" / name / "1"
        passport = read_passport(folder)
        assert passport is not None
        assert passport.model == name
        assert check_files(folder, passport) == []


def test_a_prebuilt_model_keeps_its_config_and_the_files_beside_it(built: Path) -> None:
    folder = built / "model_repository/adopted"
    assert (folder / "config.pbtxt").read_text() == OLD
    assert (folder / "labels.txt").read_text() == "one\ntwo\n"
    assert versions(folder) == [1]


def test_building_again_changes_nothing(project: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in project.rglob("*")}
    assert {model["action"] for model in build(project).values()} == {"unchanged"}
    assert {path: path.stat().st_mtime_ns for path in project.rglob("*")} == before


def test_a_changed_model_is_built_again_and_so_is_its_ensemble(project: Path) -> None:
    (project / "words/model.py").write_text(WORDS.replace("FACTOR", "2"))
    models = build(project)
    assert [name for name, model in models.items() if model["action"] == "build"] == ["words", "both"]
    assert models["words"]["reasons"] == ["files words changed"]
    assert models["both"]["reasons"] == ["step words changed"]
    assert versions(project / "model_repository/words") == [1, 2]


def test_a_changed_sample_function_is_noticed(project: Path) -> None:
    with (project / "samples.py").open("a") as file:
        file.write("\n# a comment\n")
    reasons = {
        name: model["reasons"] for name, model in build(project, "--dry-run").items() if model["reasons"]
    }
    assert reasons["words"] == ["samples.py changed"]


def test_serve_changes_the_config_and_makes_no_version(project: Path) -> None:
    spec = project / "tt.yaml"
    spec.write_text(spec.read_text().replace("1ms", "3ms"))
    assert build(project, "double")["double"]["action"] == "config"
    assert (
        "max_queue_delay_microseconds: 3000" in (project / "model_repository/double/config.pbtxt").read_text()
    )
    assert versions(project / "model_repository/double") == [1]


def test_a_tampered_model_file_is_noticed(project: Path) -> None:
    (project / "model_repository/double/1/model.onnx").write_bytes(b"oops")
    reasons = build(project, "double", "--dry-run")["double"]["reasons"]
    assert reasons == ["model.onnx is not the file that was built (its SHA-256 differs)"]


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    write_project(tmp_path)
    models = build(tmp_path, "double", "--dry-run")
    assert models["double"]["action"] == "build"
    assert models["double"]["reasons"] == ["not built yet"]
    assert not (tmp_path / "model_repository").exists()


def test_a_model_that_does_not_load_is_refused_with_the_servers_reason(project: Path) -> None:
    (project / "words/model.py").write_text("import no_such_package\n")
    result = CliRunner().invoke(cli, ["build", "words", "--spec", str(project / "tt.yaml")])
    assert result.exit_code == 1
    assert "No module named 'no_such_package'" in result.stderr
    assert versions(project / "model_repository/words") == [1]
    assert not [path for path in (project / "model_repository").iterdir() if path.name.startswith(".")]


def test_making_the_same_again_makes_no_version(project: Path) -> None:
    assert build(project, "words", "--force")["words"]["version"] == 1
    assert versions(project / "model_repository/words") == [1]
    assert build(project, "words")["words"]["action"] == "unchanged"


def test_a_python_model_that_answers_otherwise_than_declared_is_refused(project: Path) -> None:
    text = WORDS.replace("FACTOR", "1").replace('pb.Tensor("x"', 'pb.Tensor("y"')
    (project / "words/model.py").write_text(text)
    result = CliRunner().invoke(cli, ["build", "words", "--spec", str(project / "tt.yaml")])
    assert result.exit_code == 1
    assert "it gives no output 'x'" in result.stderr
    assert versions(project / "model_repository/words") == [1]


def test_a_dry_run_knows_that_an_ensemble_follows_its_steps(project: Path) -> None:
    (project / "words/model.py").write_text(WORDS.replace("FACTOR", "2"))
    models = build(project, "--dry-run")
    assert models["both"]["action"] == "build"
    assert models["both"]["reasons"] == ["step words will be built"]


SCALARS = """
spec: 1
models:
  total:
    kind: onnx
    source: total.onnx
    dims: {batch: [1, 4, 8]}
    batch_dim: batch
  mean:
    kind: onnx
    source: mean.onnx
"""


def test_a_scalar_a_row_and_a_scalar_are_golden_as_they_are_served(
    tmp_path: Path, embedded_server: Callable[..., EmbeddedServer]
) -> None:
    for name, shape, out, axes in (("total", ["batch", 3], ["batch"], [1]), ("mean", [2, 3], [], [0, 1])):
        node = helper.make_node("ReduceMean", ["x", "axes"], ["y"], keepdims=0)
        graph = helper.make_graph(
            [node],
            name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
            [helper.make_tensor("axes", TensorProto.INT64, [len(axes)], axes)],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        onnx.save(model, tmp_path / f"{name}.onnx")
    (tmp_path / "tt.yaml").write_text(SCALARS)
    build(tmp_path)
    server = embedded_server(tmp_path / "model_repository")
    with TritonClient(server.grpc_url) as client:
        for name in ("total", "mean"):
            samples = read_samples(tmp_path / "model_repository" / name / "1")
            assert samples is not None
            answer = client.infer(name, samples.inputs).outputs["y"]
            assert answer.shape[-1] == 1
            np.testing.assert_allclose(answer, samples.outputs["y"], rtol=1e-6)


@pytest.mark.parametrize("text", ["{", '{"format": 2}'], ids=["damaged", "of another format"])
def test_a_passport_that_cannot_be_read_is_made_again(project: Path, text: str) -> None:
    (project / "model_repository/double/1/passport.json").write_text(text)
    assert build(project, "double")["double"]["version"] == 2


def test_with_json_a_failed_model_is_one_document(project: Path) -> None:
    (project / "double.onnx").write_bytes(b"no model")
    result = CliRunner().invoke(cli, ["build", "double", "--json", "--spec", str(project / "tt.yaml")])
    assert result.exit_code == 1
    (model,) = json.loads(result.stdout)["models"]
    assert model["action"] == "failed"
    assert model["error"]["message"] in result.stderr


def test_only_config_of_a_stale_model_writes_its_config(project: Path) -> None:
    spec = project / "tt.yaml"
    spec.write_text(spec.read_text().replace("1ms", "3ms").replace("batch: [1, 4, 8]", "batch: [1, 4, 7]"))
    assert build(project, "double", "--only", "config")["double"]["action"] == "config"
    assert (
        "max_queue_delay_microseconds: 3000" in (project / "model_repository/double/config.pbtxt").read_text()
    )


def test_what_a_killed_build_left_is_removed(project: Path) -> None:
    left = project / "model_repository/.tt-staging-killed"
    (left / "3").mkdir(parents=True)
    build(project, "double")
    assert not left.exists()


@pytest.mark.parametrize(
    ("times", "problem"),
    [
        ("", "changed while the model was built"),
        (", (4e9, 4e9)", "is dated in the future, so it cannot be told"),
    ],
    ids=["changed", "future"],
)
def test_a_file_that_may_have_changed_during_a_build_fails_it(
    project: Path, times: str, problem: str
) -> None:
    (project / "samples.py").write_text(
        f"import os\nimport numpy as np\n\ndef text():\n    os.utime(__file__{times})\n"
        "    return {'text': np.array([[b'a']], dtype=object)}\n"
    )
    result = CliRunner().invoke(cli, ["build", "words", "--spec", str(project / "tt.yaml")])
    assert result.exit_code == 1
    assert f"words: samples.py {problem}" in result.stderr
    assert versions(project / "model_repository/words") == [1]


def test_a_name_that_tt_uses_in_version_folders_is_refused(project: Path) -> None:
    (project / "words/samples.npz").write_bytes(b"")
    result = CliRunner().invoke(cli, ["build", "words", "--spec", str(project / "tt.yaml")])
    assert result.exit_code == 2
    assert "words has a samples.npz, a name that tt uses" in result.stderr
