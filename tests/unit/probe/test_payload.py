"""Inputs from samples and from declarations; sizes of dynamic dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from triton_toolkit.core.tensors import DataType
from triton_toolkit.errors import RepositoryError, UsageError
from triton_toolkit.probe.payload import (
    Sizes,
    batch_size_of,
    build_payloads,
    case_shapes,
    check_samples,
    generate_cases,
    golden_payloads,
    sample_cases,
)
from triton_toolkit.repository.passport import Samples

Make = Callable[..., Any]


class TestShapes:
    def test_dimension_without_a_size_is_named_with_both_ways_out(self, live_model: Make) -> None:
        with pytest.raises(
            UsageError, match=r"input 'ids': dimension 'ids_1' \(axis 1\) is dynamic"
        ) as caught:
            case_shapes(live_model(), Sizes())
        assert "--dim ids_1=128 --dim mask_1=128" in caught.value.hint
        assert "--shape ids:128 --shape mask:128" in caught.value.hint

    def test_suggested_shape_is_accepted(self, live_model: Make, tensor: Make) -> None:
        model = live_model(inputs=(tensor("image", "fp32", "batch", 3, "image_2", "image_3"),))
        with pytest.raises(UsageError, match=r"'image_2'.*likewise 'image_3'") as caught:
            case_shapes(model, Sizes())
        assert "--shape image:3,128,128" in caught.value.hint
        sizes = Sizes(shapes={"image": (3, 128, 128)})
        assert batch_size_of(model, sizes) == 1
        assert case_shapes(model, sizes) == {"image": (1, 3, 128, 128)}

    def test_suggested_shape_is_whole_without_batching(self, live_model: Make, tensor: Make) -> None:
        model = live_model(max_batch_size=0, inputs=(tensor("x", "fp32", "x_0", 3),))
        with pytest.raises(UsageError) as caught:
            case_shapes(model, Sizes(no_sample_because="there is no tt.yaml here"))
        assert "--shape x:128,3" in caught.value.hint
        assert caught.value.hint.endswith("no golden sample gives it: there is no tt.yaml here")

    def test_dims_and_shapes_give_sizes(self, live_model: Make) -> None:
        sizes = Sizes(dims={"ids_1": 5}, shapes={"mask": (1, 7)})
        assert case_shapes(live_model(), sizes) == {"ids": (1, 5), "mask": (1, 7)}

    def test_shape_may_leave_out_the_batch_dimension(self, live_model: Make) -> None:
        sizes = Sizes(shapes={"ids": (5,), "mask": (5,)})
        assert case_shapes(live_model(), sizes) == {"ids": (1, 5), "mask": (1, 5)}

    def test_passport_s_names_and_opt_sizes_serve(self, live_model: Make, tensor: Make) -> None:
        names = (tensor("ids", "int64", "batch", "seq"), tensor("mask", "fp32", "batch", "seq"))
        known = {"seq": [1, 64, 512], "batch": [1, 8, 8]}
        assert case_shapes(live_model(), Sizes(known=known, names=names))["ids"] == (1, 64)
        assert case_shapes(live_model(), Sizes(known=known, names=names, dims={"seq": 9}))["mask"] == (1, 9)

    def test_names_of_another_rank_are_left_alone(self, live_model: Make, tensor: Make) -> None:
        names = (tensor("ids", "int64", "batch", "channel", "seq"),)
        sizes = Sizes(known={"channel": [1, 3, 3]}, names=names, dims={"mask_1": 5})
        with pytest.raises(UsageError, match="'ids_1'"):
            case_shapes(live_model(), sizes)

    def test_model_without_batching_needs_a_size_for_its_first_dimension(
        self, live_model: Make, tensor: Make
    ) -> None:
        model = live_model(max_batch_size=0, inputs=(tensor("x", "fp32", "x_0", 3),))
        with pytest.raises(UsageError, match="'x_0'"):
            case_shapes(model, Sizes())
        assert case_shapes(model, Sizes(dims={"x_0": 2})) == {"x": (2, 3)}

    def test_optional_input_is_left_out(self, live_model: Make) -> None:
        model = live_model(optional=frozenset({"mask"}))
        assert list(case_shapes(model, Sizes(dims={"ids_1": 5}))) == ["ids"]

    @pytest.mark.parametrize(
        ("sizes", "message"),
        [
            (Sizes(dims={"seq": 5}), "--dim seq: model 'bert' has no such dynamic dimension"),
            (Sizes(dims={"batch": 5}), "--dim batch"),
            (Sizes(shapes={"idz": (1, 5)}), "--shape idz: model 'bert' has no such input"),
            (
                Sizes(shapes={"ids": (1, 5, 5)}),
                "--shape ids:1,5,5 does not fit the model's input: batch,ids_1",
            ),
        ],
    )
    def test_option_that_fits_nothing_is_refused(self, live_model: Make, sizes: Sizes, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            case_shapes(live_model(), sizes)

    def test_shape_against_a_fixed_size_is_refused(self, live_model: Make, tensor: Make) -> None:
        model = live_model(inputs=(tensor("image", "fp32", "batch", 3, 8, 8),))
        with pytest.raises(UsageError, match="does not fit the model's input: batch,3,8,8"):
            case_shapes(model, Sizes(shapes={"image": (1, 4, 8, 8)}))


class TestBatchSize:
    @pytest.mark.parametrize(
        ("sizes", "rows"),
        [
            (Sizes(), 1),
            (Sizes(batch_size=8), 8),
            (Sizes(shapes={"ids": (4, 9)}), 4),
            (Sizes(shapes={"ids": (9,)}), 1),
            (Sizes(shapes={"ids": (4, 9)}, batch_size=4), 4),
        ],
    )
    def test_comes_from_either_option(self, live_model: Make, sizes: Sizes, rows: int) -> None:
        assert batch_size_of(live_model(), sizes) == rows

    def test_above_max_batch_size_is_refused(self, live_model: Make) -> None:
        with pytest.raises(UsageError, match="its max_batch_size is 8"):
            batch_size_of(live_model(), Sizes(batch_size=9))

    def test_of_options_that_disagree_is_refused(self, live_model: Make) -> None:
        with pytest.raises(UsageError, match=r"different batch sizes: \[2, 4\]"):
            batch_size_of(live_model(), Sizes(shapes={"ids": (4, 9)}, batch_size=2))

    def test_without_batching_is_refused(self, live_model: Make) -> None:
        with pytest.raises(UsageError, match="max_batch_size 0"):
            batch_size_of(live_model(max_batch_size=0), Sizes(batch_size=2))


class TestGenerated:
    @pytest.mark.parametrize("dtype", list(DataType), ids=lambda dtype: dtype.spec)
    def test_values_have_the_declared_type(self, live_model: Make, tensor: Make, dtype: DataType) -> None:
        model = live_model(inputs=(tensor("x", dtype.spec, "batch", 6),))
        cases = generate_cases(model, {"x": (1, 6)})
        assert {case.inputs["x"].dtype for case in cases} == {np.dtype(dtype.numpy)}
        assert len(cases) == 8
        assert len({case.inputs["x"].tobytes() for case in cases}) > 1

    def test_integers_are_valid_token_ids(self, live_model: Make) -> None:
        cases = generate_cases(live_model(), {"ids": (1, 100), "mask": (1, 100)})
        assert {int(value) for case in cases for value in case.inputs["ids"].flat} == {0, 1}

    def test_strings_are_bytes(self, live_model: Make, tensor: Make) -> None:
        model = live_model(inputs=(tensor("text", "bytes", "batch", 2),))
        assert isinstance(generate_cases(model, {"text": (1, 2)})[0].inputs["text"][0, 0], bytes)

    def test_large_inputs_are_fewer(self, live_model: Make, tensor: Make) -> None:
        model = live_model(inputs=(tensor("x", "fp64", "batch", 4_000_000),))
        assert len(generate_cases(model, {"x": (1, 4_000_000)})) == 2

    def test_the_same_model_gets_the_same_inputs(self, live_model: Make) -> None:
        shapes = {"ids": (1, 9), "mask": (1, 9)}
        first, again = (generate_cases(live_model(), shapes)[0].inputs["mask"] for _ in range(2))
        assert np.array_equal(first, again)


class TestSamples:
    def sample(self, rows: int = 3) -> Samples:
        ids = np.arange(rows * 5).reshape(rows, 5)
        logits = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
        return Samples({"ids": ids, "mask": ids.astype(np.float32)}, {"logits": logits})

    def test_rows_become_cases_with_their_outputs(self, live_model: Make) -> None:
        cases = sample_cases(live_model(), self.sample(), independent=True)
        assert [case.inputs["ids"].shape for case in cases] == [(1, 5)] * 3
        assert cases[2].expected is not None
        assert cases[2].expected["logits"].tolist() == [[4, 5]]

    def test_without_batching_the_sample_is_one_case(self, live_model: Make) -> None:
        (case,) = sample_cases(live_model(max_batch_size=0), self.sample(), independent=False)
        assert case.inputs["ids"].shape == (3, 5)

    def test_rows_that_may_influence_each_other_expect_nothing_alone(self, live_model: Make) -> None:
        cases = sample_cases(live_model(), self.sample(), independent=False)
        assert [case.expected for case in cases] == [None] * 3

    def test_one_row_is_the_sample_itself(self, live_model: Make) -> None:
        (case,) = sample_cases(live_model(), self.sample(rows=1), independent=False)
        assert case.expected is not None

    def test_sample_goes_in_parts_that_the_model_takes(self, live_model: Make) -> None:
        whole = golden_payloads(live_model(), self.sample(rows=8))
        parts = golden_payloads(live_model(max_batch_size=2), self.sample(rows=3))
        assert [len(payload.inputs["ids"]) for payload in whole] == [8]
        assert [len(payload.inputs["ids"]) for payload in parts] == [2, 1]

    def test_payloads_join_rows_that_follow_one_another(self, live_model: Make) -> None:
        payloads = build_payloads(sample_cases(live_model(), self.sample(), independent=True), 2)
        assert [payload.inputs["ids"][:, 0].tolist() for payload in payloads] == [[0, 5], [5, 10], [10, 0]]
        assert payloads[2].expected is not None
        assert payloads[2].expected["logits"].tolist() == [[4, 5], [0, 1]]

    def test_large_batches_are_made_fewer_times(self, live_model: Make) -> None:
        cases = generate_cases(live_model(), {"ids": (1, 1), "mask": (1, 1 << 20)})
        assert len(cases) == 8
        assert len(build_payloads(cases, 4)) == 3
        assert len(build_payloads(cases[:2], 32)) == 1

    def test_sample_that_fits_is_accepted(self, live_model: Make) -> None:
        check_samples(live_model(), self.sample(), "here")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"mask": None}, "input 'mask' is missing"),
            ({"extra": np.zeros((3, 5))}, "the server's model has no input 'extra'"),
            ({"ids": np.zeros((3, 5), np.int32)}, "input 'ids' is int64 on the server, int32 here"),
            ({"ids": np.zeros((3, 5, 1), np.int64)}, "input 'ids' has rank 2 on the server, 3 here"),
        ],
    )
    def test_sample_of_another_model_is_refused(
        self, live_model: Make, change: dict[str, Any], message: str
    ) -> None:
        inputs = {**self.sample().inputs, **change}
        samples = Samples({k: v for k, v in inputs.items() if v is not None}, self.sample().outputs)
        with pytest.raises(RepositoryError, match=message):
            check_samples(live_model(), samples, "here")

    @pytest.mark.parametrize(
        "logits", [np.zeros((3, 2)), np.zeros((3, 2, 1), np.float32)], ids=["type", "rank"]
    )
    def test_outputs_that_differ_are_left_to_the_comparison(self, live_model: Make, logits: Any) -> None:
        check_samples(live_model(), Samples(self.sample().inputs, {"logits": logits}), "here")

    @pytest.mark.parametrize(
        ("outputs", "message"),
        [
            ({"scores": np.zeros((3, 2))}, "has no output 'scores'"),
            ({"logits": np.float32(1)}, "output 'logits' has no batch dimension here"),
        ],
    )
    def test_outputs_that_cannot_be_the_model_s_are_refused(
        self, live_model: Make, outputs: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(RepositoryError, match=message):
            check_samples(live_model(), Samples(self.sample().inputs, outputs), "here")
