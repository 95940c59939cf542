import pytest

from triton_toolkit.errors import ExportError
from triton_toolkit.export.source import load_callable, load_module

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("text", "target", "message", "hint"),
    [
        pytest.param("", "nats:model", "there is no module 'nats'", "", id="no-module"),
        pytest.param("", "nats:model", "did you mean 'nets'?", "", id="near-module"),
        pytest.param("", "nets.deep:model", "there is no module 'nets.deep'", "", id="no-submodule"),
        pytest.param(
            "import sklaern\n", "nets:model", "(nets.py:1, in <module>)", "sklaern", id="no-package"
        ),
        pytest.param(
            "\n1 / 0\n", "nets:model", "ZeroDivisionError: division by zero (nets.py:2", "", id="raises"
        ),
        pytest.param("def f(:\n", "nets:model", "SyntaxError: invalid syntax (nets.py:1)", "", id="syntax"),
        pytest.param("raise SystemExit(3)\n", "nets:model", "SystemExit: 3", "", id="exits"),
        pytest.param(
            "def modle(): ...\n", "nets:model", "did you mean 'modle'?", "modle", id="near-callable"
        ),
        pytest.param("model = 3\n", "nets:model", "has type int and cannot be called", "", id="not-callable"),
        pytest.param("", "nets", "'nets' is not module:callable", "examples.digits:model", id="no-colon"),
    ],
)
def test_load_callable_says_what_is_wrong(project, text, target, message, hint):
    project.write(text)
    with pytest.raises(ExportError) as caught:
        load_callable(project.files, target)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_load_callable_keeps_the_traceback_as_detail(project):
    project.write("def helper():\n    return {}['x']\n\nhelper()\n")
    with pytest.raises(ExportError) as caught:
        load_callable(project.files, "nets:model")
    assert "(nets.py:2, in helper)" in caught.value.message
    assert "return {}['x']" in caught.value.detail


def test_load_callable_takes_dotted_names(project):
    project.write("class Zoo:\n    @staticmethod\n    def build():\n        return 7\n", "deep/zoo.py")
    assert load_callable(project.files, "deep.zoo:Zoo.build")() == 7


SCRIPTED = """
import warnings

def scripted(module):
    with warnings.catch_warnings():  # TorchScript is deprecated, and still around
        warnings.simplefilter("ignore")
        return torch.jit.script(module)

"""


@pytest.mark.parametrize(
    ("more", "message"),
    [
        pytest.param(
            "def model(): raise OSError('no weights')", "OSError: no weights (nets.py:", id="raises"
        ),
        pytest.param(
            "def model(): return {}", "gives an object of type dict, not a torch.nn.Module", id="not-a-module"
        ),
        pytest.param(
            "def model(): return Net().forward", "gives an object of type method, not a torch", id="a-method"
        ),
        pytest.param("def model(): return scripted(Net())", "gives a TorchScript", id="torchscript"),
    ],
)
def test_load_module_says_what_is_wrong(project, more, message):
    project.net(more=SCRIPTED + more)
    with pytest.raises(ExportError) as caught:
        load_module(project.files, "nets:model")
    assert caught.value.message.startswith("nets:model ")
    assert message in caught.value.message


@pytest.mark.parametrize("more", ["model = Net", "model = Net()", "def model(): return Net().train()"])
def test_load_module_takes_factory_class_or_instance_and_evaluates(project, more):
    project.net(more=more)
    module = load_module(project.files, "nets:model")
    assert type(module).__name__ == "Net"
    assert not module.training


def test_load_module_hints_at_a_package_that_only_the_factory_needs(project):
    project.net(more="def model():\n    import sklaern")
    with pytest.raises(ExportError) as caught:
        load_module(project.files, "nets:model")
    assert "install what brings 'sklaern'" in caught.value.hint


def test_load_module_hints_at_the_hidden_gpu(project):
    project.net(more="def model(): raise RuntimeError('Attempting to deserialize object on a CUDA device')")
    with pytest.raises(ExportError) as caught:
        load_module(project.files, "nets:model")
    assert 'map_location="cpu"' in caught.value.hint
