"""Are the answers right? With a golden sample, against it; without, as far as can be told.

Without a sample an answer must still be what the server declares (names, types, shapes, version),
hold no NaN or infinity, and be the same whether a request is sent alone or beside others: a batch
whose rows were mixed up shows there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.compare import Difference, compare_outputs
from triton_toolkit.errors import RefusedError
from triton_toolkit.probe.answers import answer_problems, differs_only_there, loose_differences
from triton_toolkit.probe.golden import Golden
from triton_toolkit.probe.payload import Payload, join
from triton_toolkit.probe.single import Reply, Single
from triton_toolkit.probe.wire import Answer, Wire

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from triton_toolkit.probe.model import LiveModel

    Arrays = Mapping[str, NDArray[Any]]

_BATCH_ROWS = 4
_BUDGET_MS = 2000.0
"""About how long the different payloads may take one after the other."""


@dataclass(frozen=True, slots=True)
class Check:
    """Something that was checked, in words, and whether it is as it should be."""

    text: str
    ok: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Correctness:
    """What was checked before the load, and what was found.

    Attributes:
        golden: Where the golden sample is from; empty without one.
        missing: Why there is none.
        tolerance: Of outputs against the sample, as a passport has it; {} without a sample.
        checks: What was checked, and how it came out.
        problems: What is wrong, in words; [] when the answers are right.
        differences: How each output compares with the sample, at its worst.
        deterministic: Whether the same request gave the same answer twice.
        requests: Single requests sent.
        failures: Kind -> single requests that failed before one succeeded.
    """

    golden: str
    missing: str
    tolerance: dict[str, Any]
    checks: tuple[Check, ...]
    problems: tuple[str, ...]
    differences: tuple[Difference, ...]
    deterministic: bool
    requests: int
    failures: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Return it for a report."""
        return {
            "ok": not self.problems,
            "golden_sample": self.golden or None,
            "no_sample_because": self.missing or None,
            "tolerance": self.tolerance,
            "checks": [check.text for check in self.checks],
            "failed_checks": [check.text for check in self.checks if not check.ok],
            "problems": list(self.problems),
            "differences": [difference.as_dict() for difference in self.differences],
            "deterministic": self.deterministic,
            "requests": self.requests,
            "failures": self.failures,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """What is sent: the load's payloads, the rows they are made of, the golden sample ([] without)."""

    payloads: Sequence[Payload]
    cases: Sequence[Payload]
    golden: Sequence[Payload]


@dataclass(slots=True)
class Reference:
    """What each payload must give under load.

    Attributes:
        alone: The answer that each payload had alone, as it came.
        expected: The outputs to compare with: the sample's, else those it had alone; None where the
            model gives the same request different answers.
        golden: Whether ``expected`` is from a sample.
        version: The version that answered.
    """

    alone: list[Answer] = field(default_factory=list)
    expected: list[Arrays | None] = field(default_factory=list)
    golden: bool = False
    version: str = ""


@dataclass(slots=True)
class Loaded:
    """What was found in answers given under load that were not what their requests gave alone.

    Attributes:
        wrong: What is wrong, one text an answer that is.
        others: Version -> answers of versions that took over, which need not answer the same.
    """

    wrong: list[str] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)


