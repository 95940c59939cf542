"""What a model's variants ask of its export."""

from __future__ import annotations

import pytest

from tests.unit.build.helpers import ProjectOf
from triton_toolkit._progress import Silent
from triton_toolkit.build.exported import ExportRecipe
from triton_toolkit.build.run import recipe_for

DYNAMIC = "dynamic: {precision: int8-dynamic}"


def recipe_of(project_of: ProjectOf, variants: str, name: str = "m") -> ExportRecipe:
    context = project_of(f"m: {{kind: onnx, source: m.onnx, variants: {{{variants}}}, also: []}}")
    recipe = recipe_for(context, name)
    assert isinstance(recipe, ExportRecipe)
    return recipe


@pytest.mark.parametrize(("variants", "served"), [(DYNAMIC, False), (f"fp32: {{}}, {DYNAMIC}", True)])
def test_the_metric_of_the_fp32_file_is_measured_where_it_is_a_variant(
    project_of: ProjectOf, variants: str, served: bool
) -> None:
    assert recipe_of(project_of, variants).export_job(Silent()).served is served


def test_an_export_without_its_metric_is_none_of_a_model_that_serves_it(project_of: ProjectOf) -> None:
    alone = recipe_of(project_of, DYNAMIC).key()
    assert alone["served"] == "no"
    assert "served" not in recipe_of(project_of, f"fp32: {{}}, {DYNAMIC}").key()


@pytest.mark.parametrize(
    ("kinds", "on_cpu", "on_gpu"),
    [
        ("", "True", "True"),
        ("{count: 2}", "True", "True"),
        ("{kind: KIND_CPU}", "True", "False"),
        ("{kind: KIND_GPU}", "False", "True"),
        ("{kind: KIND_CPU}, {kind: KIND_GPU}", "True", "True"),
    ],
)
def test_a_variant_depends_on_the_devices_that_it_is_served_on(
    project_of: ProjectOf, kinds: str, on_cpu: str, on_gpu: str
) -> None:
    context = project_of(
        f"m: {{kind: onnx, source: m.onnx, variants: {{{DYNAMIC}}}, serve: {{instance_group: [{kinds}]}}}}"
    )
    key = recipe_for(context, "m").key()
    assert (key["on cpu"], key["on gpu"]) == (on_cpu, on_gpu)
