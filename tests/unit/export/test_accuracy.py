import numpy as np
import pytest

from triton_toolkit.errors import ExportError, ParityError
from triton_toolkit.export.accuracy import Metric, check_accuracy

ONES = {"x": np.ones((3, 2), np.float32)}


def measure(project, metric, limit=0.0, exported=2.0):
    predictors = [
        by and (lambda arrays, by=by: {"y": arrays["x"] * np.float32(by)}) for by in (2.0, exported)
    ]
    inputs = (project.tensor("x", "batch", 2),)
    return check_accuracy(Metric("nets:metric", metric, inputs, project.files), *predictors, limit)


def mean(predict):
    return predict(ONES)["y"].mean()


@pytest.mark.parametrize(("exported", "drop"), [(2.0, 0.0), (1.75, 0.25), (2.5, -0.5)])
def test_a_drop_within_the_limit_is_reported(project, exported, drop):
    report = measure(project, mean, 0.25, exported)
    assert report == {"metric": "nets:metric", "original": 2.0, "exported": exported, "drop": drop}


def test_an_export_that_is_not_served_is_not_measured(project):
    assert measure(project, mean, exported=None) == {"metric": "nets:metric", "original": 2.0}


def test_a_drop_beyond_the_limit_is_refused(project):
    with pytest.raises(ParityError, match=r"falls from 2 to 1.5: a drop of 0.5, allowed is 0.25"):
        measure(project, mean, 0.25, 1.5)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        pytest.param(
            lambda predict: predict({"z": 1}), "gives to predict has 'z', which is no input", id="input"
        ),
        pytest.param(
            lambda predict: predict({"x": np.ones((3, 2))}), "x has type float64, the spec", id="dtype"
        ),
        pytest.param(lambda predict: "good", "gives an object of type str, not a number", id="no-number"),
        pytest.param(lambda predict: float("nan"), "gives nan, not a finite number", id="nan"),
        pytest.param(
            lambda predict: predict(), "nets:metric raised with the original: TypeError", id="raises"
        ),
    ],
)
def test_a_metric_that_does_not_work_is_refused(project, metric, message):
    with pytest.raises(ExportError) as caught:
        measure(project, metric)
    assert message in caught.value.message
