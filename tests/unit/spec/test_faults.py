"""What is wrong with a spec: one error, with file, line, column, key, value and what to do."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from triton_toolkit.errors import SpecError
from triton_toolkit.spec.load import load_project

M = "spec: 1\nmodels: {m: {source: 'a:b', inputs: {x: {shape: [n, 3]}}, dims: {n: [1, 2, 4]}}}\n"


def model(line: str) -> str:
    """Return a spec whose model has one line more, the seventh."""
    model = ["  m:", "    source: a:b", "    inputs: {x: {shape: [n, 3]}}", "    dims: {n: [1, 2, 4]}"]
    return "\n".join(["spec: 1", "models:", *model, f"    {line}", ""])


CASES = {
    "empty file": ("", "tt.yaml: the file is empty"),
    "only a comment": ("# nothing\n", "tt.yaml: the file is empty"),
    "null": ("~\n", "tt.yaml:1:1: a spec is a mapping of keys, starting with `spec: 1`"),
    "a list": ("- a\n", "tt.yaml:1:1: a spec is a mapping of keys, starting with `spec: 1`"),
    "no spec": (M.replace("spec: 1\n", ""), "tt.yaml:1:1: key 'spec' is missing"),
    "no models": ("spec: 1\n", "tt.yaml:1:1: key 'models' is missing"),
    "models empty": ("spec: 1\nmodels: {}\n", "tt.yaml:2:1: models: must not be empty, got {}"),
    "models null": ("spec: 1\nmodels:\n", "tt.yaml:2:1: models: must be a mapping of keys, got nothing"),
    "spec true": (M.replace("spec: 1", "spec: true"), "tt.yaml:1:1: spec: must be 1, the format that"),
    "a newer spec": (M.replace("spec: 1", "spec: 2"), "tt.yaml:1:1: spec: must be 1, the format that"),
    "typo at the top": (
        M.replace("models", "model"),
        "tt.yaml:2:1: model: unknown key 'model'; did you mean 'models'?",
    ),
    "typo of a required key": (
        "spec: 1\nmodels:\n  m:\n    sorce: a:b\n    inputs: {x: {shape: [3]}}\n",
        "tt.yaml:4:5: models.m.sorce: unknown key 'sorce'; did you mean 'source'?",
    ),
    "typo in an input": (
        "spec: 1\nmodels: {m: {source: 'a:b', inputs: {x: {shpae: [3]}}}}\n",
        "tt.yaml:2:42: models.m.inputs.x.shpae: unknown key 'shpae'; did you mean 'shape'?",
    ),
    "missing key": (
        "spec: 1\nmodels: {m: {kind: onnx}}\n",
        "tt.yaml:2:10: models.m: key 'source' is missing",
    ),
    "unknown kind": (
        "spec: 1\nmodels: {m: {kind: onxx}}\n",
        "tt.yaml:2:14: models.m.kind: unknown kind 'onxx'; did you mean 'onnx'?",
    ),
    "key of another kind": (
        "spec: 1\nmodels: {m: {kind: onnx, source: a, requirements: [a]}}\n",
        "models.m.requirements: key 'requirements' does not go with kind onnx, only with python",
    ),
    "model is text": (
        "spec: 1\nmodels: {m: foo}\n",
        "tt.yaml:2:10: models.m: must be a mapping of keys, got 'foo'",
    ),
    "model is nothing": ("spec: 1\nmodels: {m: }\n", "models.m: must be a mapping of keys, got nothing"),
    "no colon in source": (
        M.replace("a:b", "ab"),
        "models.m.source: 'ab' is neither module:callable nor a path",
    ),
    "an onnx file as torch": (
        M.replace("a:b", "a.onnx"),
        "models.m.source: 'a.onnx' is an ONNX file, not a Py",
    ),
    "an empty environment": (
        M.replace("{m: {", "{m: {env: {}, "),
        "models.m.env: names neither python nor lock",
    ),
    "trust as text": (M.replace("{m: {", "{m: {trust: 'yes', "), "models.m.trust: "),
    "a slash in a name": (
        M.replace("{m:", "{a/b:"),
        "tt.yaml:2:10: models[\"a/b\"]: 'a/b' cannot be used as a name: it becomes a folder of",
    ),
    "a name of dots": (M.replace("{m:", "{..:"), "'..' cannot be used as a name"),
    "a variant with a slash": (
        model("variants: {a/b: {}}"),
        "tt.yaml:7:16: models.m.variants[\"a/b\"]: 'a/b' cannot",
    ),
    "unknown dtype": (
        M.replace("shape: [n", "dtype: fp31, shape: [n"),
        "models.m.inputs.x.dtype: unknown data type 'fp31'",
    ),
    "minus one in a shape": (
        M.replace("[n, 3]", "[n, -1]"),
        "models.m.inputs.x.shape[1]: -1 is neither a size from 1 nor",
    ),
    "a fraction in a shape": (M.replace("[n, 3]", "[n, 1.5]"), "models.m.inputs.x.shape[1]: 1.5 is neither"),
    "a boolean in a shape": (M.replace("[n, 3]", "[n, true]"), "models.m.inputs.x.shape[1]: True is neither"),
    "a quoted size": (M.replace("[n, 3]", "[n, '3']"), "models.m.inputs.x.shape[1]: '3' is neither"),
    "a range out of order": (
        M.replace("[1, 2, 4]", "[4, 2, 1]"),
        "models.m.dims.n: needs min <= opt <= max, got min 4",
    ),
    "a range of two": (M.replace("[1, 2, 4]", "[1, 4]"), "models.m.dims.n: must be [min, opt, max] or"),
    "a range from 0": (M.replace("[1, 2, 4]", "[0, 2, 4]"), "models.m.dims.n: min must be at least 1, got 0"),
    "a range of words": (
        M.replace("[1, 2, 4]", "[1, 2, many]"),
        "models.m.dims.n: max must be a whole number, got 'many'",
    ),
    "a range without max": (M.replace("[1, 2, 4]", "{min: 1}"), "models.m.dims.n: key 'max' is missing"),
    "a dimension without range": (
        M.replace("dims: {n: [1, 2, 4]}", "dims: {}"),
        "dimension 'n' is used in inputs but has no range",
    ),
    "a range that nothing uses": (
        M.replace("{n:", "{k: [1, 1, 2], n:"),
        "models.m.dims.k: has a range but no input or output",
    ),
    "a batch_dim that is no dim": (
        model("batch_dim: bach"),
        "tt.yaml:7:5: models.m.batch_dim: 'bach' is not one of dims (n)",
    ),
    "a batch_dim that is not first": (
        model("batch_dim: n").replace("[n, 3]", "[3, n]"),
        "models.m.inputs.x: its shape must start with 'n'",
    ),
    "a serve_variant that is none": (
        model("serve_variant: fp16"),
        "models.m.serve_variant: 'fp16' is not one of fp32",
    ),
    "a backend to come": (
        model("variants: {q: {backend: tensorrt}}"),
        "models.m.variants.q.backend: 'tensorrt' is not built by this version",
    ),
    "int8 without calibration": (
        model("variants: {q: {precision: int8}}"),
        "models.m.variants.q.calibration: precision int8 needs calibration",
    ),
    "calibration that is no reference": (
        model("variants: {q: {precision: int8, calibration: digits.calib}}"),
        "tt.yaml:7:37: models.m.variants.q.calibration: 'digits.calib' is not module:callable",
    ),
    "a metric that is no reference": (
        model("accuracy: {metric: metrics/digits.py}"),
        "models.m.accuracy.metric: 'metrics/digits.py' is not module:callable",
    ),
    "a sample that is no reference": (
        model("sample: digits"),
        "tt.yaml:7:5: models.m.sample: 'digits' is not module:callable",
    ),
    "a sample of an ensemble that is no reference": (
        "spec: 1\nmodels: {e: {kind: ensemble, steps: [a], sample: 'a:b c'}}\n",
        "models.e.sample: 'a:b c' is not module:callable",
    ),
    "a drop of no metric": (
        model("variants: {q: {precision: fp16, max_absolute_drop: 0.1}}"),
        "tt.yaml:7:37: models.m.variants.q.max_absolute_drop: has no metric that could drop",
    ),
    "calibration that nothing uses": (
        model("variants: {q: {precision: int8-dynamic, calibration: 'a:b'}}"),
        "models.m.variants.q.calibration: means nothing for precision int8-dynamic",
    ),
    "calibrators of what has no calibration": (
        model("variants: {q: {precision: fp16, calibrators: [minmax]}}"),
        "models.m.variants.q.calibrators: means nothing for precision fp16",
    ),
    "a calibrator that is none": (
        model("variants: {q: {precision: int8, calibration: 'a:b', calibrators: [minmx]}}"),
        "models.m.variants.q.calibrators[0]",
    ),
    "no calibrator": (
        model("variants: {q: {precision: int8, calibration: 'a:b', calibrators: []}}"),
        "models.m.variants.q.calibrators",
    ),
    "a variant to serve also that is none": (
        model("also: [fp16]"),
        "models.m.also[0]: 'fp16' is not one of fp32",
    ),
    "also the variant that is served anyway": (
        model("also: [fp32]"),
        "models.m.also[0]: 'fp32' is served under the model's own name already",
    ),
    "a bad SLO": (
        model("slo: {require: ['p99<1ms', 'p99<x']}"),
        "tt.yaml:7:32: models.m.slo.require[1]: SLO 'p99<x': 'x' is not a duration",
    ),
    "a tolerance that is NaN": (model("tolerance: {absolute: .nan}"), "must be a finite number, got .nan"),
    "an unquoted release": (M + "release: 24.10\n", "tt.yaml:3:1: release: must be text, got 24.10"),
    "no such release": (
        M + "release: '24.13'\n",
        "tt.yaml:3:1: release: no Triton release '24.13' in the table",
    ),
    "a store that tt build writes": (
        M + "targets: {t: {store: ./model_repository/, servers: ['grpc://h:1']}}\n",
        "tt.yaml:3:15: targets.t.store: './model_repository/' is the folder that tt build writes",
    ),
    "a store that tt build writes, by another name": (
        M + "repository: built\ntargets: {t: {store: other/../built, servers: ['grpc://h:1']}}\n",
        "targets.t.store: 'other/../built' is the folder that tt build writes",
    ),
    "a store that is not local": (
        M + "targets: {t: {store: 's3://x', servers: ['grpc://h:1']}}\n",
        "targets.t.store: s3:// stores are not supported",
    ),
    "a server without scheme": (
        M + "targets: {t: {store: s, servers: [h:1]}}\n",
        "targets.t.servers[0]: 'h:1' must start with",
    ),
    "two servers": (
        M + "targets: {t: {store: s, servers: ['grpc://h:1', 'grpc://h:2']}}\n",
        "targets.t.servers: several servers over one",
    ),
    "a file to include that is not there": (
        M + "include: [x/*.yaml]\n",
        "tt.yaml:3:11: include[0]: no file matches 'x/*.yaml'",
    ),
    "an absolute include": (
        M + "include: [/etc/*.yaml]\n",
        "include[0]: '/etc/*.yaml' must be a file pattern relative",
    ),
    "an empty include": (M + "include: ['']\n", "include[0]: '' must be a file pattern relative"),
    "include that is text": (
        M + "include: a.yaml\n",
        "tt.yaml:3:1: include: must be a list of file patterns",
    ),
    "a spec that includes itself": (M + "include: [tt.yaml]\n", "include[0]: no file matches 'tt.yaml'"),
    "an unknown family": (
        "spec: 1\nfamilies: {text: {}}\nmodels: {m: {extends: txt}}\n",
        "models.m.extends: family 'txt' does not exist; did you mean 'text'?",
    ),
    "a list of families": (
        "spec: 1\nmodels: {m: {extends: [a]}}\n",
        "models.m.extends: family ['a'] does not exist",
    ),
    "an empty family": (
        "spec: 1\nfamilies: {a: }\nmodels: {m: {extends: a}}\n",
        "family 'a' is not a mapping of keys",
    ),
    "families in a circle": (
        "spec: 1\nfamilies: {a: {extends: b}, b: {extends: a}}\nmodels: {m: {extends: a}}\n",
        "families.b.extends: families extend each other: a -> b -> a",
    ),
    "a typo in a family": (
        "spec: 1\nfamilies:\n  f: {dim: {}}\nmodels: {m: {extends: f, source: 'a:b'}}\n",
        "tt.yaml:3:7: models.m.dim: unknown key 'dim'; did you mean 'dims'?",
    ),
    "a typo in a step": (
        "spec: 1\nmodels: {p: {kind: ensemble, steps: [{modl: m}]}}\n",
        "models.p.steps[0].modl: unknown key 'modl'; did you mean 'model'?",
    ),
}


@pytest.mark.parametrize(("text", "message"), CASES.values(), ids=CASES.keys())
def test_the_message_says_where_and_what(refuse, text, message):
    assert message in refuse(text).message


@pytest.mark.parametrize(
    ("case", "hint"),
    [
        ("typo in an input", "known here: dtype, shape"),
        (
            "key of another kind",
            "known here: accuracy, also, batch_dim, dims, env, extends, hashed, inputs, kind, outputs",
        ),
        ("unknown kind", "known: torch, onnx, python, prebuilt, ensemble"),
        ("an unquoted release", 'put it in quotes: "24.10"'),
        ("a slash in a name", "use letters, digits"),
        ("a dimension without range", "add n: [min, opt, max] to dims"),
        ("no such release", "24.12"),
        ("empty file", "tt init"),
    ],
)
def test_the_hint_says_what_to_do(refuse, case, hint):
    assert hint in refuse(CASES[case][0]).hint


MISSPELT = """\
spec: 1
models:
  a:
    source: nets:a
    input: {image: {shape: [batch, 3, H]}}
    dims: {batch: [1, 8, 32], H: [8, 4, 2]}
    batch_dim: batch
  b:
    kind: onnx
    source: b.onnx
    tolerance: {absolut: 1e-3, relative: -1}
