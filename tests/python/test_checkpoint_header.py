"""Hostile safetensors headers: an error that names the file, at once, and little memory."""

from __future__ import annotations

import contextlib
import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from ngram_ple.checkpoint.safetensors_file import TensorSlice, read_header
from ngram_ple.errors import CheckpointError
from ngram_ple.json_file import object_entries
from safetensors.torch import save_file


def write_file(path: Path, header: object, data: int = 16, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + b"\1" * data)
    return path


def entry(dtype: Any = "U8", shape: Any = (16,), offsets: Any = (0, 16), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def test_agrees_with_safetensors(tmp_path: Path) -> None:
    tensors = {
        "a": torch.arange(6, dtype=torch.int64).view(2, 3),
        "b é": torch.zeros(0, 4),
        'quote"\\slash': torch.ones((), dtype=torch.bfloat16),
        "c": torch.ones(3).to(torch.float8_e4m3fn),
    }
    path = tmp_path / "x.safetensors"
    save_file(tensors, path, metadata={"k": '{"v": [1, "}"]}'})
    header = read_header(path)
    assert set(header) == set(tensors)
    for name, tensor in tensors.items():
        found = header[name]
        assert (found.file, found.shape, found.nbytes) == (path, tuple(tensor.shape), tensor.nbytes)
        assert found.read_bytes(100) == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    assert set(read_header(path, lambda name: name == "c")) == {"c"}
    with pytest.raises(CheckpointError, match="a tensor of 48 bytes, at most 47 expected"):
        header["a"].read_bytes(47)


def test_unknown_dtypes_of_other_tensors_pass(tmp_path: Path) -> None:
    header = read_header(
        write_file(tmp_path / "x", {"t": entry("F4", [32]), "u": entry(offsets=[0, 0], shape=[0])})
    )
    assert header["t"] == TensorSlice(tmp_path / "x", 8 + (tmp_path / "x").stat().st_size - 24, "F4", (32,))


EMPTY = b'{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
CASES: list[tuple[object, str]] = [
    ({"t": entry(offsets=[0, 17], shape=[17])}, "truncated: 't' ends at byte"),
    (
        {"t": entry(shape=[2**62, 2**62], offsets=[0, 16])},
        "takes 2126764793255865.* bytes, data_offsets give 16",
    ),
    ({"t": entry(shape=[2**62], offsets=[0, 2**62])}, "truncated: 't' ends"),
    ({"t": entry(offsets=[16, 0])}, r"data_offsets must be \[begin, end\] in this order"),
    (
        {"t": entry(offsets=[0, 8], shape=[8]), "u": entry(offsets=[7, 16], shape=[9])},
        "two tensors overlap at byte",
    ),
    ({"t": entry(), "u": entry()}, "two tensors overlap"),
    ({"t": entry(shape=[15])}, r"U8 \[15\] takes 15 bytes, data_offsets give 16"),
    ({"t": entry(shape=[-16])}, "shape must be a list of integers >= 0"),
    ({"t": entry(shape=[16.0])}, "shape must be a list of integers >= 0"),
    ({"t": entry(shape=[True] * 4)}, "shape must be a list of integers >= 0"),
    ({"t": entry(shape="16")}, "shape must be a list of integers"),
    ({"t": entry(offsets=[-1, 15])}, "data_offsets must be a list of integers >= 0"),
    ({"t": entry(offsets=[0])}, "data_offsets must be .begin, end."),
    ({"t": entry(dtype=3)}, "dtype must be a string"),
    ({"t": entry(more=1)}, "must have exactly dtype, shape and data_offsets"),
    ({"t": 3}, "must have exactly dtype"),
    ({"t": entry(shape=[1] * 5000)}, "an entry of .* bytes, at most 4096"),
    ({"t" * 5000: entry()}, "a JSON key of 5002 bytes"),
    (b'{"t":{"dtype":"U8","shape":[16],"data_offsets":[0,16]},"\\u0074":' + EMPTY + b"}", "'t' occurs twice"),
    (b'{"t":' + EMPTY + b',"t":' + EMPTY + b',"u":' + EMPTY + b"}", "'t' occurs twice"),
    (b'{"t":' + EMPTY + b',"u":' + EMPTY + b',"u":' + EMPTY + b"}", "'u' occurs twice"),
    (b'{"t":{"dtype":"U8","shape":[' + b"9" * 4000 + b'],"data_offsets":[0,16]}}', "takes 9999"),
    (b'{"t":{"dtype":"U8","shape":[16],"data_offsets":[0,16]}', "expected '}'"),
    (b'{"t":{"dtype":"U8","shape":[16],"data_offsets":[0,16]}}{}', "unexpected text after"),
    (b'{"t":{"dtype":"U8"', "does not end"),
    (b'{"t', "does not end"),
    (b'{"t": "\\"', "does not end"),
    (b'{"\xff": 1}', "t decode byte"),
    (b'{"t"}', "expected ':'"),
    (b"{,}", "expected '\"'"),
    (b'{"t":}', "expected a value"),
    (b"[]", "expected '{'"),
    (b"", "expected '{'"),
    (b"[" * 10_000, "expected '{'"),
    (b'{"t":' + b"[" * 100_000, "nested too deeply"),
    (b'{"t":[' + b"[]," * 1_000_000 + b"1]}", "nested too deeply"),
    (b'{"__metadata__":"' + b"\\" * 3_000_000, "does not end"),
]


@pytest.mark.parametrize(("header", "message"), CASES)
def test_bad_headers(tmp_path: Path, header: object, message: str) -> None:
    path = write_file(tmp_path / "x.safetensors", header)
    begin = time.monotonic()
    with pytest.raises(
        CheckpointError, match=f"x\\.safetensors: bad safetensors header: .*{message}"
    ) as caught:
        read_header(path)
    assert time.monotonic() - begin < 1
    assert len(str(caught.value)) < 6000


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**40, 25])
def test_claimed_header_length(tmp_path: Path, length: int) -> None:
    path = write_file(tmp_path / "x.safetensors", {}, length=length, data=22)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=f"truncated: a header of {length} bytes in a file of 32 bytes"):
        read_header(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_enormous_header(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes((1 << 30).to_bytes(8, "little"))
    with path.open("r+b") as file:
        file.truncate(1 << 31)  # sparse
    with pytest.raises(CheckpointError, match="a header of 1073741824 bytes, at most 25165824 allowed"):
        read_header(path)


@pytest.mark.parametrize("doubled", ["7", r"\u0037"])
def test_doubled_name_that_is_not_kept(tmp_path: Path, doubled: str) -> None:
    entries = [b'"%d":%b' % (number, EMPTY) for number in range(20)]
    text = b"{" + b",".join([*entries, b'"%b":%b' % (doubled.encode(), EMPTY), b'"x":' + EMPTY]) + b"}"
    with pytest.raises(CheckpointError, match="the key '7' occurs twice"):
        read_header(write_file(tmp_path / "x.safetensors", text), lambda name: False)


def test_overlap_among_many(tmp_path: Path) -> None:
    header = {f"t{i}": entry(shape=[2], offsets=[2 * i, 2 * i + 2]) for i in range(100)}
    path = write_file(tmp_path / "x.safetensors", header, data=200)
    assert len(read_header(path)) == 100
    header["t50"] = entry(shape=[3], offsets=[99, 102])
    with pytest.raises(CheckpointError, match="two tensors overlap at byte"):
        read_header(write_file(path, header, data=200))


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("field", ["dtype", "shape", "data_offsets"])
@pytest.mark.parametrize("value", ["X9", "U8", [], [16], [1, 16], [16, 0], [0, 16], [0, 17], [-0.0, 16], 3])
def test_both_ways_through_an_entry_agree(
    tmp_path: Path, field: str, value: object, separators: tuple[str, str]
) -> None:
    """The usual spelling has a shortcut; the same entry spelt otherwise gives the same."""
    fields = {**entry(), field: value}
    texts = [
        json.dumps({"t": fields, "u": entry(shape=[0], offsets=[0, 0])}, separators=separators),
        json.dumps({"t": dict(reversed(fields.items())), "u": entry(shape=[0], offsets=[0, 0])}, indent=1),
    ]
    results = []
    for text in texts:
        path = write_file(tmp_path / "x", text.encode())
        try:
            found = read_header(path)["t"]
            results.append((found.dtype, found.shape, found.offset - len(text)))
        except CheckpointError:
            results.append(None)
    assert results[0] == results[1]


def valid_file() -> bytes:
    header = {
        "__metadata__": {"format": "pt"},
        "a.ngram_embedding.shard_0.weight": entry("BF16", [2, 2], [0, 8]),
        "b": entry("U8", [8], [8, 16]),
    }
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(16)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flips=st.lists(st.tuples(st.integers(0, len(valid_file()) - 1), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, len(valid_file())),
    tail=st.binary(max_size=20),
)
@example(flips=[], cut=len(valid_file()), tail=b"")
def test_any_damage(tmp_path: Path, flips: list[tuple[int, int]], cut: int, tail: bytes) -> None:
    """Flipped bytes and cut ends: a header that holds its bounds, or an error with the file's name."""
    content = bytearray(valid_file())
    for position, value in flips:
        content[position] = value
    path = tmp_path / "x.safetensors"
    path.write_bytes(bytes(content[:cut]) + tail)
    try:
        header = read_header(path)
    except CheckpointError as error:
        if str(path) not in str(error):
            raise
    else:
        for tensor in header.values():
            assert 0 <= tensor.offset <= path.stat().st_size


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=6)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.text(max_size=6), JSON, max_size=6), st.sampled_from([None, 2]), st.booleans())
def test_walk_agrees_with_json(value: dict[str, Any], indent: int | None, ascii_only: bool) -> None:
    data = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    try:
        expected = json.loads(data)
    except UnicodeDecodeError:
        return
    assert {key: json.loads(data[begin:end]) for key, begin, end, _ in object_entries(data)} == expected


@given(st.binary(max_size=60).map(lambda tail: b'{"a": ' + tail))
def test_walk_ends_on_anything(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        list(object_entries(data))
