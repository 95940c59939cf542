"""The tokenizer as a model of Triton's Python backend: BYTES in, token ids out.

Triton loads this file with ``tokenizer.json`` beside it. Everything in this folder is deployed;
what made the tokenizer lies in ``examples/pipeline``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Encoding, Tokenizer

MAX_TOKENS = 128
"""The encoder has no positions beyond these; longer texts are cut."""

PAD_TO = 8
"""Lengths are rounded up to multiples of this. The encoder's dynamic batcher joins only requests of
equal shape, so fewer different lengths make fuller batches; its mask makes the padding harmless."""


class TritonPythonModel:
    """Tokenizes texts of shape [batch, 1] into ids and a mask of shape [batch, seq]."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer of this version."""
        folder = Path(args["model_repository"]) / args["model_version"]
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(MAX_TOKENS)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer a batch of requests.

        All texts are tokenized in one call, which is what batching is good for here. But each request
        is padded to its own longest text and fails alone: an answer never depends on who else is in
        the batch.
        """
        texts = [self._texts(request) for request in requests]
        good = [text for group in texts if isinstance(group, list) for text in group]
        encodings = iter(self.tokenizer.encode_batch(good))
        responses = []
        for group in texts:
            if isinstance(group, list):
                responses.append(_response([next(encodings) for _ in group]))
            else:
                responses.append(pb_utils.InferenceResponse(error=group))
        return responses

    def _texts(self, request: Any) -> list[str] | Any:
        """Return a request's texts, or the error to answer it with."""
        values = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
        texts = []
        for row, value in enumerate(values.ravel()):
            try:
                texts.append(value.decode("utf-8"))
            except UnicodeDecodeError as exc:
                return pb_utils.TritonError(
                    f"text {row} is not UTF-8: byte {exc.start} is 0x{value[exc.start]:02x}",
                    pb_utils.TritonError.INVALID_ARG,
                )
        return texts


def _response(encodings: list[Encoding]) -> Any:
    """Pad to the longest text of the request, in steps of ``PAD_TO``."""
    longest = max(len(encoding.ids) for encoding in encodings)
    seq = min(-(-longest // PAD_TO) * PAD_TO, MAX_TOKENS)
    ids = np.zeros((len(encodings), seq), np.int64)  # id 0 is padding
    mask = np.zeros_like(ids)
    for row, encoding in enumerate(encodings):
        ids[row, : len(encoding.ids)] = encoding.ids
        mask[row, : len(encoding.ids)] = 1
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor("input_ids", ids), pb_utils.Tensor("attention_mask", mask)]
    )
