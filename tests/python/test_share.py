"""One copy of a table for the processes of a host: share="node"."""

from __future__ import annotations

import errno
import gc
import hashlib
import logging
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import checkpoints
import ngram_ple.loaded_module
import pytest
import torch
from modules import CONFIG, batch, rows_of, tensors_of
from ngram_ple import ConfigError, NGramEmbedding, NgramPleError, PinnedMemoryError, _core
from ngram_ple.tables import node_copy, node_note
from reference import assert_same
from share_worker import Worker, digest, memory_files

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoints.make_source("fp8-rowwise", rows=128).write(tmp_path / "checkpoint")


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Notes of their own, so that tests may run at the same time; memory must go with its modules."""
    monkeypatch.setattr(node_note, "note_folder", lambda: tmp_path)
    yield
    gc.collect()
    assert memory_files() == []


@pytest.fixture
def notes(tmp_path: Path) -> Callable[[], list[Path]]:
    """What tells of shared tables now."""
    return lambda: list(tmp_path.glob("ngram_ple-*"))


def shared(folder: Path, **options: Any) -> NGramEmbedding:
    return NGramEmbedding.from_pretrained(folder, placement="cpu", share="node", **options)


@pytest.mark.parametrize("format", checkpoints.FORMATS)
def test_a_second_load_takes_the_first_ones_table(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoints.make_source(format, rows=128).write(tmp_path / "checkpoint")
    own = NGramEmbedding.from_pretrained(folder, placement="cpu")
    first = shared(folder)
    monkeypatch.setattr(ngram_ple.loaded_module, "read_table", None)
    second = shared(folder)
    assert "share=node" in repr(second)
    assert len(memory_files()) == 2
    assert len(set(memory_files())) == 1
    for module in (first, second):
        assert_same(module(*batch(CPU)), own(*batch(CPU)))
    first.table.slots[5] = 77
    assert_same(second.table.slots, first.table.slots)


def test_it_lasts_as_long_as_anyone_holds_it(folder: Path, notes: Callable[[], list[Path]]) -> None:
    first, second = shared(folder), shared(folder)
    (note,) = notes()
    assert note.stat().st_mode & 0o777 == 0o600
    rows = second.table.slots.clone()
    del first
    gc.collect()
    assert note.exists()
    third = shared(folder)
    view = third.table.slots[3:5]
    del second, third
    gc.collect()
    assert note.exists()
    assert_same(view, rows[3:5])
    del view
    gc.collect()
    assert not note.exists()


def test_other_tables_do_not_mix(folder: Path, tmp_path: Path) -> None:
    first = shared(folder)
    other = shared(checkpoints.make_source("fp8-rowwise", rows=128, seed=1).write(tmp_path / "other"))
    assert len(set(memory_files())) == 2
    for path in folder.glob("*.safetensors"):  # the same files, written anew
        path.write_bytes(path.read_bytes())
        os.utime(path, ns=(1, 1))
    again = shared(folder)
    assert len(set(memory_files())) == 3
    assert_same(first.table.slots, again.table.slots)
    assert digest(first) != digest(other)


def test_rows_are_filled_once_by_many(folder: Path, notes: Callable[[], list[Path]]) -> None:
    workers = [Worker(folder, steps=20) for _ in range(5)]
    told = [worker.loaded() for worker in workers]
    assert sorted(filled for filled, _, _ in told) == [False] * 4 + [True]
    assert len({inode for _, files, _ in told for inode in files}) == 1
    assert {rows for _, _, rows in told} == {digest(NGramEmbedding.from_pretrained(folder, placement="cpu"))}
    filler = next(worker for worker, (filled, _, _) in zip(workers, told, strict=True) if filled)
    filler.kill()
    late = Worker(folder)  # joins one that joined
    assert late.loaded()[:2] == (False, told[0][1])
    for worker in (*workers, late):
        if worker is not filler:
            worker.end()
    assert notes() == []


def test_a_killed_filler_is_replaced(folder: Path) -> None:
    first = Worker(folder, steps=2000)
    assert first.told() == "filling"
    others = [Worker(folder) for _ in range(3)]
    time.sleep(0.2)
    assert not any(worker.pipe.poll(0) for worker in others)
    first.kill()
    told = [worker.loaded() for worker in others]
    assert sorted(filled for filled, _, _ in told) == [False, False, True]
    assert len({inode for _, files, _ in told for inode in files}) == 1
    for worker in others:
        worker.end()


def test_a_failed_filler_fails_those_who_wait(folder: Path) -> None:
    first = Worker(folder, steps=100, fail=True)
    assert first.told() == "filling"
    others = [Worker(folder) for _ in range(2)]
    assert first.loaded() == "ValueError: the files are bad"
    said = "PinnedMemoryError: the process that filled a table for this one too failed: ValueError: the files"
    assert all(worker.loaded().startswith(said) for worker in others)
    later = Worker(folder)  # starts anew
    assert later.loaded()[0]
    later.end()


def test_a_filler_that_stands_still_is_not_waited_for(folder: Path) -> None:
    first = Worker(folder, steps=2000)
    assert first.told() == "filling"
    os.kill(first.process.pid or 0, signal.SIGSTOP)
    other = Worker(folder, patience=0.5)
    said = (
        f"PinnedMemoryError: process {first.process.pid}, which fills a table that this one shares, has shown"
    )
    assert other.loaded().startswith(said)
    first.kill()


def test_a_slow_filler_is_waited_for(folder: Path) -> None:
    first = Worker(folder, steps=200)
    assert first.told() == "filling"
    other = Worker(folder, patience=1.0)
    assert not other.loaded()[0]
    assert first.loaded()[0]
    for worker in (first, other):
        worker.end()


def test_a_forked_child_keeps_nothing(folder: Path) -> None:
    first = Worker(folder, leave_child=True)
    filled, files, _ = first.loaded()
    child = first.told()
    try:
        first.kill()
        other = Worker(folder)
        assert other.loaded()[0]  # the child did not offer the memory any more
        other.end()
    finally:
        os.kill(child, signal.SIGKILL)
    assert filled
    assert len(files) == 1


def test_kills_at_any_moment(folder: Path, notes: Callable[[], list[Path]]) -> None:
    """Whoever is killed whenever: nobody hangs, nobody reads wrong rows, nothing lasts."""
    choose = random.Random(11)
    wanted = digest(NGramEmbedding.from_pretrained(folder, placement="cpu"))
    for _ in range(6):
        workers = [Worker(folder, steps=choose.choice([0, 3, 10])) for _ in range(4)]
        doomed = choose.sample(workers, 2)
        for worker in doomed:
            time.sleep(choose.uniform(0, 0.1))
            worker.kill()
        told = [worker.loaded() for worker in workers if worker not in doomed]
        assert [rows for _, _, rows in told] == [wanted] * 2
        assert len({inode for _, files, _ in told for inode in files}) == 1
        for worker in workers:
            if worker not in doomed:
                worker.end()
        assert notes() == []


def test_a_shared_table_is_not_written_to_again(folder: Path) -> None:
    module = shared(folder)
    module.table_in_state_dict = True
    saved = module.state_dict()
    said = "shared with other processes, which may be reading it"
    with pytest.raises(NgramPleError, match=said):
        module.load_weights(tensors_of(rows_of("fp8-rowwise")).items())
    with pytest.raises(NgramPleError, match=said):
        module.load_state_dict(saved)
    own = NGramEmbedding.from_pretrained(folder, placement="cpu")
    own.load_state_dict(saved)
    assert_same(own(*batch(CPU)), module(*batch(CPU)))


@pytest.mark.parametrize("format", ["bf16", "nvfp4"])
def test_engines_fill_it_by_load_weights(format: str) -> None:
    def construct(identity: str) -> NGramEmbedding:
        with node_copy(identity) as copy:
            module = NGramEmbedding(CONFIG, format=format, placement="cpu", share=copy)
            if copy is None or not copy.is_filled:
                module.load_weights(tensors_of(rows_of(format)).items())
                module.finish_loading()
        return module

    first, second, other = construct("one"), construct("one"), construct("another")
    assert len(set(memory_files())) == 2
    ids = first.compute_ngram_ids(*batch(CPU))
    for module in (first, second, other):
        assert_same(module(*batch(CPU)), rows_of(format).expected(ids, "bf16").flatten(1))
    with node_copy("one") as copy, pytest.raises(PinnedMemoryError, match="shared table must have "):
        NGramEmbedding(CONFIG, format="fp32", placement="cpu", share=copy)


def test_one_who_leaves_it_unfilled_fails(notes: Callable[[], list[Path]]) -> None:
    with node_copy("unfilled") as copy:
        assert copy is not None
    (note,) = notes()
    assert "it left the table unfilled" in note.read_text()
    begun = time.monotonic()
    with node_copy("unfilled") as copy:
        assert copy is not None
        copy.region(4096, None)  # gone before the end
    assert "it left the table unfilled" in note.read_text()
    assert time.monotonic() - begun < 0.9
    with node_copy("unfilled") as copy:
        assert copy is not None
        assert not copy.is_filled
        copy.publish(number=0.1)
        with pytest.raises(PinnedMemoryError, match="published once"):
            copy.publish()


def refuse(error: OSError) -> Any:
    def refused(*arguments: Any) -> Any:
        raise error

    return refused


def test_where_sharing_is_impossible_each_has_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = shared(folder)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(Path, "readlink", refuse(PermissionError(errno.EACCES, "not yours")))
        second = shared(folder)
    said = "the table is not shared: [Errno 13] not yours; this process takes a copy of its own"
    assert said in caplog.text
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(os, "memfd_create", refuse(OSError(errno.ENOSYS, "no memfd")))
        third = shared(checkpoints.make_source("bf16", rows=128).write(folder.parent / "bf16"))
    assert "the table is not shared: [Errno 38] no memfd" in caplog.text
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(node_note.NoteFile, "write", refuse(OSError(errno.ENOSPC, "/dev/shm is full")))
        for _ in range(2):  # with and without somebody to join
            before = len(list(Path("/proc/self/fd").iterdir()))
            assert "share" not in repr(shared(folder.parent / "bf16"))
            assert "share" not in repr(shared(folder))
            gc.collect()
            assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert "the table is not shared: [Errno 28] /dev/shm is full" in caplog.text
    assert "share" not in repr(second)
    assert "share" not in repr(third)
    assert len(memory_files()) == 1
    assert_same(first(*batch(CPU)), second(*batch(CPU)))
    assert shared(folder).table.slots.data_ptr() != first.table.slots.data_ptr()
    assert len(memory_files()) == 1  # of the first alone once more


def test_another_users_note_is_not_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with node_copy("x") as copy:
        assert copy is None


def test_no_room_is_refused_with_numbers() -> None:
    with node_copy("big") as copy:
        assert copy is not None
        with pytest.raises(PinnedMemoryError, match=r"65536.00 GiB\) does not fit: MemAvailable is "):
            copy.region(1 << 46, None)


def test_a_region_over_a_file_is_that_file() -> None:
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, 8192)
    with pytest.raises(PinnedMemoryError, match="could not be mapped: the file has 8192 bytes"):
        _core.PinnedRegion(8193, None, file=descriptor)
    first = _core.PinnedRegion(8000, None, file=descriptor)
    memoryview(first)[7] = 9
    second = _core.PinnedRegion(8000, None, file=descriptor, present=True)
    assert memoryview(second)[:9].tobytes() == b"\0\0\0\0\0\0\0\x09\0"
    assert os.pread(descriptor, 8, 0)[7] == 9
    os.close(descriptor)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"share": "host"}, "share must be 'node' or None, got 'host'"),
        ({"share": "node", "placement": "device"}, "share needs placement 'pinned' or 'cpu', got 'device'"),
    ],
)
def test_options_that_are_none(folder: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        NGramEmbedding.from_pretrained(folder, **options)
    with pytest.raises(ConfigError, match=r"share must be what node_copy\(\) gives, or None, got 'node'"):
        NGramEmbedding(CONFIG, placement="cpu", share="node")  # type: ignore[arg-type]


def test_notes_survive_nonsense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_note, "note_path", lambda key: tmp_path / key)
    for text in (
        b"",
        b"{",
        b"[]",
        b'{"users": 3}',
        b'{"users": [[1]]}',
        b'{"more": 1, "users": []}',
        b"\xff" * 5000,
    ):
        (tmp_path / "key").write_bytes(text)
        note = node_note.NoteFile.lock("key")
        assert note.read() == node_note.Note()
        note.write(node_note.Note(name="a", users=[node_note.Process(1, 2, 3)]))
        assert note.read().users == [node_note.Process(1, 2, 3)]
        note.close()


def test_a_number_given_out_again_is_another_process() -> None:
    me = node_note.this_process(0)
    assert me.is_alive
    assert not node_note.Process(me.pid, me.began + 1, 0).is_alive
    assert not node_note.Process(2**22 + 1, 0, 0).is_alive


def test_workers_look_rows_up(folder: Path) -> None:
    own = NGramEmbedding.from_pretrained(folder, placement="cpu")
    wanted = hashlib.sha256(own(*batch(CPU)).view(torch.uint8).numpy().tobytes()).hexdigest()
    workers = [Worker(folder) for _ in range(2)]
    assert [worker.loaded()[2] for worker in workers] == [digest(own)] * 2
    assert [worker.looked_up() for worker in workers] == [wanted] * 2
    for worker in workers:
        worker.end()


@pytest.mark.needs_gpu
@pytest.mark.parametrize("killed", [0, 1])
def test_pinned_tables_of_processes_are_one(
    folder: Path, notes: Callable[[], list[Path]], killed: int
) -> None:
    """The filler or the other one is killed while both read it; a newcomer joins the one that is left."""
    own = NGramEmbedding.from_pretrained(folder, placement="pinned")
    rows = own(*batch(torch.device("cuda", 0))).cpu()
    wanted = hashlib.sha256(rows.view(torch.uint8).numpy().tobytes()).hexdigest()
    workers = [Worker(folder, placement="pinned") for _ in range(2)]
    told = [worker.loaded() for worker in workers]
    assert sorted(filled for filled, _, _ in told) == [False, True]
    assert told[0][1] == told[1][1]
    assert len(told[0][1]) == 1
    assert [worker.looked_up() for worker in workers] == [wanted] * 2
    fillers = [filled for filled, _, _ in told]
    doomed = workers[fillers.index(killed == 0)]
    workers.remove(doomed)
    doomed.kill()
    workers.append(Worker(folder, placement="pinned"))
    assert workers[1].loaded()[:2] == (False, told[0][1])
    assert [worker.looked_up() for worker in workers] == [wanted] * 2
    for worker in workers:
        worker.end()
    assert notes() == []
