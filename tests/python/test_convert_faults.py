"""convert where something goes wrong: kills, full disks, sources that change, folders that are taken."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest
import torch
from checkpoints import make_source, small_config
from ngram_ple import HashPlan
from ngram_ple.checkpoint import safetensors_writer, write_checkpoint
from ngram_ple.cli import main
from ngram_ple.convert import convert_checkpoint, layer, record, run
from ngram_ple.errors import CheckpointError, ConfigError
from safetensors.torch import load_file, save_file

CONFIG = small_config(ngram_vocab_size_base=3000, ple_embed_dim=4 * 64, split_ngram_parts=40)
ROWS = HashPlan.from_config(CONFIG).padded_rows
FILE_BYTES = 40_000  # of a few shards
RECORD = record.RECORD


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    table = make_source("bf16", ROWS, 64)
    return table.write(tmp_path_factory.mktemp("source"), CONFIG, max_file_bytes=200_000)


def contents(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("expected")
    convert_checkpoint(source, out, "nvfp4", max_file_bytes=FILE_BYTES)
    assert len(list(out.glob("*.safetensors"))) > 10
    return contents(out)


SCRIPT = """
import sys
from ngram_ple.convert import convert_checkpoint
done = convert_checkpoint(sys.argv[1], sys.argv[2], "nvfp4", max_file_bytes=int(sys.argv[3]))
print(done.errors[0][0].squared_error)
"""

# Many moments in one process: children of a process that has loaded everything, killed at random.
KILLS = """
import os, random, signal, sys, time
from pathlib import Path
from ngram_ple.convert import convert_checkpoint
source, out, kills, file_bytes = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])

def convert():
    return convert_checkpoint(source, out, "nvfp4", max_file_bytes=file_bytes, threads=1)

rng = random.Random(int(sys.argv[5]))
began = time.monotonic()
convert_checkpoint(source, out.with_name("timed"), "nvfp4", max_file_bytes=file_bytes, threads=1)
longest = time.monotonic() - began
killed = finished = 0
while killed < kills:
    child = os.fork()
    if child == 0:
        try:
            convert()
        except BaseException as error:
            print("child:", error, flush=True)
            os._exit(1)
        os._exit(0)
    time.sleep(rng.uniform(0, 1.0 if rng.random() < 0.2 else 0.4) * longest)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0, status
    if os.WIFSIGNALED(status):
        killed += 1
    has_index = (out / "model.safetensors.index.json").exists()
    if has_index and not (out / ".ngram-ple-convert.json").exists():  # called complete: it must be
        names = sorted(entry.name for entry in out.iterdir())
        wanted = sorted(entry.name for entry in out.with_name("timed").iterdir())
        assert names == wanted, names
        for name in wanted:
            assert (out / name).read_bytes() == (out.with_name("timed") / name).read_bytes(), name
            (out / name).unlink()
        finished += 1
    elif has_index:
        assert (out / "config.json").exists()
if any(out.iterdir()):
    print(convert().errors[0][0].squared_error, killed, finished)
else:
    print(convert().errors[0][0].squared_error, killed, finished)
"""


def test_killed_fifty_times(source: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    """Each time the next one goes on; what is called complete is, to the byte."""
    out = tmp_path / "out"
    out.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", KILLS, str(source), str(out), "50", str(FILE_BYTES), "7"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert contents(out) == expected
    error, killed, _ = done.stdout.split()
    assert int(killed) == 50
    whole = convert_checkpoint(source, tmp_path / "whole", "nvfp4", max_file_bytes=FILE_BYTES)
    assert float(error) == whole.errors[0][0].squared_error  # sums of the files that others wrote are kept


def test_ctrl_c_and_going_on(
    source: Path, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that is done is done again, the first pass neither."""
    written: list[str] = []

    def stopping(path: Path, *, durable: bool) -> AbstractContextManager[BinaryIO]:
        if len(written) == 4:
            raise KeyboardInterrupt
        return noting(path, durable=durable)

    def noting(path: Path, *, durable: bool) -> AbstractContextManager[BinaryIO]:
        written.append(path.name)
        return safetensors_writer.new_file(path, durable=durable)

    monkeypatch.setattr(run, "new_file", stopping)
    out = tmp_path / "out"
    read: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        convert_checkpoint(source, out, "nvfp4", max_file_bytes=FILE_BYTES, begun=read.append)
    assert len(list(out.glob("*.safetensors"))) == 4
    assert not (out / "config.json").exists()
    monkeypatch.setattr(run, "find_amax", None)  # the record has it
    monkeypatch.setattr(run, "new_file", noting)
    convert_checkpoint(source, out, "nvfp4", max_file_bytes=FILE_BYTES, begun=read.append)
    assert (
        len(written) == len(set(written)) == len([name for name in expected if name.endswith(".safetensors")])
    )
    assert contents(out) == expected
    assert read[1] < read[0] / 2


