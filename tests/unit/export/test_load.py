"""Every kind of source, through the exporter: nested, optional and renamed inputs and outputs included."""

import numpy as np
import onnx
import pytest

from triton_toolkit.errors import ExportError
from triton_toolkit.export.session import Session
from triton_toolkit.repository.passport import read_samples

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
]


class Attention(torch.nn.Module):
    """Takes a nested past and an optional mask, gives nested outputs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x, past=None, mask=None):
        y = self.linear(x)
        states = [y]
        for layer in past or ():
            y = y + layer["key"] * layer["value"]
            states.append(y)
        return {"last": y if mask is None else y * mask, "states": tuple(states), "cache": None}


NESTED = """
import torch
from tests.unit.export.test_load import Attention as model

def sample():
    one = torch.ones(2, 4)
    return {"x": one, "past": ({"key": one, "value": one * 2},), "mask": None}
"""
NAMES = ("x", "past.0.key", "past.0.value")


def nested(project, **changes):
    inputs = tuple(project.tensor(name, "batch", 4) for name in NAMES)
    outputs = {"states.1": (None, None), "last": (None, None)}
    return project.run(inputs=inputs, outputs=outputs, batch_dim="batch", **changes)


def save_program(path, *, batch=True):
    dim = {0: torch.export.Dim("rows", min=1, max=16)} if batch else {}
    x, key, value = (
        torch.zeros(3, 4),
        torch.ones(3, 4),
        torch.ones(3, 4),
    )  # one tensor twice would be one input
    program = torch.export.export(
        Attention().eval(),
        (x,),
        {"past": [{"key": key, "value": value}]},
        dynamic_shapes={"x": dim, "past": [{"key": dim, "value": dim}]},
    )
    torch.export.save(program, path)


@pytest.mark.parametrize("source", ["nets:model", "models/net.pt2"])
def test_nested_values_are_served_under_stable_names(project, source):
    project.write(NESTED)
    (project.root / "models").mkdir()
    save_program(project.root / "models" / "net.pt2")
    report = nested(project, source=source, sample="nets:sample")
    assert [tensor.name for tensor in report.inputs] == list(NAMES)
    assert [(tensor.name, tensor.shape) for tensor in report.outputs] == [
        ("states.1", ("batch", 4)),
        ("last", ("batch", 4)),
    ]
    graph = onnx.load(project.out / "model.onnx").graph
    assert [value.name for value in graph.input] == list(NAMES)
    assert report.dependencies == (["nets.py"] if ":" in source else ["models/net.pt2", "nets.py"])
    samples = read_samples(project.out)
    assert {name: float(array.flat[0]) for name, array in samples.inputs.items()} == dict(
        zip(NAMES, (1.0, 1.0, 2.0), strict=True)
    )
    x = np.ones((2, 4), np.float32)
    with torch.no_grad():
        wanted = Attention()(torch.ones(2, 4), [{"key": torch.ones(2, 4) * 2, "value": torch.ones(2, 4) * 3}])
    given = Session(project.out / "model.onnx").predict({"x": x, "past.0.key": x * 2, "past.0.value": x * 3})
    np.testing.assert_allclose(given["last"], wanted["last"], rtol=1e-5)


def test_a_program_with_a_fixed_batch_is_told_at_the_sizes_where_it_fails(project):
    save_program(project.root / "net.pt2", batch=False)
    with pytest.raises(ExportError) as caught:
        nested(project, source="net.pt2")
    assert "fails at batch=" in caught.value.message
    assert "size()[0] == 3" in caught.value.message


class Branching(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x, scale: float = 2.0):
        y = self.linear(x)
        if x.shape[0] > 3:
            y = y * scale
        for i in range(x.shape[0]):
            y = y + i
        return y


def test_torchscript_keeps_its_control_flow(project):
    torch.jit.script(Branching().eval()).save(project.root / "net.pt")
    report = project.run(source="net.pt", outputs={"y": (None, ["batch", 3])})
    assert report.dependencies == ["net.pt"]
    assert "because the other refused: it is TorchScript" in report.notes[0]
    session = Session(project.out / "model.onnx")
    for rows in (2, 5):
        x = np.ones((rows, 4), np.float32)
        with torch.no_grad():
            wanted = Branching()(torch.from_numpy(x))
        np.testing.assert_allclose(session.predict({"x": x})["y"], wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("models/net.pt", "there is no file or folder 'models/net.pt'; did you mean 'net.pt2'?"),
        ("modles/net.pt2", "there is no file or folder 'modles/net.pt2'"),
        ("./bert", "bert has no config.json, so it is no Hugging Face model folder"),
    ],
)
def test_a_path_that_leads_nowhere_is_told(project, source, message):
    (project.root / "models").mkdir()
    (project.root / "models" / "net.pt2").write_bytes(b"")
    (project.root / "bert").mkdir()
    with pytest.raises(ExportError) as caught:
        project.run(source=source)
    assert message in caught.value.message


@pytest.mark.parametrize("trust", [False, True])
def test_functions_may_not_load_pickles_unless_trusted(project, monkeypatch, trust):
    monkeypatch.chdir(project.root)
    torch.save({"x": np.ones((4, 4), np.float32), "made by": Attention()}, "data.bin")
    project.write(
        "import torch\ndef sample():\n    return {'x': torch.load('data.bin', weights_only=False)['x']}\n"
    )
    wanted = {"kind": "sample", "sample": "nets:sample", "trust": trust}
    if trust:
        assert project.run(**wanted).dependencies == ["data.bin", "nets.py"]
        return
    with pytest.raises(ExportError) as caught:
        project.run(**wanted)
    assert caught.value.message.startswith("nets:sample raised: UnpicklingError: Weights only load failed")
    assert "trust: true" in caught.value.hint
