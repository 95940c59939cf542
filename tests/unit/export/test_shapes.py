import pytest

from triton_toolkit.errors import ExportError
from triton_toolkit.export.shapes import settle_outputs

SEEN = [
    ({"n": 2, "m": 5}, {"y": (2, 10)}),
    ({"n": 3, "m": 5}, {"y": (3, 10)}),
    ({"n": 2, "m": 6}, {"y": (2, 12)}),
]


def settle(project, written, declared=(None, None), seen=SEEN, **changes):
    job = project.job(outputs={"y": declared}, dims=project.dims(n=(1, 2, 9), m=(1, 5, 9)), **changes)
    return settle_outputs((written,), job, seen)[0]


@pytest.mark.parametrize(
    ("written", "settled"),
    [
        pytest.param(("n", "2*m"), ("n", "y_1"), id="an-expression-becomes-a-name"),
        pytest.param(("s0", "s1"), ("n", "y_1"), id="a-name-found-by-its-sizes"),
        pytest.param(("n", "m"), ("n", "y_1"), id="a-name-that-is-wrong"),
    ],
)
def test_undeclared_dimensions_get_names(project, written, settled):
    assert settle(project, project.tensor("y", *written)).shape == settled


def test_the_batch_dimension_wins_where_two_dimensions_fit(project):
    seen = [({"n": 2, "m": 2}, {"y": (2,)}), ({"n": 3, "m": 3}, {"y": (3,)})]
    assert settle(project, project.tensor("y", "s0"), seen=seen, batch_dim="m").shape == ("m",)
    assert settle(project, project.tensor("y", "s0"), seen=seen).shape == ("y_0",)


def test_declared_names_win(project):
    assert settle(project, project.tensor("y", "s0", "s1"), (None, ["n", "wide"])).shape == ("n", "wide")


@pytest.mark.parametrize(
    ("written", "declared", "message"),
    [
        pytest.param(("n", "s"), ("fp16", None), "'y' is fp32, the spec says fp16", id="dtype"),
        pytest.param(("n", "s"), (None, ["n"]), "has shape ['n', 's'], the spec says ['n']", id="rank"),
        pytest.param((3, "s"), (None, ["n"]), "has shape ['y_0', 's'], the spec says ['n']", id="corrected"),
        pytest.param(
            ("n", "s"), (None, ["n", "m"]), "has shape [2, 10] at n=2, m=5, expected [2, 5]", id="seen"
        ),
        pytest.param(
            ("n", "s"), (None, ["n", 10]), "has shape [2, 12] at n=2, m=6, expected [2, 10]", id="varies"
        ),
    ],
)
def test_a_declaration_that_the_model_does_not_keep_is_refused(project, written, declared, message):
    with pytest.raises(ExportError) as caught:
        settle(project, project.tensor("y", *written), declared)
    assert message in caught.value.message


def test_an_output_must_start_with_the_batch_dimension(project):
    with pytest.raises(ExportError, match=r"has shape \['n', 'y_1'\], which does not start with the batch"):
        settle(project, project.tensor("y", "n", "s"), batch_dim="m")


STEADY = [({"n": 2, "m": 5}, {"y": (2, 10)}), ({"n": 3, "m": 6}, {"y": (3, 10)})]


@pytest.mark.parametrize("declared", [["n", 11], ["n", "m"]])
def test_a_size_that_is_always_the_same_is_fixed(project, declared):
    with pytest.raises(ExportError) as caught:
        settle(project, project.tensor("y", "n", 10), (None, declared), STEADY)
    assert f"has shape ['n', 10], the spec says {declared}" in caught.value.message


def test_a_size_that_the_exporter_wrote_but_nobody_saw_is_dynamic(project):
    seen = [({"n": 2, "m": 5}, {"y": (2, 5)}), ({"n": 3, "m": 6}, {"y": (3, 6)})]
    assert settle(project, project.tensor("y", 3, 4), seen=seen).shape == ("n", "m")


def test_a_size_in_a_file_that_came_as_onnx_stands(project):
    with pytest.raises(ExportError, match=r"'y' has shape \[2, 10\] at n=2, m=5, expected \[2, 4\]"):
        settle(project, project.tensor("y", "n", 4), seen=STEADY, kind="onnx")
