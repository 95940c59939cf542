import pytest

from triton_toolkit.config.message import parse_config
from triton_toolkit.deploy.drift import config_differences, served_versions


def _config(text: str):
    return parse_config(text, "test")


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        ("", (7,)),
        ("version_policy { latest { num_versions: 2 } }", (3, 7)),
        ("version_policy { latest { num_versions: 9 } }", (1, 3, 7)),
        ("version_policy { latest { } }", ()),
        ("version_policy { }", (1, 3, 7)),
        ("version_policy { all { } }", (1, 3, 7)),
        ("version_policy { specific { versions: [ 3, 5 ] } }", (3,)),
    ],
)
def test_versions_that_a_policy_serves(policy, served):
    assert served_versions(_config(policy), [7, 1, 3]) == served


def test_what_the_server_adds_is_no_difference():
    wanted = _config('name: "m" input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }')
    served = _config(
        'name: "m" backend: "python" version_policy { latest { num_versions: 1 } } '
        'input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] optional: true } instance_group { count: 1 }'
    )
    assert config_differences(wanted, served) == []


@pytest.mark.parametrize(
    ("wanted", "served", "difference"),
    [
        ("max_batch_size: 8", "max_batch_size: 4", "max_batch_size is 4, not 8"),
        (
            "dynamic_batching { max_queue_delay_microseconds: 5 }",
            "dynamic_batching { }",
            "dynamic_batching.max_queue_delay_microseconds is 0, not 5",
        ),
        ('input { name: "x" } input { name: "z" }', 'input { name: "x" }', "input has 1 entries, not 2"),
        ("input { dims: [ 1, 2 ] }", "input { dims: [ 1, 3 ] }", "input[0].dims[1] is 3, not 2"),
        (
            'parameters { key: "k" value { string_value: "a" } }',
            'parameters { key: "k" value { string_value: "b" } }',
            "parameters[k].string_value is 'b', not 'a'",
        ),
        ('parameters { key: "k" value { string_value: "a" } }', "", "parameters[k] is missing"),
    ],
    ids=["scalar", "nested", "count", "list", "map", "key"],
)
def test_difference_names_path_and_both_values(wanted, served, difference):
    assert config_differences(_config(wanted), _config(served)) == [difference]
