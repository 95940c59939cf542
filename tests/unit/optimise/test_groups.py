import numpy as np

from tests.unit.optimise.fp16_models import normal, write
from tests.unit.optimise.int8_models import convnet
from triton_toolkit.optimise.groups import group_layers


def test_a_layer_is_a_node_with_weights_and_what_follows_it(tmp_path):
    found = {group.name: group.nodes for group in group_layers(convnet(tmp_path / "m.onnx"))}
    assert found == {
        "c1": ("c1", "r1"),
        "c2": ("c2", "sum", "r2", "pooled", "flat"),
        "head": ("head",),
    }


def test_what_comes_before_the_first_layer_is_a_group_of_its_own(tmp_path):
    full = write(
        tmp_path / "m.onnx",
        "(float[N,4] x) => (float[N,4] y) { a = Mul(x, x) b = Neg(a) c = MatMul(b, w) y = Add(c, a) }",
        w=normal(1, 4, 4),
    )
    assert [(g.name, g.nodes) for g in group_layers(full)] == [
        ("(before the first layer)", ("a", "b")),
        ("c", ("c", "y")),
    ]


def test_an_embedding_is_a_layer(tmp_path):
    full = write(
        tmp_path / "m.onnx",
        "(int64[N] i) => (float[N,4] y) { a = Gather(table, i) y = Relu(a) }",
        table=normal(1, 9, 4),
    )
    assert [(g.name, g.nodes) for g in group_layers(full)] == [("a", ("a", "y"))]


def test_layers_that_are_not_in_question_are_left_out(tmp_path):
    found = group_layers(convnet(tmp_path / "m.onnx"), lowered=["r1", "head"])
    assert [group.name for group in found] == ["c1", "head"]


def test_what_a_branch_reads_from_outside_counts(tmp_path):
    full = write(
        tmp_path / "m.onnx",
        """(float[N,4] x, bool c) => (float[N,4] y) {
          a = MatMul(x, w)
          y = If(c) <then_branch = t () => (float[N,4] p) { p = Neg(a) },
                     else_branch = e () => (float[N,4] q) { q = Abs(a) }> }""",
        w=np.eye(4, dtype=np.float32),
    )
    assert [(g.name, g.nodes) for g in group_layers(full)] == [("a", ("a", "y"))]