target: {}
"""


def test_all_faults_are_listed_unknown_keys_first_each_with_its_place(refuse):
    error = refuse(MISSPELT)
    assert error.message.splitlines() == [
        "tt.yaml:5:5: models.a.input: unknown key 'input'; did you mean 'inputs'?",
        "tt.yaml:11:17: models.b.tolerance.absolut: unknown key 'absolut'; did you mean 'absolute'?",
        "tt.yaml:12:1: target: unknown key 'target'; did you mean 'targets'?",
        "tt.yaml:6:31: models.a.dims.H: needs min <= opt <= max, got min 8, opt 4, max 2",
        "tt.yaml:11:32: models.b.tolerance.relative: must be at least 0.0, got -1",
    ]
    assert error.hint.startswith("known here: accuracy, also, batch_dim")


def test_a_misspelt_input_is_the_only_fault(refuse):
    text = M.replace("inputs", "input")
    assert refuse(text).message == (
        "tt.yaml:2:29: models.m.input: unknown key 'input'; did you mean 'inputs'?"
    )


def test_all_dimensions_without_a_range_are_listed_with_what_to_do(refuse):
    message = refuse(M.replace("[n, 3]", "[n, k, j]")).message
    assert message.splitlines() == [
        "tt.yaml:2:10: models.m: dimension 'j' is used in inputs but has no range",
        "tt.yaml:2:10: models.m: dimension 'k' is used in inputs but has no range "
        "(add k: [min, opt, max] to dims, such as [1, 8, 32])",
    ]


def test_a_missing_key_beside_another_unknown_one_is_a_fault_of_its_own(refuse):
    assert refuse("spec: 1\nmodels: {m: {kind: onnx, extra: 1}}\n").message.splitlines() == [
        "tt.yaml:2:26: models.m.extra: unknown key 'extra'",
        "tt.yaml:2:10: models.m: key 'source' is missing",
    ]


@pytest.mark.parametrize(("count", "lines", "last"), [(10, 10, "models.m.z9: "), (12, 11, "and 2 more")])
def test_a_long_list_is_cut(refuse, count, lines, last):
    keys = "".join(f", z{n}: 1" for n in range(count))
    shown = refuse(f"spec: 1\nmodels: {{m: {{kind: onnx, source: a{keys}}}}}\n").message.splitlines()
    assert len(shown) == lines
    assert last in shown[-1]


def test_the_hint_lists_no_key_of_another_kind(refuse):
    assert "requirements" not in refuse("spec: 1\nmodels: {m: {kind: onnx, sorce: a}}\n").hint


def test_a_missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(SpecError, match=r"tt\.yaml: no such file") as caught:
        load_project(tmp_path / "tt.yaml")
    assert "tt init" in caught.value.hint


def test_a_folder_instead_of_a_file(tmp_path):
    with pytest.raises(SpecError, match="cannot be read: Is a directory"):
        load_project(tmp_path)


WORDS = [
    "a:b",
    "x",
    "torch",
    "onnx",
    "python",
    "ensemble",
    "batch",
    "p99<1ms",
    "24.10",
    "s3://x",
    "grpc://h:1",
]
KEYS = [
    "m",
    "x",
    "f",
    "source",
    "inputs",
    "outputs",
    "dims",
    "batch",
    "batch_dim",
    "shape",
    "dtype",
    "kind",
    "steps",
    "model",
    "extends",
    "serve",
    "slo",
    "require",
    "variants",
    "files",
    "path",
    "store",
    "servers",
]
SCRAPS = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 40) | st.floats(-2, 2) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(models=SCRAPS, families=SCRAPS, include=SCRAPS, targets=SCRAPS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_whatever_a_spec_holds_it_loads_or_is_refused(load, models, families, include, targets):
    """No mix of keys and values ends in anything but a project or a SpecError that names the file."""
    import yaml

    spec = {"spec": 1, "models": models, "families": families, "include": include, "targets": targets}
    message = "tt.yaml"
    try:
        load(yaml.safe_dump(spec))
    except SpecError as exc:
        message = exc.message
    assert "tt.yaml" in message


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("digits.calib", "digits:calib"),
        ("data/digits.py:calib", "data.digits:calib"),
        ("./digits.py", "digits:function"),
        ("a:b c", "module:function"),
    ],
)
def test_a_reference_is_told_as_it_may_be_meant(refuse, text: str, meant: str) -> None:
    assert refuse(model(f"sample: {text!r}")).hint.endswith(f" {meant}")