def interrupted(source: Path, out: Path, files: int = 3, to: str = "nvfp4", **options: Any) -> None:
    """Leave a conversion unfinished."""
    done: list[int] = []

    def stop(nbytes: int) -> None:
        if (out / RECORD).exists() and len(json.loads((out / RECORD).read_text())["files"]) >= files:
            done.append(nbytes)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_checkpoint(source, out, to, max_file_bytes=FILE_BYTES, progress=stop, **options)


def test_files_that_are_not_as_they_were_are_done_again(
    source: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    interrupted(source, out)
    names = sorted(path.name for path in out.glob("*.safetensors"))
    (out / names[0]).write_bytes(b"half")
    (out / names[1]).unlink()
    (out / f".{names[2]}.4711.part").write_bytes(b"what a killed process was writing")
    convert_checkpoint(source, out, "nvfp4", max_file_bytes=FILE_BYTES)
    assert contents(out) == expected


@pytest.mark.parametrize(
    ("begun", "options", "said"),
    [
        ({}, {"to": "fp8"}, "to fp8-rowwise in 40 shards:"),
        ({}, {"shards": 3, "to": "nvfp4"}, "to fp8-rowwise in 40 shards:"),
        ({"shards": 41}, {}, "to fp8-rowwise in 41 shards:"),
        ({"saturate": True}, {}, r"in 40 shards with saturate \(--saturate\):"),
        ({}, {"scale_dtype": "fp32"}, "in 40 shards with bf16 scales:"),
        ({}, {"max_file_bytes": 10**6}, "in 40 shards in files of at most 40000 bytes:"),
    ],
)
def test_other_options(
    begun: dict[str, Any], options: dict[str, Any], said: str, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    interrupted(source, out, to="fp8-rowwise", **begun)
    before = contents(out)
    given = {"to": "fp8-rowwise", "max_file_bytes": FILE_BYTES, **options}
    with pytest.raises(CheckpointError, match=f"holds an unfinished conversion .*{said} finish that with"):
        convert_checkpoint(source, out, **given)
    assert contents(out) == before


def with_nan(source: Path, folder: Path, row: int) -> Path:
    """A copy whose row of some shard has one."""
    copy = shutil.copytree(source, folder)
    index = json.loads((copy / "model.safetensors.index.json").read_text())
    size = -(-ROWS // 40)
    shard = row // size
    name = next(name for name in index["weight_map"] if f"shard_{shard}." in name)
    file = copy / index["weight_map"][name]
    tensors = load_file(file)
    tensors[name][row - shard * size, 3] = float("nan")
    save_file(tensors, file)
    return copy


@pytest.mark.parametrize("to", ["nvfp4", "fp8-rowwise"])
def test_a_nan_and_the_advice(
    to: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is left of what has no file done; with --saturate it goes on where some are."""
    row = ROWS - 500
    read, out = with_nan(source, tmp_path / "source", row), tmp_path / "a" / "out"
    with pytest.raises(CheckpointError, match=rf"row {row} has a NaN .*\(or --saturate\)"):
        convert_checkpoint(read, out, to, max_file_bytes=FILE_BYTES)
    done = sorted(out.glob("*.safetensors"))
    if to == "nvfp4":
        assert not out.parent.exists()
        out.mkdir(parents=True)
        assert main(["convert", str(read), str(out), "--to", to]) == 2
        assert not contents(out)  # a folder that was there stays
    else:
        assert len(done) > 3
    whole = tmp_path / "whole"
    convert_checkpoint(read, whole, to, max_file_bytes=FILE_BYTES, saturate=True)
    before = [file.stat().st_mtime_ns for file in done]
    went_on = convert_checkpoint(read, out, to, max_file_bytes=FILE_BYTES, saturate=True)
    assert [file.stat().st_mtime_ns for file in done] == before
    assert contents(out) == contents(whole)
    assert sum(head.not_finite for head in went_on.errors[0]) == 1


def test_scale_dtype_where_it_has_no_effect(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for to in ("bf16", "nvfp4"):
        assert main(["convert", str(source), str(out), "--to", to, "--scale-dtype", "bf16"]) == 2
        assert capsys.readouterr().err == (
            "ngram-ple convert: scale_dtype (--scale-dtype) is for fp8 and fp8-rowwise alone, "
            f"got bf16 with {to}\n"
        )
    for to in ("fp8", "fp8-rowwise"):
        stored = tmp_path / to
        convert_checkpoint(source, stored, to)
        with pytest.raises(ConfigError, match=r"must be bf16 or not given, as .* is .* already.*got fp32"):
            convert_checkpoint(stored, out, to, scale_dtype="fp32")
        assert not out.exists()
        convert_checkpoint(stored, tmp_path / f"{to}-again", to, scale_dtype="bf16")


def test_another_source(source: Path, tmp_path: Path) -> None:
    """One that has changed since, or of another table in the same files."""
    copy = shutil.copytree(source, tmp_path / "copy")
    out = tmp_path / "out"
    interrupted(copy, out)
    before = contents(out)
    file = sorted(copy.glob("*.safetensors"))[1]
    os.utime(file, ns=(1, 1))
    with pytest.raises(CheckpointError, match=f"{file.name} of the source has changed since it began"):
        convert_checkpoint(copy, out, "nvfp4", max_file_bytes=FILE_BYTES)
    assert contents(out) == before


@pytest.mark.parametrize("when", ["first pass", "rows"])
@pytest.mark.parametrize("change", ["content", "gone"])
def test_a_source_that_changes_meanwhile(change: str, when: str, source: Path, tmp_path: Path) -> None:
    """It is never called complete; with the source back as it was, or at another place, all is well."""
    copy = shutil.copytree(source, tmp_path / "copy")
    out = tmp_path / "out"
    file = sorted(copy.glob("*.safetensors"))[-1]
    calls: list[int] = []

    def spoil(nbytes: int) -> None:
        calls.append(nbytes)
        in_rows = bool(list(out.glob("*.safetensors")))
        if file.exists() and file.stat().st_mtime_ns != 1 and in_rows == (when == "rows"):
            if change == "gone":
                file.unlink()
            else:
                with file.open("r+b") as opened:
                    opened.seek(-100, os.SEEK_END)
                    opened.write(bytes(100))
                os.utime(file, ns=(1, 1))

    with pytest.raises((CheckpointError, OSError)) as error:
        convert_checkpoint(copy, out, "nvfp4", max_file_bytes=FILE_BYTES, progress=spoil, threads=1)
    assert file.name in str(error.value)
    assert not (out / "config.json").exists()
    assert not (out / "model.safetensors.index.json").exists()
    if (change, when) == ("content", "first pass"):
        assert not out.exists()  # nothing was done yet: it begins anew
        return
    assert (out / RECORD).exists()
    with pytest.raises((CheckpointError, OSError)):
        convert_checkpoint(copy, out, "nvfp4", max_file_bytes=FILE_BYTES)


def test_a_full_disk(
    source: Path, expected: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that cannot grow ends the command with a sentence, and the next call goes on."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    heard = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    out = tmp_path / "out"
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES // 2, limits[1]))
    try:
        assert main(["convert", str(source), str(out), "--to", "nvfp4"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, heard)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "File too large" in said
    assert {entry.name for entry in out.iterdir()} == {RECORD}
    assert main(["convert", str(source), str(out), "--to", "nvfp4"]) == 0
    assert RECORD not in contents(out)


def test_short_writes(
    source: Path, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: usual(fd, data[:1000], offset))
    convert_checkpoint(source, tmp_path / "out", "nvfp4", max_file_bytes=FILE_BYTES)
    assert contents(tmp_path / "out") == expected


@pytest.mark.parametrize("call", ["pwrite", "fdatasync", "fsync"])
def test_no_space_left(
    call: str, source: Path, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the system tells only when the bytes go to the disk."""
    out = tmp_path / "out"
    count = iter(range(100_000))
    usual = getattr(os, call)

    def full(fd: int, *rest: object) -> object:
        if next(count) == 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return usual(fd, *rest)

    monkeypatch.setattr(os, call, full)
    monkeypatch.setattr(layer, "_SYNC_BYTES", 1)
    with pytest.raises(OSError, match="No space left"):
        convert_checkpoint(source, out, "nvfp4", max_file_bytes=FILE_BYTES)
    assert not (out / "config.json").exists()
    assert not list(out.glob(".*.part"))
    monkeypatch.undo()
    convert_checkpoint(source, out, "nvfp4", max_file_bytes=FILE_BYTES)
    assert contents(out) == expected


def test_too_little_room_is_told_first(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(CheckpointError, match="GiB more, but its disk has"):
        convert_checkpoint(source, tmp_path / "a" / "out", "nvfp4")
    assert not (tmp_path / "a").exists()


def test_another_file_system(source: Path, expected: dict[str, bytes]) -> None:
    """Files are renamed inside the destination alone."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK) or shared.stat().st_dev == source.stat().st_dev:
        pytest.skip("needs a second file system at /dev/shm")
    out = shared / f"ngram_ple-test-{os.getpid()}"
    try:
        convert_checkpoint(source, out, "nvfp4", max_file_bytes=FILE_BYTES)
        assert contents(out) == expected
    finally:
        shutil.rmtree(out, ignore_errors=True)


def test_what_it_does_not_write_to(source: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    finished = tmp_path / "finished"
    convert_checkpoint(source, finished, "nvfp4", max_file_bytes=FILE_BYTES)
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "notes").write_text("mine")
    file = tmp_path / "file"
    file.write_text("mine")
    (tmp_path / "link").symlink_to(source)
    for out, said in (
        (finished, "expected a new or empty folder"),
        (taken, "expected a new or empty folder"),
        (file, "must be a folder"),
        (source, "must lie apart from the source"),
        (source / "below", "must lie apart from the source"),
        (source.parent, "must lie apart from the source"),
        (tmp_path / "link" / "below", "must lie apart from the source"),
    ):
        with pytest.raises(CheckpointError, match=said):
            convert_checkpoint(source, out, "nvfp4")
    assert contents(finished) == expected
    assert contents(taken) == {"notes": b"mine"}
    assert not (source / "below").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shards": 0}, "shards must be an integer of at least 1, got 0"),
        ({"shards": -1}, "shards must be an integer of at least 1, got -1"),
        ({"shards": True}, "shards must be an integer of at least 1, got True"),
        ({"shards": "3"}, "shards must be an integer of at least 1, got '3'"),
        ({"threads": -1}, "threads must be an integer of at least 1, got -1"),
        ({"max_file_bytes": None}, "max_file_bytes must be an integer of at least 1, got None"),
        ({"scale_dtype": "fp16"}, "scale_dtype must be one of bf16, fp32, got 'fp16'"),
        ({"saturate": "no"}, "saturate must be a bool, got 'no'"),
    ],
)
def test_wrong_options_write_nothing(
    options: dict[str, Any], said: str, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        convert_checkpoint(source, tmp_path / "out", "fp8", **options)
    assert not (tmp_path / "out").exists()


def test_messages_name_what_the_user_knows(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    shutil.copytree(source, empty)
    (empty / "config.json").write_text("{}")
    none = "ple_layer_ids must list the decoder layers with an n-gram table, got none"
    assert main(["convert", str(empty), str(tmp_path / "out"), "--to", "fp8"]) == 2
    assert capsys.readouterr().err == f"ngram-ple convert: {empty / 'config.json'}: {none}\n"
    assert main(["verify", str(empty)]) == 1
    assert f"problem  {empty / 'config.json'}: {none}\n" in capsys.readouterr().out

    monkeypatch.chdir(source)  # "" would be this folder
    for folders, name in (["", str(tmp_path / "out")], "SRC"), ([str(source), ""], "DST"):
        assert main(["convert", *folders, "--to", "fp8"]) == 2
        assert f"argument {name}: must be a folder, got ''" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="path must be a checkpoint folder, got ''"):
        convert_checkpoint("", tmp_path / "out", "fp8")
    with pytest.raises(CheckpointError, match="the destination must be a folder, got ''"):
        convert_checkpoint(source, "", "fp8")

    usual = Path.open

    def open_read_only(path: Path, mode: str = "r", **rest: Any) -> Any:
        if "w" in mode:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return usual(path, mode, **rest)

    monkeypatch.setattr(Path, "open", open_read_only)
    assert main(["convert", str(source), str(tmp_path / "out"), "--to", "fp8"]) == 2
    assert capsys.readouterr().err == f"ngram-ple convert: {tmp_path / 'out'}: Permission denied\n"


MANY_ROWS = small_config(ngram_vocab_size_base=9000, ple_embed_dim=4 * 16)


def test_more_shards_than_a_reader_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Told before anything is written; the most that is told is taken."""
    rows = HashPlan.from_config(MANY_ROWS).padded_rows
    assert rows > 32767
    read = make_source("bf16", rows, 16).write(tmp_path / "source", MANY_ROWS)
    out = tmp_path / "a" / "out"
    assert main(["convert", str(read), str(out), "--to", "nvfp4", "--shards", "1000000"]) == 2
    assert capsys.readouterr().err == (
        "ngram-ple convert: shards (--shards) must be at most 32767, as the tables of a folder may have "
        f"65536 tensors, got 1000000 ({2 * rows + 1} tensors)\n"
    )
    with pytest.raises(ConfigError, match=r"shards \(--shards\) must be at most 1048576, got 1048577"):
        convert_checkpoint(read, out, "fp8", shards=(1 << 20) + 1)
    assert not out.parent.exists()
    config = dataclasses.replace(MANY_ROWS, split_ngram_parts=1_000_000)
    weight, scale = torch.zeros(rows, 8, dtype=torch.uint8), torch.ones(rows, 1).to(torch.float8_e4m3fn)
    table = {"format": "nvfp4", "padded_rows": rows, "weight": weight, "global_scale": 1.0}
    with pytest.raises(CheckpointError, match=r"split_ngram_parts must be at most 32767 for nvfp4.*1000000"):
        write_checkpoint(out, config, **table, weight_scale=scale)  # type: ignore[arg-type]
    assert not out.parent.exists()
    config = dataclasses.replace(MANY_ROWS, split_ngram_parts=32767)
    write_checkpoint(out, config, **table, weight_scale=scale)  # type: ignore[arg-type]
    assert main(["verify", str(out)]) == 0


def test_what_no_reader_takes_is_not_written(tmp_path: Path) -> None:
    """An index of too many files or bytes, a header of too many bytes."""
    rows = HashPlan.from_config(MANY_ROWS).padded_rows
    weight = torch.zeros(rows, 16, dtype=torch.bfloat16)
    config = dataclasses.replace(MANY_ROWS, split_ngram_parts=rows)
    for options, said in (
        ({"max_file_bytes": 1}, "weight_map names more than 10000 files"),
        ({"max_file_bytes": 1 << 18, "prefix": "x" * 1500 + "."}, "[0-9]+ bytes, more than the 50331648"),
        ({"prefix": "x" * 1000 + "."}, "header of a file must have at most 25165824 bytes"),
    ):
        with pytest.raises(CheckpointError, match=said):
            write_checkpoint(
                tmp_path / "out", config, format="bf16", padded_rows=rows, weight=weight,
                **options,  # type: ignore[arg-type]
            )  # fmt: skip
        assert not (tmp_path / "out").exists()


def test_files_can_lie_beside_those_of_the_model(source: Path, tmp_path: Path) -> None:
    convert_checkpoint(source, tmp_path / "out", "fp8")
    taken = {entry.name for entry in source.glob("*.safetensors")}
    assert not taken & {entry.name for entry in (tmp_path / "out").iterdir()}


def test_two_at_once(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with record.locked(out), pytest.raises(CheckpointError, match="another conversion is writing there"):
        convert_checkpoint(source, out, "nvfp4")


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"version": 1}', '{"version": 2, "options": {}}', "\x00"]
)
def test_a_record_that_is_none(content: str, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / RECORD).write_text(content)
    with pytest.raises(CheckpointError, match="remove the folder and begin anew"):
        convert_checkpoint(source, out, "nvfp4")


MEMORY = """
import sys, torch
from ngram_ple.convert import convert_checkpoint

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))

torch.zeros(1 << 20).isfinite().all()
before = peak()
convert_checkpoint(sys.argv[1], sys.argv[2], sys.argv[3], threads=2)
print(peak() - before)
"""


@pytest.mark.parametrize("to", ["nvfp4", "fp8-rowwise"])
def test_memory(to: str, tmp_path: Path) -> None:
    """Less than four shards, and no more for larger ones."""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs Linux's VmHWM")
    config = small_config(ngram_vocab_size_base=160_000, ple_embed_dim=4 * 160, split_ngram_parts=8)
    rows = HashPlan.from_config(config).padded_rows
    block = torch.randn(5000, 160).bfloat16()
    table = make_source("bf16", 1, 160)
    table.weight = block.repeat(-(-rows // 5000), 1)[:rows]
    read = table.write(tmp_path / "source", config, max_file_bytes=64 << 20)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(read), str(tmp_path / "out"), to],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    shard = rows // 8 * 320
    assert shard > 24 << 20
    assert int(done.stdout) < min(4 * shard, 64 << 20), f"{int(done.stdout) >> 20} MiB"
