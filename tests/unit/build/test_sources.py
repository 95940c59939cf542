"""A source that is a path is looked for when the spec is, with its line."""

from __future__ import annotations

import pytest

from tests.unit.build.helpers import ProjectOf
from triton_toolkit.build.run import recipe_for
from triton_toolkit.errors import SpecError

MODEL = """
m:
  source: {source}
  inputs: {{x: {{shape: [4]}}}}
"""


@pytest.mark.parametrize(
    ("source", "meant"),
    [
        ("models/enocder.pt2", "; did you mean 'models/encoder.pt2'?"),
        ("./encoder.pt2", ""),
        ("modles/x.pt", ""),
    ],
)
def test_a_path_that_is_not_there_is_a_fault_of_the_spec(
    project_of: ProjectOf, source: str, meant: str
) -> None:
    context = project_of(MODEL.format(source=source))
    (context.project.root / "models").mkdir()
    (context.project.root / "models" / "encoder.pt2").write_text("")
    with pytest.raises(SpecError) as caught:
        recipe_for(context, "m")
    assert caught.value.message.endswith(f"models.m.source: there is no file or folder {source!r}{meant}")
    assert "tt.yaml:5:" in caught.value.message


def test_a_path_that_is_there_and_a_function_are_left_to_the_build(project_of: ProjectOf) -> None:
    context = project_of(
        MODEL.format(source="./hf") + MODEL.format(source="nets:model").replace("m:\n", "n:\n")
    )
    (context.project.root / "hf").mkdir()
    assert recipe_for(context, "m").name == "m"
    assert recipe_for(context, "n").name == "n"
