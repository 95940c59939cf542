"""The wiring of ensembles, checked before Triton does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.build.helpers import ProjectOf, put_passport
from triton_toolkit._progress import Silent
from triton_toolkit.build.ensemble import EnsembleRecipe
from triton_toolkit.build.recipe import Context, Made
from triton_toolkit.errors import SpecError
from triton_toolkit.repository.passport import write_passport

TEXT = """
    tok: {kind: onnx, source: a.onnx}
    enc: {kind: onnx, source: b.onnx}
    text: {kind: ensemble, steps: STEPS}
"""


def make(context: Context, folder: Path) -> Made:
    """Wire the ensemble ``text``."""
    model = context.project.model("text")
    assert model.kind == "ensemble"
    return EnsembleRecipe(context, "text", model).make(folder, Silent())


def text_project(project_of: ProjectOf, steps: str = "[tok, enc]", more: str = "") -> Context:
    """Return a project of a tokenizer, an encoder and an ensemble over both."""
    context = project_of(TEXT.replace("STEPS", steps + more))
    put_passport(context, "tok", inputs=["text:bytes[batch,1]"], outputs=["ids:int64[batch,seq]"], batch=32)
    put_passport(
        context, "enc", inputs=["ids:int64[batch,length]"], outputs=["vector:fp32[batch,64]"], batch=16
    )
    return context


def test_equal_names_are_wired(project_of: ProjectOf, tmp_path: Path) -> None:
    made = make(text_project(project_of), tmp_path)
    assert [tensor.name for tensor in made.inputs] == ["text"]
    assert [tensor.name for tensor in made.outputs] == ["vector"]
    assert made.requires == ["tok", "enc"]


def test_the_largest_batch_is_that_of_the_smallest_step(project_of: ProjectOf, tmp_path: Path) -> None:
    made = make(text_project(project_of), tmp_path)
    assert made.batch_dim == "batch"
    assert made.dims["batch"] == [1, 8, 16]


def test_the_batch_dimension_may_have_any_name(project_of: ProjectOf, tmp_path: Path) -> None:
    context = project_of(TEXT.replace("STEPS", "[tok, enc]"))
    put_passport(context, "tok", inputs=["text:bytes[batch,1]"], outputs=["ids:int64[batch,seq]"], batch=4)
    put_passport(
        context,
        "enc",
        inputs=["ids:int64[n,s]"],
        outputs=["v:fp32[n,64]"],
        batch_dim="n",
        dims={"n": [1, 2, 8]},
    )
    assert make(context, tmp_path).dims["batch"] == [1, 2, 4]


def test_a_step_without_batching_makes_the_ensemble_not_batch(project_of: ProjectOf, tmp_path: Path) -> None:
    context = project_of(TEXT.replace("STEPS", "[tok, enc]"))
    put_passport(context, "tok", inputs=["text:bytes[n,1]"], outputs=["ids:int64[n,seq]"])
    put_passport(context, "enc", inputs=["ids:int64[batch,s]"], outputs=["v:fp32[batch,64]"], batch=8)
    made = make(context, tmp_path)
    assert made.batch_dim is None
    assert made.inputs[0].shape == ("n", 1)


def test_maps_rename_tensors(project_of: ProjectOf, tmp_path: Path) -> None:
    context = project_of(
        TEXT.replace("STEPS", "[{model: tok, outputs: {tokens: ids}}, {model: enc, outputs: {v: embedding}}]")
    )
    put_passport(context, "tok", inputs=["text:bytes[batch,1]"], outputs=["tokens:int64[batch,s]"], batch=8)
    put_passport(context, "enc", inputs=["ids:int64[batch,s]"], outputs=["v:fp32[batch,4]"], batch=8)
    assert [tensor.name for tensor in make(context, tmp_path).outputs] == ["embedding"]


@pytest.mark.parametrize(
    ("consumer", "message"),
    [
        pytest.param("ids:int32[batch,s]", "tensor 'ids' is int64 in tok and int32 in enc", id="dtype"),
        pytest.param(
            "ids:int64[batch,s,2]", r"has shape \[batch, seq\] in tok and \[batch, s, 2\]", id="rank"
        ),
    ],
)
def test_ends_of_a_wire_that_differ_are_refused(
    project_of: ProjectOf, tmp_path: Path, consumer: str, message: str
) -> None:
    context = project_of(TEXT.replace("STEPS", "[tok, enc]"))
    put_passport(context, "tok", inputs=["text:bytes[batch,1]"], outputs=["ids:int64[batch,seq]"], batch=8)
    put_passport(context, "enc", inputs=[consumer], outputs=["v:fp32[batch,4]"], batch=8)
    with pytest.raises(SpecError, match=message):
        make(context, tmp_path)


def test_fixed_sizes_must_be_equal(project_of: ProjectOf, tmp_path: Path) -> None:
    context = project_of(TEXT.replace("STEPS", "[tok, enc]"))
    put_passport(context, "tok", inputs=["text:bytes[batch,1]"], outputs=["ids:int64[batch,128]"], batch=8)
    put_passport(context, "enc", inputs=["ids:int64[batch,64]"], outputs=["v:fp32[batch,4]"], batch=8)
    with pytest.raises(SpecError, match=r"has shape \[batch, 128\] in tok and \[batch, 64\] in enc"):
        make(context, tmp_path)


WRONG = {
    "input": ("[tok, {model: enc, inputs: {idz: ids}}]", "enc has no input 'idz'; did you mean 'ids'"),
    "output": ("[{model: tok, outputs: {id: ids}}, enc]", "tok has no output 'id'; did you mean 'ids'"),
    "produced twice": ("[tok, tok, enc]", "tensor 'ids' is already produced by tok"),
    "returned": ("[tok, enc], outputs: [vectro]", "no step produces 'vectro'; did you mean 'vector'"),
    "unused step": ("[tok, {model: enc, inputs: {ids: x}}], outputs: [vector]", "step 'tok' is unused"),
}


@pytest.mark.parametrize(("steps", "message"), WRONG.values(), ids=WRONG)
def test_wrong_wiring_names_the_step(project_of: ProjectOf, tmp_path: Path, steps: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make(text_project(project_of, steps), tmp_path)


def test_a_step_that_is_not_built_says_what_to_run(project_of: ProjectOf, tmp_path: Path) -> None:
    context = project_of(TEXT.replace("STEPS", "[tok, enc]"))
    put_passport(context, "tok", inputs=["text:bytes[batch,1]"], outputs=["ids:int64[batch,seq]"], batch=8)
    with pytest.raises(SpecError, match="step 'enc' is not built") as caught:
        make(context, tmp_path)
    assert "tt build enc" in caught.value.hint


def test_a_scalar_a_row_is_wired_as_it_is_served(project_of: ProjectOf, tmp_path: Path) -> None:
    context = project_of(TEXT.replace("STEPS", "[tok, enc]"))
    put_passport(context, "tok", inputs=["text:bytes[batch,1]"], outputs=["ids:int64[batch]"], batch=8)
    put_passport(context, "enc", inputs=["ids:int64[batch,1]"], outputs=["v:fp32[batch]"], batch=8)
    assert make(context, tmp_path).outputs[0].shape == ("batch", 1)


def test_a_steps_own_limit_limits_the_ensemble(project_of: ProjectOf, tmp_path: Path) -> None:
    context = project_of(
        TEXT.replace("STEPS", "[tok, enc]").replace(
            "source: b.onnx", "source: b.onnx, serve: {max_batch_size: 4}"
        )
    )
    put_passport(context, "tok", inputs=["text:bytes[batch,1]"], outputs=["ids:int64[batch,s]"], batch=32)
    put_passport(context, "enc", inputs=["ids:int64[batch,s]"], outputs=["v:fp32[batch,4]"], batch=16)
    assert make(context, tmp_path).dims["batch"] == [1, 4, 4]


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ([1, 8, 16], [4, 8, 12], [4, 8, 12]),
        ([32, 224, 512, 32], [1, 100, 400], [32, 224, 384, 32]),
        ([4, 100, 400, 4], [6, 60, 600, 6], [12, 96, 396, 12]),
    ],
)
def test_a_shared_dimension_has_the_sizes_that_all_steps_take(
    project_of: ProjectOf, tmp_path: Path, first: list[int], second: list[int], shared: list[int]
) -> None:
    context = project_of(TEXT.replace("STEPS", "[tok, enc]"))
    ranges = {"inputs": ["text:bytes[s]"], "outputs": ["ids:int64[s]"]}
    put_passport(context, "tok", **ranges, dims={"s": first})
    put_passport(context, "enc", inputs=["ids:int64[s]"], outputs=["v:fp32[s]"], dims={"s": second})
    assert make(context, tmp_path).dims == {"s": shared}


def test_an_ensemble_depends_on_the_ranges_of_its_steps(project_of: ProjectOf) -> None:
    context = text_project(project_of)
    model = context.project.model("text")
    assert model.kind == "ensemble"
    before = EnsembleRecipe(context, "text", model).key()
    passport = context.passport("tok")
    assert passport is not None
    write_passport(context.folder("tok") / "1", replace(passport, dims={"batch": [1, 8, 16]}))
    after = EnsembleRecipe(context, "text", model).key()
    assert {part for part in before if before[part] != after[part]} == {"step tok"}