class Checker:
    """Checks a model's answers.

    Args:
        model: The model as its server declares it.
        golden: The golden sample, where there is one.
        single: Sends the single requests.
    """

    def __init__(self, model: LiveModel, golden: Golden, single: Single) -> None:
        self._model = model
        self._golden = golden
        self._single = single
        self._requests = 0
        self._problems: dict[str, None] = {}
        self._differences: dict[str, Difference] = {}
        self._checks: list[Check] = []
        self._as_declared = True
        self._as_sample = True
        self._deterministic = True

    def check(self, requests: Requests, first: Reply) -> Reference:
        """Send the payloads alone, the sample as it was recorded, and rows alone and together.

        A slow model is asked less: the reference then covers the first payloads only, at least one.

        Args:
            requests: What is sent.
            first: The answer to the first payload, already there.
        """
        self._requests += 1
        again_ms = self._check_repeated(requests.payloads[0], first)
        # The first request may have been cold, so the faster of two tells what the next ones cost.
        affordable = max(1, int(_BUDGET_MS / max(min(first.latency_ms, again_ms), 1e-3)))
        chosen = requests.payloads[:affordable]
        replies = [first, *(self._ask(payload) for payload in chosen[1:])]
        reference = Reference(golden=chosen[0].expected is not None, version=first.result.model_version)
        for payload, reply in zip(chosen, replies, strict=True):
            self._judge(payload, reply)
            reference.alone.append(reply.answer)
            alone = reply.result.outputs if self._deterministic else None
            reference.expected.append(payload.expected or alone)
        self._check_golden(requests.golden)
        if self._deterministic:
            self._check_batch(requests.cases[:affordable])
        return reference

    def result(self) -> Correctness:
        """Return what was found."""
        return Correctness(
            golden=self._golden.origin if self._golden.samples else "",
            missing=self._golden.missing,
            tolerance=self._golden.tolerances.as_dict() if self._golden.samples else {},
            checks=tuple(self._checks),
            problems=tuple(self._problems),
            differences=tuple(self._differences.values()),
            deterministic=self._deterministic,
            requests=self._requests,
            failures=dict(self._single.failures),
        )

    def check_loaded(
        self, reference: Reference, kept: Sequence[tuple[int, Answer]], wire: Wire, rows: int
    ) -> Loaded:
        """Look at answers given under load that were not byte for byte what they were alone."""
        found = Loaded()
        for index, answer in kept:
            try:
                result = wire.decode(answer)
            except RefusedError as exc:
                found.wrong.append(exc.message)
                continue
            expected = reference.expected[index]
            if result.model_version != reference.version and not self._model.version:
                found.others[result.model_version] += 1
                expected = None
            problems = answer_problems(self._model, result, rows, exempt=expected or {})
            if expected is not None:
                compare = self._compare if reference.golden else loose_differences
                problems += [
                    f"output {d.output!r} {d.problem}" for d in compare(result.outputs, expected) if not d.ok
                ]
            if problems:
                found.wrong.append("; ".join(problems))
        return found

    def _ask(self, payload: Payload) -> Reply:
        self._requests += 1
        return self._single.ask(payload.inputs)

    def _check_repeated(self, payload: Payload, first: Reply) -> float:
        """Send the first payload again; return how long it took, in ms."""
        again = self._ask(payload)
        if again.answer.body != first.answer.body:
            differences = loose_differences(again.result.outputs, first.result.outputs)
            self._deterministic = all(difference.ok for difference in differences)
        if self._deterministic:
            self._checks.append(Check("the same twice"))
        else:
            self._checks.append(
                Check("the same request gives different answers, so answers are not held against others")
            )
        return again.latency_ms

    def _judge(self, payload: Payload, reply: Reply) -> None:
        rows = _rows(payload)
        problems = answer_problems(self._model, reply.result, rows, exempt=payload.expected or {})
        self._as_declared &= not problems
        self._note(problems)
        if payload.expected is not None:
            self._compare_golden(reply.result.outputs, payload.expected)

    def _check_golden(self, payloads: Sequence[Payload]) -> None:
        """Send the sample as it was recorded, or in parts of the most rows that the model takes."""
        for payload in payloads:
            reply = self._ask(payload)
            expected: Arrays = payload.expected or {}
            if len(payloads) > 1:  # padded to the longest row of a part, not of the whole
                expected = self._comparable(reply.result.outputs, expected)
            self._judge(Payload(payload.inputs, dict(expected)), reply)
        self._checks.append(Check("as declared, no NaN or infinity", self._as_declared))
        if payloads:
            rows = sum(_rows(payload) for payload in payloads)
            size = f"{rows} rows" if self._model.batched else "1 request"
            self._checks.append(Check(f"golden sample ({size})", self._as_sample))

    def _check_batch(self, cases: Sequence[Payload]) -> None:
        """Send rows alone and in one batch: each must get the same answer."""
        count = min(self._model.max_batch_size, _BATCH_ROWS, len(cases))
        if count < 2:
            return
        alone = [self._ask(case).result.outputs for case in cases[:count]]
        together = self._ask(join(cases[:count])).result
        problems = answer_problems(self._model, together, count, exempt={})
        for row, expected in enumerate(alone if not problems else ()):
            actual = {name: array[row : row + 1] for name, array in together.outputs.items()}
            differences = loose_differences(actual, self._comparable(actual, expected))
            problems += [
                f"row {row} of a batch of {count} is not what it is alone: output {d.output!r} {d.problem}"
                for d in differences
                if not d.ok
            ]
        self._note(problems)
        self._checks.append(Check(f"{count} rows alone as in a batch", not problems))

    def _comparable(self, actual: Arrays, expected: Arrays) -> Arrays:
        """Leave out outputs that differ in the size of a dynamic dimension, as padding makes them."""
        dynamic = {
            spec.name: tuple(isinstance(extent, str) for extent in spec.shape) for spec in self._model.outputs
        }
        return {
            name: array
            for name, array in expected.items()
            if name not in actual
            or not differs_only_there(actual[name].shape, array.shape, dynamic.get(name, ()))
        }

    def _compare_golden(self, actual: Arrays, expected: Arrays) -> None:
        for difference in self._compare(actual, expected):
            worst = self._differences.get(difference.output)
            if worst is None or (worst.ok, difference.max_absolute) > (difference.ok, worst.max_absolute):
                self._differences[difference.output] = difference
            if not difference.ok:
                self._as_sample = False
                self._note([f"output {difference.output!r} {difference.problem}"])

    def _compare(self, actual: Arrays, expected: Arrays) -> list[Difference]:
        return compare_outputs(actual, expected, self._golden.tolerances)

    def _note(self, problems: Any) -> None:
        self._problems.update(dict.fromkeys(problems))


def _rows(payload: Payload) -> int:
    return next((len(array) for array in payload.inputs.values() if array.ndim), 1)
