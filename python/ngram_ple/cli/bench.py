"""``ngram-ple bench``: the operators' speed on this machine."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ngram_ple.benchmark.cases import INPUT_SETS, Model, make_random_table
from ngram_ple.benchmark.operators import Operators
from ngram_ple.benchmark.rates import measured_rates
from ngram_ple.benchmark.report import plot, table_text
from ngram_ple.benchmark.timing import copy_rate, timed_in_turn
from ngram_ple.checkpoint.safetensors_writer import write_json
from ngram_ple.cli import options, out_file, report
from ngram_ple.errors import ConfigError
from ngram_ple.formats import FORMATS
from ngram_ple.planning import read_rates
from ngram_ple.tables import home_device

_DEFAULT_FORMATS = ["bf16", "fp8", "nvfp4"]
_DEFAULT_TOKENS = [1, 8, 64, 1024, 8192, 32768]
_REAL_BASE = 20_000_000

_DESCRIPTION = """\
Time ngram_ids, lookup and embed on random tokens over a table of random rows, in the
shape of the published Qwen model (16 heads, rows of 160 values), and set them beside
the floor: the bytes that must move (stored rows read once, bf16 results written once)
at the rate of a large copy on the same device. Times are medians; on a GPU of captured
graphs that rotate over several sets of inputs."""


def add(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "bench",
        help="measure speed on this machine",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--placement",
        choices=("device", "cpu"),
        help="where the table lives (default: device with a GPU, else cpu)",
    )
    parser.add_argument(
        "--format", action="append", choices=FORMATS, help="may be repeated (default: bf16, fp8, nvfp4)"
    )
    parser.add_argument(
        "--tokens", action="append", type=options.positive, metavar="T", help="batch size, may be repeated"
    )
    parser.add_argument(
        "--rows-per-head",
        type=options.positive,
        metavar="B",
        help=f"rows of each head (default: the real model's {_REAL_BASE}, less where memory is short)",
    )
    options.add_plot(parser, "draw time against T, the floor as a line")
    parser.add_argument(
        "--save",
        metavar="FILE.json",
        help="also measure copies and pinned rows, and save rates for `plan --rates`",
    )
    options.add_output(parser)
    parser.set_defaults(run=run)


@torch.inference_mode()
def run(arguments: argparse.Namespace) -> None:
    """Measure and print, in inference mode as engines run."""
    _check_files(arguments)
    placement = arguments.placement or ("device" if torch.cuda.is_available() else "cpu")
    device = home_device(placement)
    formats = arguments.format or _DEFAULT_FORMATS
    tokens = sorted(set(arguments.tokens or _DEFAULT_TOKENS))
    if arguments.rows_per_head is not None:
        _check_room(arguments.rows_per_head, formats, device)
    rate = copy_rate(device, _copy_bytes(device), tries=10 if placement == "device" else 3)
    rows: list[dict[str, Any]] = []
    with tqdm(
        total=len(formats) * len(tokens), desc="measuring", disable=not options.shows_progress(arguments)
    ) as bar:
        for name in formats:
            rows += _measure_format(name, placement, device, tokens, arguments.rows_per_head, rate, bar)
    hardware = torch.cuda.get_device_name(device) if placement == "device" else _cpu_name()
    if arguments.save:
        rates = measured_rates(hardware, placement, rows, device, _free_bytes(torch.device("cpu")))
        with report.naming(arguments.save):
            write_json(Path(arguments.save), rates.to_json())
    if arguments.plot:
        with report.naming(arguments.plot):
            plot(arguments.plot, f"{hardware}: tables with placement {placement}", rows)
    facts = {
        "hardware": hardware,
        "torch": str(torch.__version__),
        "placement": placement,
        "copy_bytes_per_second": rate,
    }
    if arguments.json:
        report.print_json({**facts, "rows": rows})
        return
    report.print_text(
        f"{hardware}, torch {torch.__version__}, placement {placement}, "
        f"copy {rate / 1e9:.0f} GB/s read + written"
    )
    report.print_text(table_text(rows))


def _check_files(arguments: argparse.Namespace) -> None:
    """Refuse, before minutes of work, what could not be written or is another's."""
    for option, file in (("--plot", arguments.plot), ("--save", arguments.save)):
        if file is not None:
            out_file.check(option, Path(file), None, (), overwrite=True)
    if arguments.save is not None and Path(arguments.save).exists():
        try:
            read_rates(arguments.save)
        except ConfigError:
            raise ConfigError(
                f"--save must be a new file or one that it wrote, but {arguments.save} is another"
            ) from None


def _check_room(base: int, formats: list[str], device: torch.device) -> None:
    """Refuse tables that no memory is there for."""
    model, free = Model(base), _free_bytes(device)
    for name in formats:
        wanted = model.plan.padded_rows * model.row_format(name).slot_bytes
        if wanted > free:
            raise ConfigError(
                f"--rows-per-head {base} needs {wanted:,} bytes ({report.size(wanted)}) for {name}, "
                f"but {report.size(free)} are free on {device}"
            )


def _measure_format(
    name: str,
    placement: str,
    device: torch.device,
    tokens: list[int],
    base: int | None,
    rate: float,
    bar: Any,
) -> list[dict[str, Any]]:
    slot_bytes = Model().row_format(name).slot_bytes
    affordable = max(1, _free_bytes(device) * 6 // 10 // slot_bytes // Model().config.num_heads)
    model = Model(min(_REAL_BASE, affordable) if base is None else base)
    table = make_random_table(model.row_format(name), model.plan.padded_rows, placement, device)
    rows = []
    for count in tokens:
        operators = Operators.prepare(model, table, count, min(64, count))
        times = timed_in_turn(operators.ways, device, INPUT_SETS)
        floor = operators.floor_bytes() / rate * 1e6
        row: dict[str, Any] = {"format": name, "T": count, "table GiB": table.nbytes / 2**30}
        row |= {"floor us": floor, **{f"{way} us": spent for way, spent in times.items()}}
        row |= {
            "embed GB/s": operators.floor_bytes() / times["embed"] / 1e3,
            "embed/floor": times["embed"] / floor,
        }
        rows.append(row)
        bar.update()
    return rows


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):  # what is free and what caches would give back
            return int(line.split()[1]) << 10
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _copy_bytes(device: torch.device) -> int:
    wanted = 4 << 30 if device.type == "cuda" else 1 << 30
    copy_bytes = min(wanted, _free_bytes(device) // 4)
    if copy_bytes < 1 << 20:
        raise ConfigError(f"bench needs some memory on {device}, got {_free_bytes(device)} bytes free")
    return copy_bytes


def _cpu_name() -> str:
    names = [
        line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")
    ]
    return f"{names[0] if names else 'CPU'}, {torch.get_num_threads()} threads"


def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
