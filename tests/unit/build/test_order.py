"""Which models are built, and in which order."""

from __future__ import annotations

import pytest

from tests.unit.build.helpers import ProjectOf
from triton_toolkit._progress import Silent
from triton_toolkit.build.plan import build_order
from triton_toolkit.build.run import BuildOptions, run_build
from triton_toolkit.errors import SpecError

MODELS = """
    outer: {kind: ensemble, steps: [inner, c]}
    inner: {kind: ensemble, steps: [a, b]}
    a: {kind: onnx, source: a.onnx}
    b: {kind: onnx, source: b.onnx}
    c: {kind: onnx, source: c.onnx}
    alone: {kind: onnx, source: d.onnx}
"""


def test_steps_come_before_their_ensembles(project_of: ProjectOf) -> None:
    order = build_order(project_of(MODELS).project, [])
    assert order == ["a", "b", "c", "alone", "inner", "outer"]


def test_a_named_ensemble_brings_its_steps_and_nothing_else(project_of: ProjectOf) -> None:
    assert build_order(project_of(MODELS).project, ["inner"]) == ["a", "b", "inner"]


def test_unknown_model_offers_a_near_one(project_of: ProjectOf) -> None:
    with pytest.raises(SpecError, match="no model 'innner'; did you mean 'inner'"):
        build_order(project_of(MODELS).project, ["innner"])


def test_unknown_step_names_its_line(project_of: ProjectOf) -> None:
    context = project_of("e: {kind: ensemble, steps: [missing]}")
    with pytest.raises(SpecError, match=r"tt.yaml:3:\d+: models.e.steps\[0\]: no model 'missing'"):
        build_order(context.project, [])


def test_ensembles_that_contain_each_other_are_refused(project_of: ProjectOf) -> None:
    context = project_of("""
        a: {kind: ensemble, steps: [b]}
        b: {kind: ensemble, steps: [a]}
    """)
    with pytest.raises(SpecError, match=r"ensembles contain each other: [ab] -> [ab] -> [ab]"):
        build_order(context.project, [])


class Notes(Silent):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, subject: str, text: str) -> None:
        self.texts.append(f"{subject}: {text}")


def test_variants_that_no_build_makes_are_told(project_of: ProjectOf) -> None:
    project = project_of("""
        a:
          {kind: onnx, source: a.onnx, also: [fp16],
           variants: {fp32: {}, fp16: {precision: fp16}, dynamic: {precision: int8-dynamic}}}
        b: {kind: onnx, source: b.onnx, variants: {dynamic: {precision: int8-dynamic}}}
    """).project
    for name in ("a.onnx", "b.onnx"):
        (project.root / name).write_bytes(b"")
    notes = Notes()
    run_build(project, BuildOptions(dry_run=True), notes)
    told = [text for text in notes.texts if "variant" in text]
    assert told == ["a: variant dynamic is not built: list it under also, or make it serve_variant"]
