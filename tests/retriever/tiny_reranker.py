"""A tiny cross-encoder in the folders of a model cache, so that tests run fastembed's real loading code.

The score of a pair is that of its best token: ``gold`` has a high score, all others have zero.
"""

import json
import struct
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from .tiny_model import _bytes, _number, _tensor

NAME = "Xenova/ms-marco-MiniLM-L-6-v2"
"""A model name that fastembed knows. The files are ours."""


def write_reranker(cache: Path, worth: float = 5.0) -> str:
    """Write the model into the cache as if it was downloaded, and return its name. An infinite worth breaks it."""
    folder = cache / f"models--{NAME.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("0" * 40)
    (snapshot / "onnx").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "gold": 2}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.save(str(snapshot / "tokenizer.json"))
    (snapshot / "onnx" / "model.onnx").write_bytes(_model([0.0, 0.0, worth]))
    (snapshot / "config.json").write_text(json.dumps({"pad_token_id": 0}))
    (snapshot / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 128, "pad_token": "[PAD]"}))
    (snapshot / "special_tokens_map.json").write_text(json.dumps({"pad_token": "[PAD]", "unk_token": "[UNK]"}))
    return NAME


def _model(token_worths: list[float]) -> bytes:
    """Return a graph that computes the maximum of a pair's token worths. ``logits`` has the shape batch, 1."""
    floats, integers = 1, 7
    data = b"".join(struct.pack("<f", worth) for worth in token_worths)
    table = _number(1, len(token_worths)) + _number(1, 1) + _number(2, floats) + _bytes(8, "table") + _bytes(9, data)
    gather = _bytes(1, "table") + _bytes(1, "input_ids") + _bytes(2, "each") + _bytes(4, "Gather")
    attribute = _bytes(1, "axes") + _number(20, 7) + _number(8, 1)
    keep = _bytes(1, "keepdims") + _number(20, 2) + _number(3, 0)
    total = _bytes(1, "each") + _bytes(2, "logits") + _bytes(4, "ReduceMax") + _bytes(5, attribute) + _bytes(5, keep)
    graph = (
        _bytes(1, gather)
        + _bytes(1, total)
        + _bytes(2, "tiny")
        + _bytes(5, table)
        + _bytes(11, _tensor("input_ids", integers, ("batch", "length")))
        + _bytes(11, _tensor("attention_mask", integers, ("batch", "length")))
        + _bytes(12, _tensor("logits", floats, ("batch", "1")))
    )
    return _number(1, 8) + _bytes(7, graph) + _bytes(8, _bytes(1, "") + _number(2, 11))
