"""``ngram-ple verify``: exit status, and every problem named."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import ngram_ple.checkpoint.verify as verify_module
import pytest
import torch
from checkpoints import FORMATS, PREFIX, Source, make_source, save_tensors, shard, small_config
from ngram_ple import NGramEmbedding
from ngram_ple.checkpoint import stored_config
from ngram_ple.cli import main
from ngram_ple.errors import NgramPleWarning
from ngram_ple.hash_plan import HashPlan

PLAN = HashPlan.from_config(small_config())


def source_of(format: str) -> Source:
    return make_source(format, PLAN.padded_rows)


def save(folder: Path, format: str, tensors: dict[str, torch.Tensor], **more: Any) -> Path:
    config = stored_config(small_config(), format)
    config["text_config"].update(more)
    return save_tensors(folder, tensors, config, files=3)


def verdict(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[list[str], list[str]]:
    """Problems and notes; exit status, --json and the text for people agree."""
    status = main(["verify", str(folder), "--json", *more])
    printed = capsys.readouterr()
    assert printed.err == ""
    told = json.loads(printed.out)
    assert status == (1 if told["problems"] else 0)
    assert told["ok"] == (status == 0)
    assert main(["verify", str(folder), *more]) == status
    lines = capsys.readouterr().out.splitlines()
    assert [line[9:] for line in lines if line.startswith("problem")] == told["problems"]
    assert lines[-1].startswith("result")
    return told["problems"], told["notes"]


def write_sums(folder: Path, **changed: str) -> Path:
    """Write what ``sha256sum *`` prints."""
    sums = folder.parent / "sums"
    digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}
    sums.write_text("".join(f"{digest}  {name}\n" for name, digest in {**digests, **changed}.items()))
    return sums


@pytest.mark.parametrize("format", FORMATS)
def test_whole_checkpoint(format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = source_of(format).write(tmp_path / "checkpoint")
    assert verdict(folder, capsys) == ([], [])
    assert verdict(folder, capsys, "--checksums", str(write_sums(folder)), "--threads", "3") == ([], [])


def test_every_problem_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = source_of("nvfp4").named()
    del tensors[shard(0)], tensors[shard(2)]
    tensors[shard(1)] = tensors[shard(1)][1:]
    scales = tensors[shard(3, "weight_scale")].clone()
    scales.view(torch.uint8)[4:9, 0] = 0x7F
    tensors[shard(3, "weight_scale")] = scales
    tensors[shard(4, "weight_scale_2")] = torch.tensor([float("nan")])
    tensors["ngram_embedding.bias"] = torch.zeros(3)
    tensors["layer_multipliers"] = torch.tensor([1, 2, 3])
    tensors["ngram_heads_offsets"] = torch.zeros(4)
    problems, _ = verdict(save(tmp_path / "x", "nvfp4", tensors, ple_embedding_dtype=None), capsys)
    size = -(-PLAN.padded_rows // 5)
    expected = [
        rf"{PREFIX}{shard(0)} missing: expected U8 [{size}, 16] for rows 0..{size - 1}",
        rf"{PREFIX}{shard(2)} missing: expected U8",
        f"{shard(1)}: expected U8 [{size}, 16], got U8 [{size - 1}, 16]",
        f"{shard(3, 'weight_scale')}: expected finite scales, 5 rows from row {3 * size + 4} on have a NaN",
        f"{shard(4, 'weight_scale_2')}: expected a finite scale, got nan",
        "ngram_embedding.bias: unknown tensor",
        "layer_multipliers: 3 of 3 values differ from those of config.json, first [0]: 1 stored",
        "ngram_heads_offsets: expected I64 [4], got F32 [4]",
        "is nvfp4: ",
    ]
    for text in expected:
        assert sum(text in problem for problem in problems) == 1, text
    assert len(problems) == len(expected)


@pytest.mark.parametrize("format", ["fp8-rowwise", "nvfp4"])
def test_scales_are_read_in_blocks(
    format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_module, "SCALE_BLOCK_BYTES", 9)
    source = source_of(format)
    source.write(tmp_path)
    assert verdict(tmp_path, capsys) == ([], [])
    assert source.weight_scale is not None
    source.weight_scale.view(torch.uint8)[[5, 50], :] = 0x7F if format == "nvfp4" else 0xFF
    source.write(tmp_path)
    problems, _ = verdict(tmp_path, capsys)
    size = -(-PLAN.padded_rows // 5)
    assert [f"row {row} has a NaN" in text for row, text in zip((5, 50), problems, strict=True)] == [True] * 2
    assert f"shard_{50 // size}.weight_scale" in problems[1]


def test_global_scales_disagree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = source_of("nvfp4").named()
    tensors[shard(2, "weight_scale_2")] = torch.tensor([0.5])
    (problem,), _ = verdict(save(tmp_path / "x", "nvfp4", tensors), capsys)
    assert "weight_scale_2: expected the global scale" in problem


def test_broken_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(tmp_path / "x", "bf16", source_of("bf16").named())
    os.truncate(folder / "part-0.safetensors", 30)
    (folder / "part-1.safetensors").unlink()
    os.mkfifo(folder / "part-1.safetensors")
    problems, _ = verdict(folder, capsys)
    assert any("part-0.safetensors: truncated" in text for text in problems)
    assert any("part-1.safetensors: not a regular file" in text for text in problems)
    assert sum("missing: expected BF16" in text for text in problems) == 4  # two shards a file
    (folder / "part-2.safetensors").unlink()
    problems, _ = verdict(folder, capsys)
    assert any("part-2.safetensors: No such file" in text for text in problems)
    assert any("got no ngram_embedding tensor at all" in text for text in problems)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "No such file"), ("{", "unreadable"), ("{}", "ple_layer_ids")]
)
def test_wrong_config(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = source_of("bf16").write(tmp_path / "x")
    (folder / "config.json").unlink()
    if content is not None:
        (folder / "config.json").write_text(content)
    (problem,), _ = verdict(folder, capsys)
    assert message in problem


def test_unsupported_algorithm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    method = {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}
    folder = save(tmp_path / "x", "bf16", source_of("bf16").named(), quantization_config=method)
    (problem,), _ = verdict(folder, capsys)
    assert "W4A16_AWQ" in problem


def test_notes_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(
        tmp_path / "x", "bf16", source_of("bf16").named(), quantization_config={"quant_method": "awq"}
    )
    problems, (note,) = verdict(folder, capsys)
    assert not problems
    assert "quant_method 'awq' is unknown" in note
    with pytest.warns(NgramPleWarning, match="awq"):
        NGramEmbedding.from_pretrained(folder, placement="cpu")


def test_checksums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = source_of("fp8").write(tmp_path / "x")
    (folder / "sub").mkdir()
    (folder / "sub").rmdir()
    files = sorted(folder.glob("*.safetensors"))
    sums = write_sums(folder, **{"model-00099-of-00099.safetensors": "0" * 64})
    problems, (note,) = verdict(folder, capsys, "--checksums", str(sums))
    assert not problems
    assert "model-00099-of-00099.safetensors" in note
    with files[0].open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    sums.write_text("".join(line for line in sums.open() if files[1].name not in line))
    problems, _ = verdict(folder, capsys, "--checksums", str(sums))
    assert [files[0].name in problems[0], files[1].name in problems[1]] == [True, True]
    assert "expected sha256 " in problems[0]
    assert "the checksums do not list it" in problems[1]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "expected lines as sha256sum writes them, got none"),
        ("0123  x\n", "sums:1: expected '<64 hexadecimal digits>  <file>'"),
        (f"\n{'0' * 64}  ../x\n", "sums:2: expected a file inside the checkpoint folder, got '../x'"),
        (f"{'0' * 64}  /etc/passwd\n", "expected a file inside"),
        (f"{'0' * 64}  a\n{'1' * 64} *a\n", "'a' is listed twice"),
        (b"\xff\n", "can't decode"),
        (None, "No such file"),
    ],
)
def test_wrong_checksum_files(
    lines: str | bytes | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = source_of("bf16").write(tmp_path / "x")
    sums = tmp_path / "sums"
    if lines is not None:
        sums.write_bytes(lines if isinstance(lines, bytes) else lines.encode())
    assert main(["verify", str(folder), "--checksums", str(sums)]) == 2
    assert message in capsys.readouterr().err


def test_checksum_of_a_link_that_leads_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = source_of("bf16").write(tmp_path / "x")
    (folder / "note").symlink_to("/etc/hostname")
    os.mkfifo(folder / "pipe")
    sums = tmp_path / "sums"
    names = [*(file.name for file in folder.glob("*.safetensors")), "note", "pipe"]
    sums.write_text("".join(f"{'0' * 64}  {name}\n" for name in names))
    problems, _ = verdict(folder, capsys, "--checksums", str(sums))
    assert any("note leads out of the folder" in text for text in problems)
    assert any("pipe: not a regular file" in text for text in problems)


def test_usage_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path / "none")]) == 2
    assert "must be a checkpoint folder, got nothing" in capsys.readouterr().err
    folder = source_of("bf16").write(tmp_path / "x")
    assert main(["verify", str(folder), "--layer", "3"]) == 2
    assert "layer must be an index" in capsys.readouterr().err
