"""Models that come as files, and what keeps their code from running."""

import json
import os
import pickle
import shutil
import zipfile

import numpy as np
import pytest

from triton_toolkit.errors import ExportError
from triton_toolkit.export.checkpoints import FileKind, file_kind, load_file
from triton_toolkit.export.original import Original
from triton_toolkit.export.trust import loading

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
]


class Net(torch.nn.Module):
    """Takes nested values, an optional one, and a flag."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x, flag=True, past=None):
        y = self.linear(x)
        if past is not None:
            y = y + past["key"][0]
        return {"y": y if flag else -y}


class Evil:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (os.mkdir, ("evil",))


X, KEY = np.float32([[1, 2, 3, 4]]), np.float32([[10, 20, 30]])


def save_program(path, **inputs):
    program = torch.export.export(Net().eval(), (torch.from_numpy(X),), inputs)
    torch.export.save(program, path)
    return path


def save_script(path):
    torch.jit.script(torch.nn.Linear(4, 3)).save(path)
    return path


def load(project, path, *, trust=False):
    with loading(trust=trust):
        return load_file(path, path.name, trust=trust, files=project.files)


def predict(project, module, **arrays):
    return Original(module, list(arrays), [], project.files).predict(arrays)


@pytest.mark.parametrize("name", ["net.pt2", "net.pt"])
def test_a_program_is_called_by_the_names_of_its_inputs(project, name):
    past = {"key": [torch.from_numpy(KEY)]}
    path = save_program(project.root / "net.pt2", past=past, flag=False)
    module = load(project, path.rename(project.root / name))
    with torch.no_grad():
        wanted = Net()(torch.from_numpy(X), False, past)["y"]
    given = predict(project, module, **{"past.key.0": KEY, "x": X})
    np.testing.assert_array_equal(given["y"], wanted)
    assert not module.training


def test_a_program_refuses_inputs_that_it_does_not_have(project):
    module = load(project, save_program(project.root / "net.pt2"))
    with pytest.raises(ExportError, match=r"do not fit the program's forward\(x\)"):
        predict(project, module, x=X, past=KEY)


@pytest.mark.parametrize("name", ["net.ts", "net.pt"])
def test_torchscript_is_called_by_the_names_of_its_schema(project, name):
    module = load(project, save_script(project.root / name))
    assert isinstance(module, torch.jit.ScriptModule)
    given = predict(project, module, input=X)
    weight, bias = (parameter.detach().numpy() for parameter in module.parameters())
    np.testing.assert_allclose(given["output"], X @ weight.T + bias, rtol=1e-5)
    with pytest.raises(ExportError, match=r"do not fit Linear.forward\(input\)"):
        predict(project, module, a=X, b=X)


def test_a_pickled_module_runs_only_where_it_is_trusted(project, monkeypatch):
    monkeypatch.chdir(project.root)
    path = project.root / "net.pt"
    torch.save({"model": Evil()}, path)
    with pytest.raises(ExportError) as caught:
        load(project, path)
    assert (
        caught.value.message
        == "net.pt holds pickled objects, which run code of their own when they are loaded"
    )
    assert "torch.save(model.state_dict(), …)" in caught.value.hint
    assert "trust: true" in caught.value.hint
    assert not (project.root / "evil").exists()
    with pytest.raises(ExportError, match=r"net\.pt holds a dict with 'model', not a model"):
        load(project, path, trust=True)
    assert (project.root / "evil").exists()


def test_a_trusted_module_finds_its_class_in_the_project(project):
    project.net()
    path = project.root / "net.pt"
    project.write("import nets, torch\ntorch.save(nets.Net().train(), 'net.pt')\n", "save.py")
    import subprocess
    import sys

    subprocess.run([sys.executable, "save.py"], cwd=project.root, check=True)
    module = load(project, path, trust=True)
    assert type(module).__name__ == "Net"
    assert not module.training


@pytest.mark.parametrize("trust", [False, True])
def test_weights_alone_are_no_model(project, trust):
    path = project.root / "net.pt"
    torch.save(torch.nn.Linear(4, 3).state_dict(), path)
    with pytest.raises(ExportError) as caught:
        load(project, path, trust=trust)
    assert caught.value.message == "net.pt holds weights alone (a state_dict of 2 tensors), not a model"
    assert "examples.digits:model" in caught.value.hint


def test_a_program_with_a_pickle_inside_is_refused(project, monkeypatch):
    """torch.export.load falls back to unpickling example inputs, whatever they hold."""
    monkeypatch.chdir(project.root)
    path = save_program(project.root / "net.pt2")
    evil = project.root / "changed.pt2"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(evil, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if "sample_inputs" in name:
                torch.save(((Evil(),), {}), project.root / "inputs")
                data = (project.root / "inputs").read_bytes()
            target.writestr(name, data)
    with pytest.raises(ExportError, match=r"changed.pt2 cannot be loaded by PyTorch 2\."):
        load(project, evil)
    assert not (project.root / "evil").exists()


@pytest.mark.parametrize("name", ["data/aotinductor/model/code.so", "data/constants/opaque_obj_0"])
def test_a_program_with_code_inside_is_refused(project, name):
    path = save_program(project.root / "net.pt2")
    with zipfile.ZipFile(path, "a") as archive:
        top = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{top}/{name}", b"")
    with pytest.raises(ExportError) as caught:
        load(project, path)
    assert f"{name} runs code of its own when it is loaded" in caught.value.message


def test_the_names_of_code_in_programs_are_those_of_pytorch():
    from torch.export.pt2_archive import constants

    from triton_toolkit.export import checkpoints

    assert constants.AOTINDUCTOR_DIR == checkpoints._NATIVE_CODE
    assert constants.OPAQUE_OBJ_FILENAME_PREFIX.startswith(checkpoints._PICKLED_OBJECT)


@pytest.mark.parametrize(
    ("name", "content", "message", "hint"),
    [
        ("net.onnx", b"", "holds an ONNX file", "kind: onnx"),
        ("net.safetensors", b"", "holds weights", "name a function"),
        (
            "net.pt",
            b"version https://git-lfs.github.com/spec/v1\n",
            "holds a Git LFS pointer",
            "git lfs pull",
        ),
        ("net.pt", b"PK\x03\x04 broken", "holds nothing that is known", "torch.export.save"),
        ("net.pt", pickle.dumps(Evil(), protocol=2), "holds pickled objects", "trust: true"),
    ],
)
def test_other_files_are_told_what_they_are(project, monkeypatch, name, content, message, hint):
    monkeypatch.chdir(project.root)
    path = project.root / name
    path.write_bytes(content)
    with pytest.raises(ExportError) as caught:
        load(project, path)
    assert caught.value.message.startswith(f"{name} {message}")
    assert hint in caught.value.hint


def test_a_cut_file_is_told_with_the_versions(project):
    path = save_script(project.root / "net.ts")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(project.root / "cut.ts", "w") as target:
        for name in source.namelist():
            if not name.endswith("data.pkl"):
                target.writestr(name, source.read(name))
    with pytest.raises(
        ExportError, match=r"cut.ts cannot be loaded by PyTorch 2\.\S+ on Python 3\.\d+: Runtime"
    ):
        load(project, project.root / "cut.ts")


def test_weights_only_wins_over_what_the_code_says(project, monkeypatch):
    """A factory that loads with weights_only=False is refused as well, and nothing stays set."""
    monkeypatch.chdir(project.root)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    path = project.root / "net.pt"
    torch.save(Evil(), path)
    with loading(trust=False), pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=False)

    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ
    assert os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] == "1"


def test_kinds_are_read_off_the_content(project, tmp_path):
    torch.save({}, tmp_path / "c")
    assert file_kind(tmp_path / "c") is FileKind.PICKLE
    assert file_kind(shutil.copy(save_program(tmp_path / "p.pt2"), tmp_path / "p")) is FileKind.PROGRAM
    assert file_kind(save_script(tmp_path / "s")) is FileKind.SCRIPT
    (tmp_path / "j").write_text(json.dumps({}))
    assert file_kind(tmp_path / "j") is FileKind.UNKNOWN
