"""The example models do what they say; that they export is shown by building them."""

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])


def test_digits_recognises_images_that_it_has_not_seen():
    from examples.digits import accuracy, model

    network = model().eval()
    with torch.no_grad():
        share = accuracy(lambda arrays: {"logits": network(torch.from_numpy(arrays["image"])).numpy()})
    assert share >= 0.97


def test_digits_weights_are_small_enough_for_git():
    from examples.digits import WEIGHTS, model

    assert sum(parameter.numel() for parameter in model().parameters()) < 20_000
    assert WEIGHTS.stat().st_size < 100_000


def test_digits_sample_is_held_out_and_scaled():
    from examples.digits import sample
    from examples.digits.data import held_out, training

    image = sample()["image"]
    assert image.shape == (4, 1, 8, 8)
    assert image.dtype == np.float32
    assert image.min() == 0
    assert image.max() == 1
    seen = {row.tobytes() for row in training()[0]}
    assert not seen & {row.tobytes() for row in held_out()[0]}


@pytest.fixture(scope="module")
def encode():
    sys.path.insert(0, str(ROOT))
    from examples.encoder import model

    encoder = model().eval()

    def run(ids, mask):
        with torch.no_grad():
            return encoder(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()

    yield run
    sys.path.remove(str(ROOT))


def test_encoder_ignores_padding(encode):
    from examples.encoder import sample

    arrays = sample(batch=3, seq=11)
    ids, mask = arrays["input_ids"], arrays["attention_mask"]
    short = encode(ids, mask)
    wide = np.full((3, 40), 7, np.int64)
    wide[:, :11] = ids
    longer = np.zeros((3, 40), np.int64)
    longer[:, :11] = mask
    assert np.allclose(encode(wide, longer), short, atol=1e-6)
    assert not np.allclose(encode(wide, np.ones_like(wide)), short, atol=1e-2)


def test_encoder_gives_vectors_of_length_one(encode):
    from examples.encoder import sample

    vectors = encode(*sample(batch=4, seq=9).values())
    assert vectors.shape == (4, 64)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.isfinite(encode(np.zeros((1, 5), np.int64), np.zeros((1, 5), np.int64))).all()


def test_encoder_is_the_same_each_time_and_leaves_the_seed_alone():
    from examples.encoder import model

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, second = model(), model()
    assert torch.equal(torch.rand(3), expected)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("batch", "seq"), [(1, 1), (2, 1), (5, 3), (32, 128)])
def test_encoder_sample_is_legal_at_any_size(batch, seq):
    from examples.encoder import VOCABULARY, sample

    arrays = sample(batch, seq)
    for array in arrays.values():
        assert array.shape == (batch, seq)
        assert array.dtype == np.int64
    assert arrays["input_ids"].min() >= 0
    assert arrays["input_ids"].max() < VOCABULARY
    assert (arrays["attention_mask"].sum(axis=1) >= 1).all()
    assert arrays["attention_mask"][0].all()


def test_tokenizer_is_the_one_that_its_corpus_gives():
    pytest.importorskip("tokenizers")
    from examples.encoder import VOCABULARY
    from examples.pipeline.make_tokenizer import PADDING, TOKENIZER, make_tokenizer

    tokenizer = make_tokenizer()
    assert TOKENIZER.read_text(encoding="utf-8") == tokenizer.to_str(pretty=True) + "\n"
    assert tokenizer.get_vocab_size() <= VOCABULARY
    assert tokenizer.token_to_id(PADDING) == 0


def test_pipeline_sample_is_utf8_of_one_text_a_row():
    from examples.pipeline import TEXTS, sample

    text = sample()["text"]
    assert text.dtype == object
    assert text.shape == (len(TEXTS), 1)
    assert [row.decode() for row in text[:, 0]] == list(TEXTS)


def test_the_projects_spec_names_things_that_exist():
    from triton_toolkit.export.source import load_callable
    from triton_toolkit.export.trace_files import ProjectFiles
    from triton_toolkit.spec.load import load_project

    project = load_project(ROOT / "tt.yaml")
    assert list(project.spec.models) == [
        "digits",
        "digits_fp16",
        "digits_int8",
        "tokenizer",
        "encoder",
        "text",
    ]
    files = ProjectFiles(ROOT)
    for model in project.spec.models.values():
        assert model.sample is not None
        load_callable(files, model.sample)
        if model.kind == "torch":
            load_callable(files, model.source)
