import pytest
from onnx import helper, save

from triton_toolkit.errors import ExportError
from triton_toolkit.optimise.patterns import matching_nodes

NODES = (
    "/features/0/Conv",
    "/features/2/Relu",
    "/features/10/Conv",
    "/head/Gemm",
    "/head/fc/Gemm",
    "/header/Gemm",
    "/Add",
    "/Add_1",
    "plain",
)


def write(tmp_path, names=NODES):
    nodes = [helper.make_node("Relu", ["x"], [f"value_{n}"], name=name) for n, name in enumerate(names)]
    path = tmp_path / "model.onnx"
    save(helper.make_model(helper.make_graph(nodes, "g", [], [])), path)
    return path


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("head", ["/head/Gemm", "/head/fc/Gemm"]),
        ("head.*", ["/head/Gemm", "/head/fc/Gemm"]),
        ("/head/*", ["/head/Gemm", "/head/fc/Gemm"]),
        ("head.fc", ["/head/fc/Gemm"]),
        ("/head/Gemm", ["/head/Gemm"]),
        ("features.0", ["/features/0/Conv"]),
        ("features.[02]", ["/features/0/Conv", "/features/2/Relu"]),
        ("*.Conv", ["/features/0/Conv", "/features/10/Conv"]),
        ("/Add", ["/Add"]),
        ("plain", ["plain"]),
        ("value_3", ["/head/Gemm"]),
    ],
)
def test_modules_nodes_and_tensors_name_nodes(tmp_path, pattern, named):
    assert matching_nodes(write(tmp_path), [pattern]) == {name: f"keep: {pattern}" for name in named}


@pytest.mark.parametrize(
    ("pattern", "near"),
    [("/Head/*", "head, header"), ("feature.0", "features.0"), ("features.1", "features.10")],
)
def test_a_pattern_without_nodes_names_near_modules(tmp_path, pattern, near):
    with pytest.raises(ExportError, match="keep: no node of") as caught:
        matching_nodes(write(tmp_path), [pattern])
    assert caught.value.hint.startswith(f"near is {near}")
    assert caught.value.hint.endswith(
        "modules with nodes are features.0, features.2, features.10, head, head.fc, header, "
        "/Add, /Add_1, plain"
    )


def test_twenty_modules_are_shown(tmp_path):
    path = write(tmp_path, [f"/layer{n}/Relu" for n in range(23)])
    with pytest.raises(ExportError) as caught:
        matching_nodes(path, ["zzz"])
    assert caught.value.hint.startswith("modules with nodes are layer0, layer1, ")
    assert caught.value.hint.endswith(", layer19, and 3 more")


def test_a_file_without_modules_shows_its_nodes(tmp_path):
    with pytest.raises(ExportError) as caught:
        matching_nodes(write(tmp_path, ["a", ""]), ["zzz"])
    assert caught.value.hint == "its nodes are a, value_1"
