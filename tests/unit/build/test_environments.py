"""Models whose requirements exclude each other are built in one go, each in an environment of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.build.helpers import ProjectOf
from tests.unit.export.environments import link_packages, make_environment, make_wheel, site_packages
from triton_toolkit._progress import Silent
from triton_toolkit.build.run import BuildOptions, run_build
from triton_toolkit.export.interpreters import inspect_interpreter
from triton_toolkit.repository.passport import MISSING, read_samples
from triton_toolkit.spec.load import load_project

pytestmark = pytest.mark.torch

OF_TT = ("onnxruntime", "pydantic", "click", "tritonclient", "yaml", "rich")

CODE = f"""
import importlib.util
import numpy as np
import tinylib
import torch

present = [name for name in {OF_TT} if importlib.util.find_spec(name)]
if present:
    raise RuntimeError(f"packages of tt are seen here: {{present}}")

class Scale(torch.nn.Module):
    def forward(self, x):
        return x * tinylib.FACTOR

def sample(batch):
    return {{"x": np.full((batch, 2), tinylib.FACTOR, np.float32)}}

def metric(predict):
    return float(predict({{"x": np.ones((1, 2), np.float32)}})["y"][0, 0]) / tinylib.FACTOR
"""

MODEL = """
{name}:
  source: nets:Scale
  sample: nets:sample
  env: {{{env}}}
  inputs: {{x: {{shape: [batch, 2]}}}}
  outputs: {{y: {{shape: [batch, 2]}}}}
  dims: {{batch: [1, 2, 4]}}
  batch_dim: batch
  accuracy: {{metric: nets:metric}}
"""


def tinylib(factor: int) -> dict[str, str]:
    return {"tinylib.py": f"FACTOR = {factor}\n"}


@pytest.fixture
def two(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a project of two models that need tinylib 1 and tinylib 2, by an interpreter and by a lock."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    torch = tmp_path_factory.mktemp("torch")
    link_packages(torch, "torch", "onnx", "onnxscript")
    link = f"import sys; sys.path.append({str(torch)!r})\n"
    make_environment(tmp_path / "envs" / "one")
    installed = site_packages(tmp_path / "envs" / "one")
    (installed / "link.pth").write_text(link)
    install(installed, 1)
    make_wheel(tmp_path, "tinylib", "2.0", tinylib(2))
    make_wheel(tmp_path, "link", "1.0", {"link.pth": link})
    (tmp_path / "envs" / "two.lock").write_text(
        "./tinylib-2.0-py3-none-any.whl\n./link-1.0-py3-none-any.whl\n"
    )
    (tmp_path / "nets.py").write_text(CODE)
    return tmp_path


def install(site: Path, version: int) -> None:
    for name, text in tinylib(version).items():
        (site / name).write_text(text)
    for old in site.glob("tinylib-*.dist-info"):
        (old / "METADATA").unlink()
        old.rmdir()
    info = site / f"tinylib-{version}.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tinylib\nVersion: {version}.0\n")


def test_two_models_of_one_project_need_different_versions(two: Path, project_of: ProjectOf) -> None:
    models = MODEL.format(name="one", env="python: envs/one/bin/python")
    project_of(models + MODEL.format(name="two", env="lock: envs/two.lock"))
    project = load_project(two / "tt.yaml")
    reports = {report.name: report for report in run_build(project, BuildOptions(), Silent())}
    for name, factor in (("one", 1), ("two", 2)):
        assert reports[name].error is None
        samples = read_samples(project.repository / name / "1")
        assert samples is not None
        assert samples.outputs["y"].tolist() == [[factor * factor] * 2] * 2
        passport = reports[name].passport
        assert passport is not None
        assert passport.accuracy["exported"] == 1.0
        read = {name for name, state in passport.dependencies.items() if state != MISSING}
        assert read == {"nets.py"}
        assert {"torch", "onnxruntime"} <= passport.tools.keys()
        assert "tool environment" in passport.key
        assert "tool torch" not in passport.key

    def decided() -> dict[str, tuple[str, tuple[str, ...]]]:
        inspect_interpreter.cache_clear()
        again = run_build(project, BuildOptions(dry_run=True), Silent())
        return {report.name: (report.action, report.reasons) for report in again}

    assert decided() == {"one": ("unchanged", ()), "two": ("unchanged", ())}
    install(site_packages(two / "envs" / "one"), 3)
    assert decided() == {"one": ("build", ("tool environment changed",)), "two": ("unchanged", ())}
    with (two / "envs" / "two.lock").open("a") as lock:
        lock.write("# another line\n")
    (two / "envs" / "one" / "bin" / "python").unlink()
    assert decided() == {"one": ("unchanged", ()), "two": ("build", ("tool environment changed",))}


def test_a_sample_alone_needs_its_environment_too(two: Path, project_of: ProjectOf) -> None:
    (two / "files").mkdir()
    (two / "files" / "model.py").write_text("")
    context = project_of("""
        lost:
          kind: python
          files: files
          sample: nets:sample
          env: {python: envs/three/bin/python}
          inputs: {x: {shape: [1]}}
          outputs: {y: {dtype: fp32, shape: [1]}}
    """)
    (report,) = run_build(context.project, BuildOptions(), Silent())
    assert report.error is not None
    assert report.error.exit_code == 3
    assert report.error.message == "lost: env: the interpreter envs/three/bin/python does not exist"
