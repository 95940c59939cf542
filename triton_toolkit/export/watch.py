"""Watch one forward: what in it an export cannot keep, though two runs may look the same.

Three things are seen: random numbers, batch statistics (a BatchNorm in training mode), and decisions by the
values of a tensor that comes from the inputs. Each is told with its line in the user's code.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from triton_toolkit.errors import ExportError
from triton_toolkit.export.trace_files import ProjectFiles

if TYPE_CHECKING:
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

Line = tuple[str, int]
"""A file and a line of code in it."""


@dataclass(slots=True)
class Seen:
    """What one forward did.

    Attributes:
        random: Operators that drew random numbers, with their places; ``random or numpy.random``
            where Python or numpy drew them.
        batch_statistics: Places of a BatchNorm that used the statistics of the batch -> whether it has
            running ones, which it should have used.
        decisions: Lines outside of torch that turned a value of a tensor that comes from the inputs
            into a Python number or a branch, with the line's place in words.
    """

    random: list[str] = field(default_factory=list)
    batch_statistics: dict[str, bool] = field(default_factory=dict)
    decisions: dict[Line, str] = field(default_factory=dict)


@contextmanager
def watch(inputs: tuple[torch.Tensor, ...], files: ProjectFiles) -> Iterator[Seen]:
    """Watch the torch code of the block.

    Args:
        inputs: The tensors whose values decisions are looked for.
        files: The project's files, to name lines.
    """
    import numpy as np

    seen = Seen()
    before = (random.getstate(), np.random.get_state())
    with _calls(seen, files), _operators(seen, inputs, files):
        yield seen
    after = (random.getstate(), np.random.get_state())
    if repr(before) != repr(after):
        seen.random.append("random or numpy.random")


def check_random(seen: Seen, same: bool) -> None:
    """Refuse a forward that draws random numbers, unless they have no effect.

    Args:
        seen: What was seen.
        same: Whether two runs on the same inputs gave the same outputs, bit for bit.

    Raises:
        ExportError: It draws some, and outputs differ.
    """
    if seen.random and not same:
        raise ExportError(
            f"the model is not deterministic: forward draws random numbers: {', '.join(seen.random)}",
            hint="give F.dropout training=self.training, and make noise an input of the model",
        )


def check_batch_statistics(seen: Seen, *, batched: bool) -> str:
    """Judge a BatchNorm that uses the statistics of the batch at hand.

    Args:
        seen: What was seen.
        batched: Whether Triton may batch the model.

    Returns:
        A note for the user, where the model is legal as it is: it has no running statistics and is
        never batched. Empty without a note.

    Raises:
        ExportError: Each answer would depend on the rest of its batch.
    """
    if not seen.batch_statistics:
        return ""
    text = "a BatchNorm normalises with the statistics of the batch at hand"
    places = ", ".join(seen.batch_statistics)
    if not batched and not any(seen.batch_statistics.values()):
        return f"{text}: {places}"
    raise ExportError(
        f"{text}, as in training, so each answer depends on the rest of its batch: {places}",
        hint="let forward neither call train() nor pass training=True, and train with "
        "track_running_stats=True, so that the running statistics come with the weights",
    )


def _operators(seen: Seen, inputs: tuple[torch.Tensor, ...], files: ProjectFiles) -> TorchDispatchMode:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.weak import WeakTensorKeyDictionary

    class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Marks what is computed from the inputs, and sees where a marked value leaves torch."""

        supports_higher_order_operators = True

        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self._marked = WeakTensorKeyDictionary()
            for tensor in inputs:
                self._marked[tensor] = True

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            kwargs = kwargs or {}
            tensors = _tensors((args, kwargs))
            marked = any(tensor in self._marked for tensor in tensors)
            written = []
            if isinstance(func, torch._ops.HigherOrderOperator):  # torch.cond and its like
                result = func(*_watched(args, self), **kwargs)
            else:
                self._look(func, args, kwargs, marked=marked)
                result = func(*args, **kwargs)
                written = tensors if func._schema.is_mutable else []
            for item in [*_tensors(result), *written] if marked else ():
                self._marked[item] = True
            return result

        def _look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, marked: bool) -> None:
            if func is torch.ops.aten._local_scalar_dense.default and marked:
                line, place = _line(files)
                seen.decisions[line] = place
            if torch.Tag.nondeterministic_seeded in func.tags and not _switched_off(func, args, kwargs):
                _add(seen.random, f"{func.overloadpacket.__name__} ({_line(files)[1]})")

    return Operators()


def _tensors(value: object) -> list[torch.Tensor]:
    import torch
    from torch.utils import _pytree as pytree

    return [item for item in pytree.tree_leaves(value) if isinstance(item, torch.Tensor)]


def _watched(args: tuple[Any, ...], mode: TorchDispatchMode) -> tuple[Any, ...]:
    """Return the arguments of a control flow operator, with branches that run in a mode."""
    import torch
    from torch.utils import _pytree as pytree

    def in_mode(item: Any) -> Any:
        if isinstance(item, torch.Tensor) or not callable(item):
            return item

        def branch(*args: Any, **kwargs: Any) -> Any:
            with mode:
                return item(*args, **kwargs)

        return branch

    watched: tuple[Any, ...] = pytree.tree_map(in_mode, args)
    return watched


def _switched_off(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Say whether a random operator draws nothing: a dropout of 0, or one that is told not to train."""
    given = {argument.name: argument.default_value for argument in func._schema.arguments}
    given |= dict(zip(given, args, strict=False)) | dict(kwargs)
    training = given.get("train", given.get("training", True))
    return training is False or given.get("dropout_p") == 0 or given.get("p") == 0


def _calls(seen: Seen, files: ProjectFiles) -> TorchFunctionMode:
    import torch
    from torch.overrides import TorchFunctionMode

    names = ("input", "running_mean", "running_var", "weight", "bias", "training")
    builtin = ("input", "weight", "bias", "running_mean", "running_var", "training")
    parameters = {torch.nn.functional.batch_norm: names, torch.batch_norm: builtin}

    class Calls(TorchFunctionMode):
        """Sees batch_norm above the operators, where InstanceNorm and it are still told apart."""

        def __torch_function__(
            self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if func in parameters:
                given = {**dict(zip(parameters[func], args, strict=False)), **kwargs}
                if given.get("training"):
                    seen.batch_statistics[_line(files)[1]] = given.get("running_mean") is not None
            return func(*args, **kwargs)

    return Calls()


def _line(files: ProjectFiles) -> tuple[Line, str]:
    """Return the innermost line outside of torch, and in words the innermost line of the project."""
    import torch

    library = str(Path(torch.__file__).parent)
    outside: Line | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__ and not name.startswith(library):
            outside = outside or (name, frame.f_lineno)
            project = files.relative(name)
            if project is not None:
                return outside, f"{project}:{frame.f_lineno}, in {frame.f_code.co_name}"
            if name.endswith("triton_toolkit/export/original.py"):
                break  # above it there is no code of the user
        frame = frame.f_back
    outside = outside or ("", 0)
    return outside, f"{Path(outside[0]).name}:{outside[1]}"


def _add(texts: list[str], text: str) -> None:
    if text not in texts:
        texts.append(text)
