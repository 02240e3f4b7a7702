"""A tiny sentence encoder in handwritten ONNX, so that tests run fastembed's real loading code.

The graph is one Gather: a token's vector is its row of a table. Words of one group share a row, so the model knows that
a car is an automobile. Words outside the groups are unknown, and so is Chinese.
"""

import json
import struct
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

DIMENSION = 16
GROUPS = (
    ("car", "automobile", "vehicle", "cars"),
    ("doctor", "physician", "medical", "certificate"),
    ("holiday", "leave", "vacation", "days"),
    ("money", "salary", "pay", "paid"),
    ("pump", "pumps", "valve", "valves", "pressure"),
    ("engine", "motor"),
)


def write_model(folder: Path) -> Path:
    """Write the model folder and return it."""
    folder.mkdir()
    vocabulary = {"[PAD]": 0, "[UNK]": 1}
    rows = [[0.0] * DIMENSION, [0.3] * DIMENSION]
    for group, words in enumerate(GROUPS):
        for word in words:
            vocabulary[word] = len(vocabulary)
            rows.append([1.0 if column == group else 0.01 * column for column in range(DIMENSION)])
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "model.onnx").write_bytes(_model(rows))
    (folder / "config.json").write_text(json.dumps({"hidden_size": DIMENSION, "pad_token_id": 0}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 128, "pad_token": "[PAD]"}))
    (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": "[PAD]", "unk_token": "[UNK]"}))
    return folder


# The wire format of protocol buffers, with the field numbers of onnx.proto.


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _tensor(name: str, element: int, shape: tuple[str, ...]) -> bytes:
    """Return the ValueInfoProto of a tensor. A dimension that is not a number is free."""
    sizes = (_number(1, int(size)) if size.isdigit() else _bytes(2, size) for size in shape)
    dimensions = b"".join(_bytes(1, size) for size in sizes)
    return _bytes(1, name) + _bytes(2, _bytes(1, _number(1, element) + _bytes(2, dimensions)))


def _model(rows: list[list[float]]) -> bytes:
    floats, integers = 1, 7
    data = b"".join(struct.pack(f"<{DIMENSION}f", *row) for row in rows)
    table = _number(1, len(rows)) + _number(1, DIMENSION) + _number(2, floats) + _bytes(8, "table") + _bytes(9, data)
    node = _bytes(1, "table") + _bytes(1, "input_ids") + _bytes(2, "last_hidden_state") + _bytes(4, "Gather")
    graph = (
        _bytes(1, node)
        + _bytes(2, "tiny")
        + _bytes(5, table)
        + _bytes(11, _tensor("input_ids", integers, ("batch", "length")))
        + _bytes(11, _tensor("attention_mask", integers, ("batch", "length")))
        + _bytes(12, _tensor("last_hidden_state", floats, ("batch", "length", str(DIMENSION))))
    )
    return _number(1, 8) + _bytes(7, graph) + _bytes(8, _bytes(1, "") + _number(2, 13))
