"""Make ``examples/tokenizer/tokenizer.json`` from the corpus: ``python -m examples.pipeline.make_tokenizer``.

A byte-level BPE: every UTF-8 text has tokens, so there is no unknown token. The same corpus gives
the same file.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from examples.encoder import VOCABULARY

CORPUS = Path(__file__).with_name("corpus.txt")
TOKENIZER = Path(__file__).parents[1] / "tokenizer" / "tokenizer.json"
PADDING, START, END = "[PAD]", "[CLS]", "[SEP]"


def make_tokenizer() -> Tokenizer:
    """Return a tokenizer trained on the corpus; padding has id 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PADDING, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train([str(CORPUS)], trainer)
    special = [(token, tokenizer.token_to_id(token)) for token in (START, END)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}", special_tokens=special
    )
    return tokenizer


def main() -> None:
    """Write the file and say how large the vocabulary is."""
    tokenizer = make_tokenizer()
    TOKENIZER.write_text(tokenizer.to_str(pretty=True) + "\n", encoding="utf-8")
    print(f"{tokenizer.get_vocab_size()} tokens; wrote {TOKENIZER.name}")


if __name__ == "__main__":
    main()
