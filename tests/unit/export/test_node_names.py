import onnx
import pytest

from triton_toolkit.export.node_names import name_nodes

pytestmark = pytest.mark.torch

INNER = """\
last = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
self.features = nn.Sequential(nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2), last)
self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
self.head = nn.Linear(4, 3)
self.head.weight.data *= 2
"""
FORWARD = """\
y = self.features(x)
for block in self.blocks:
    y = block(y)
y = y.flatten(0, 1)
return self.head(y) + self.head(y.neg())
"""


def names(project):
    return [node.name for node in onnx.load(project.out / "model.onnx").graph.node]


def calls(given):
    return [name for name in given if not any(op in name for op in ("Constant", "Reshape", "Flatten"))]


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_nodes_are_named_after_their_modules_and_operators(project, exporter):
    project.net(FORWARD, init=INNER)
    project.run(inputs=(project.tensor("x", "batch", 2, 4),), exporter=exporter)
    given = names(project)
    assert calls(given) == [
        "/features/0/Conv",
        "/features/2/0/MatMul",
        "/features/2/0/Add",
        "/features/2/1/Relu",
        "/blocks/0/MatMul",
        "/blocks/0/Add",
        "/blocks/1/MatMul",
        "/blocks/1/Add",
        "/head/Gemm",
        "/Neg",
        "/head/Gemm_1",
        "/Add",
    ]
    assert len(set(given)) == len(given)


def test_a_module_called_model_keeps_its_name(project):
    project.net("return self.model(x)", init="self.model = nn.Sequential(nn.Linear(4, 3))")
    project.run()
    assert names(project) == ["/model/0/Gemm"]


def test_a_weight_that_two_layers_share_does_not_move_a_node(project):
    project.net(
        "return self.head(self.first(x))",
        init="self.first = nn.Linear(4, 4, bias=False)\nself.head = nn.Linear(4, 4, bias=False)\n"
        "self.head.weight = self.first.weight",
    )
    project.run()
    assert [name.rpartition("/")[0] for name in calls(names(project))] == ["/first", "/head"]


def graph(*nodes):
    made = [onnx.helper.make_node(op, ["x"], [f"y{n}"], name=name) for n, (op, name) in enumerate(nodes)]
    return onnx.helper.make_model(onnx.helper.make_graph(made, "g", [], []))


def test_calls_that_a_trace_counts_are_those_of_their_module():
    model = graph(
        ("Relu", "/model/enc/enc.0/enc.0.1/fc/Relu"),
        ("Relu", "/model/enc/enc.0/enc.0.1/fc_1/Relu"),
        ("Relu", "/model/act_1/Relu"),
        ("Relu", "/model/key/Relu"),
        ("Cast", "Cast_7"),
        ("Cast", ""),
    )
    name_nodes(model, ["", "enc", "enc.0", "enc.0.1", "enc.0.1.fc", "act_1", "act", "table", "table.key"])
    assert [node.name for node in model.graph.node] == [
        "/enc/0/1/fc/Relu",
        "/enc/0/1/fc/Relu_1",
        "/act_1/Relu",
        "/table/key/Relu",
        "/Cast",
        "/Cast_1",
    ]


def test_nodes_in_branches_have_names_of_their_own():
    model, inner = graph(("Relu", "/model/Relu")), graph(("Relu", "/model/Relu")).graph
    model.graph.node.append(onnx.helper.make_node("If", ["c"], ["z"], then_branch=inner))
    name_nodes(model, [""])
    assert [model.graph.node[1].name, model.graph.node[1].attribute[0].g.node[0].name] == ["/If", "/Relu_1"]
