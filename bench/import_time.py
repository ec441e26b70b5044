"""Seconds that ``import ngram_ple`` takes after ``import torch``, in new interpreters, beside torch's own."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

CODE = """
import time
begin = time.perf_counter()
import torch
middle = time.perf_counter()
import ngram_ple
print(middle - begin, time.perf_counter() - middle)
"""


def main() -> None:
    """Print medians and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--runs", type=int, default=9, help="interpreters that are started, after one to warm up"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    runs = [
        [float(word) for word in subprocess.check_output([sys.executable, "-c", CODE], text=True).split()]
        for _ in range(options.runs + 1)
    ][1:]
    torch_seconds, own_seconds = (statistics.median(column) for column in zip(*runs, strict=True))
    if options.json:
        print(json.dumps({"torch": torch_seconds, "ngram_ple": own_seconds, "runs": options.runs}))
        return
    own = [run[1] for run in runs]
    print(f"import torch {torch_seconds:.3f} s (median of {options.runs})")
    print(f"then ngram_ple {own_seconds:.3f} s ({min(own):.3f} .. {max(own):.3f})")
    print(f"ratio {own_seconds / torch_seconds:.3f}")


if __name__ == "__main__":
    main()
