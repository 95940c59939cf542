"""The tokenizer model, on the real server."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
CONFIG = """
name: "tokenizer"
backend: "python"
max_batch_size: 32
input { name: "text" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }
output { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
# A batch of exactly three rows goes out at once; the delay only bounds a test that is broken.
dynamic_batching { preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 5000000 }
"""


def texts(*values):
    array = np.empty((len(values), 1), dtype=object)
    array[:, 0] = [value if isinstance(value, bytes) else value.encode() for value in values]
    return {"text": array}


@pytest.fixture(scope="module")
def client(embedded_server, tmp_path_factory):
    from triton_toolkit.client.triton import TritonClient

    pytest.importorskip("tokenizers")
    repository = tmp_path_factory.mktemp("repository")
    shutil.copytree(ROOT / "examples/tokenizer", repository / "tokenizer/1")
    (repository / "tokenizer/config.pbtxt").write_text(CONFIG)
    server = embedded_server(repository)
    assert server.load_error("tokenizer") == ""
    with TritonClient(server.grpc_url) as client:
        yield client


def rows(result):
    """Return the tokens of each row without padding, and check that the padding is at the end."""
    ids, mask = result.outputs["input_ids"], result.outputs["attention_mask"]
    lengths = mask.sum(axis=1)
    assert (mask == (np.arange(mask.shape[1]) < lengths[:, None])).all()
    assert not (ids * (1 - mask)).any()
    return [row[:length].tolist() for row, length in zip(ids, lengths, strict=True)]


@pytest.mark.server
def test_a_request_is_padded_to_its_longest_text(client):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(ROOT / "examples/tokenizer/tokenizer.json"))
    words = ("Where is my parcel?", "", "Żółta łódź, 日本語, for all who wait for the rain")
    result = client.infer("tokenizer", texts(*words))
    assert rows(result) == [tokenizer.encode(word).ids for word in words]
    longest = max(len(tokenizer.encode(word).ids) for word in words)
    assert result.outputs["input_ids"].shape[1] == -(-longest // 8) * 8


@pytest.mark.server
def test_a_text_that_is_too_long_is_cut(client):
    result = client.infer("tokenizer", texts("word " * 300, "a", "b"))
    assert result.outputs["input_ids"].shape == (3, 128)


@pytest.mark.server
def test_a_request_that_is_not_utf8_fails_alone_and_answers_do_not_depend_on_the_batch(client):
    from triton_toolkit.errors import RefusedError

    def ask(text):
        try:
            return client.infer("tokenizer", texts(text))
        except RefusedError as exc:
            return exc

    before = client.statistics("tokenizer").execution_count
    with ThreadPoolExecutor(3) as pool:
        short, wrong, long = pool.map(
            ask, ["hi", b"caf\xe9", "a much longer text than the other one, really"]
        )
    assert client.statistics("tokenizer").execution_count == before + 1
    assert "text 0 is not UTF-8: byte 3 is 0xe9" in str(wrong)
    assert short.outputs["input_ids"].shape == (1, 8)
    assert long.outputs["input_ids"].shape[1] > 8
    alone = client.infer("tokenizer", texts("hi", "hi", "hi"))
    assert rows(short)[0] == rows(alone)[0]
