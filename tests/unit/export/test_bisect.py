"""Every exporter and opset on one model."""

from __future__ import annotations

import pytest

from triton_toolkit._progress import Silent
from triton_toolkit.errors import ExportError
from triton_toolkit.export.bisect import bisect, combinations
from triton_toolkit.export.context import Context

ATTENTION = "return F.scaled_dot_product_attention(x, x, x)"


@pytest.mark.parametrize(
    ("highest", "tried"),
    [
        (25, [("dynamo", n) for n in (21, 20, 19, 18, 17)] + [("torchscript", n) for n in (20, 19, 18, 17)]),
        (17, [("dynamo", 17), ("torchscript", 17)]),
        (13, [("dynamo", 13), ("torchscript", 13)]),
    ],
)
def test_what_is_tried(highest, tried):
    assert list(combinations(highest)) == tried


@pytest.mark.torch
def test_right_and_refused_combinations_are_told_apart_and_nothing_is_left(project):
    project.net(ATTENTION)
    out = project.root / "scratch"
    out.mkdir()
    job = project.job(inputs=(project.tensor("x", "batch", 3, 4),), opset=17)
    dynamo, script = bisect(Context(job, out, Silent(), project.files))
    assert (dynamo.exporter, dynamo.opset, dynamo.outcome, dynamo.largest_error) == (
        "dynamo",
        17,
        "refused",
        None,
    )
    assert "only 4D query" in dynamo.text
    assert (script.exporter, script.outcome, script.text) == ("torchscript", "right", "")
    assert script.largest_error < 1e-5
    assert list(out.iterdir()) == []


@pytest.mark.torch
def test_a_wrong_combination_is_tried_without_optimizations_too(project):
    project.net("return self.linear(x) * 2 if x.shape[0] == 7 else self.linear(x)")
    out = project.root / "scratch"
    out.mkdir()
    trials = bisect(Context(project.job(opset=17), out, Silent(), project.files))
    assert [(t.exporter, t.optimized, t.outcome) for t in trials] == [
        ("dynamo", True, "wrong"), ("dynamo", False, "wrong"),
        ("torchscript", True, "wrong"), ("torchscript", False, "wrong"),
    ]  # fmt: skip
    assert all("at batch=7" in trial.text for trial in trials)


@pytest.mark.torch
def test_a_model_that_fails_itself_is_an_error(project):
    project.net("return self.linear(x).view(4, 3)")
    out = project.root / "scratch"
    out.mkdir()
    with pytest.raises(ExportError, match="forward fails at batch=2"):
        bisect(Context(project.job(opset=17), out, Silent(), project.files))
