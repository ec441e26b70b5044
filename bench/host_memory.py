"""How long the memory of a pinned table takes to make, and how much of it there is.

Each way in a process of its own, which has just touched and given back as much memory, so that none pays for
what the machine has never had before:

- torch: `torch.empty(..., pin_memory=True)`, of a power of two, as it rounds up to one;
- region: `ngram_ple._core.PinnedRegion`, mapped, touched by all CPUs and registered with the GPU;
- shared: the same of a memory file (``share="node"``); join: another process that maps and registers it, too;
- load: `NGramEmbedding.from_pretrained(placement="pinned")` of a checkpoint in /dev/shm.

Targets: region at 4 x torch's rate, resident memory within 1 % of the table (at its peak, for a load).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from checkpoints import make_checkpoint
from ngram_ple import NGramEmbedding, _core
from ngram_ple.benchmark.report import table_text, write_json
from ngram_ple.tables import node_copy

IDENTITY = f"bench/host_memory.py {os.getpid()}"
Row = dict[str, object]


def status(field: str) -> int:
    """Return the bytes of a field of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


def pages_by_node(address: int) -> str:
    """Return where the pages of the mapping at an address lie, where the kernel tells."""
    maps = Path("/proc/self/numa_maps")
    for line in maps.read_text().splitlines() if maps.exists() else []:
        if int(line.split()[0], 16) == address:
            return " ".join(part for part in line.split() if part[:1] == "N" and "=" in part)
    return "unknown"


def gpu_node(device: int | None) -> str:
    """Return the memory node of a GPU as the kernel tells it."""
    if device is None:
        return "-"
    told = torch.cuda.get_device_properties(device)
    bus = f"{told.pci_domain_id:04x}:{told.pci_bus_id:02x}:{told.pci_device_id:02x}.0"
    path = Path(f"/sys/bus/pci/devices/{bus}/numa_node")
    return path.read_text().strip() if path.exists() else "unknown"


def timed(way: str, nbytes: int, seconds: float) -> Row:
    """Return a row with its times."""
    gib = nbytes / 2**30
    unknown = {"resident": "-", "huge": "-", "nodes": "-"}
    return {"way": way, "GiB": gib, "seconds": seconds, "ms/GiB": seconds * 1e3 / gib, **unknown}


def measured(way: str, nbytes: int, make: Callable[[], object], warm: bool = True) -> Row:
    """Time `make` and tell what the process holds afterwards."""
    if warm:
        _core.PinnedRegion(nbytes, None).close()
    resident, began = status("VmRSS"), time.perf_counter()
    held = make()
    row = timed(way, nbytes, time.perf_counter() - began)
    row["resident"] = (status("VmRSS") - resident) / nbytes
    if isinstance(held, _core.PinnedRegion):
        row |= {"huge": held.huge_bytes() / nbytes, "nodes": pages_by_node(held.address)}
    return row


def run_way(way: str, nbytes: int, identity: str, folder: str, device: int | None) -> list[Row]:
    """Measure one way in this process."""
    if device is not None:
        torch.zeros(1, device=torch.device("cuda", device))
    if way == "torch":
        return [measured(way, nbytes, lambda: torch.empty(nbytes, dtype=torch.uint8, pin_memory=True))]
    if way == "region":
        return [measured(way, nbytes, lambda: _core.PinnedRegion(nbytes, device))]
    if way == "load":
        return [load(folder, device)]
    with node_copy(identity) as copy:
        if copy is None or copy.is_filled != (way == "join"):
            raise SystemExit("memory is not shared here")
        if way == "join":
            return [measured(way, nbytes, lambda: copy.region(nbytes, device), warm=False)]
        held: list[_core.PinnedRegion] = []

        def make() -> _core.PinnedRegion:
            held.append(copy.region(nbytes, device))
            return held[0]

        row = measured(way, nbytes, make)
        copy.publish()
        return [row, *in_process("join", nbytes, identity, folder, device)]


def load(folder: str, device: int | None) -> Row:
    """Compare the peak of a load, over what the process held before, with the table."""
    _core.PinnedRegion(1 << 20, device).close()
    torch.zeros(1 << 20).isfinite().all()  # torch's own pools
    before, began = status("VmRSS"), time.perf_counter()
    embedding = NGramEmbedding.from_pretrained(folder, placement="cpu" if device is None else "pinned")
    row = timed("load", embedding.table.nbytes, time.perf_counter() - began)
    return row | {"resident": (status("VmHWM") - before) / embedding.table.nbytes}


def in_process(way: str, nbytes: int, identity: str, folder: str, device: int | None) -> list[Row]:
    """Measure one way in a process of its own."""
    given = json.dumps([nbytes, identity, folder, device])
    command = [sys.executable, __file__, "--way", way, given]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rows: list[Row] = json.loads(done.stdout)
    return rows


def verdicts(rows: dict[str, Row]) -> list[str]:
    """Return one line a target."""
    lines = []
    if "torch" in rows:
        ratio = float(str(rows["torch"]["ms/GiB"])) / float(str(rows["region"]["ms/GiB"]))
        lines.append(f"{'met' if ratio >= 4 else 'MISSED':6} region: {ratio:.2f} x torch's rate, target 4")
    for way in ("region", "shared", "load"):
        share = float(str(rows[way]["resident"]))
        word = "met" if share <= 1.01 else "MISSED"
        lines.append(f"{word:6} {way}: resident {share:.4f} of the table, target 1.01")
    return lines


def main() -> None:
    """Measure every way and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    parser.add_argument("--gib", type=float, default=40, help="bytes of the region (default 40)")
    parser.add_argument("--shared-gib", type=float, help="bytes of the shared region (default as --gib)")
    parser.add_argument("--torch-gib", type=float, default=16, help="bytes of torch's (default 16)")
    parser.add_argument("--load-gib", type=float, default=8, help="bytes of a loaded table (default 8)")
    parser.add_argument("--no-gpu", action="store_true", help="register with no GPU: does it run?")
    parser.add_argument("--way", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        way, given = arguments.way
        print(json.dumps(run_way(way, *json.loads(given))))
        return
    device = None if arguments.no_gpu else 0
    rows: list[Row] = []

    def measure(way: str, gib: float, folder: str = "") -> None:
        found = in_process(way, int(gib * 2**30), IDENTITY, folder, device)
        print(table_text(found), flush=True)
        rows.extend(found)

    if device is not None:
        measure("torch", arguments.torch_gib)
    measure("region", arguments.gib)
    measure("shared", arguments.shared_gib or arguments.gib)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        make_checkpoint(Path(folder), "fp8", int(arguments.load_gib * 2**30))
        measure("load", arguments.load_gib, folder)
    facts = {
        "torch": str(torch.__version__),
        "cpus": len(os.sched_getaffinity(0)),
        "memory nodes": Path("/sys/devices/system/node/online").read_text().strip(),
        "GPU's node": gpu_node(device),
    }
    print(facts)
    print(table_text(rows))
    print("\n".join(verdicts({str(row["way"]): row for row in rows})))
    if arguments.json:
        write_json(arguments.json, facts, rows)


if __name__ == "__main__":
    main()
