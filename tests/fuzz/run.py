"""Every target for a number of inputs, two at a time: what ``make fuzz`` runs.

New inputs that reach new code go to build/fuzz/<target>, an input that breaks a rule to build/fuzz/crash-…;
``--merge`` adds the former to the corpus that is kept, as few as reach all that they reach.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "fuzz"
# Share of the inputs of each target.
SHARES = {"folder": 0.15, "header": 0.35, "config": 0.2, "index": 0.15, "patterns": 0.1, "checksums": 0.05}


def run(target: str, runs: int, merge: bool) -> tuple[str, int, float, str]:
    """Run one target; its name, libFuzzer's exit status, seconds and its last lines."""
    found = BUILD / target
    found.mkdir(parents=True, exist_ok=True)
    kept = HERE / "corpus" / target
    kept.mkdir(parents=True, exist_ok=True)
    options = [f"-runs={runs}", "-max_len=2048", "-timeout=20", f"-artifact_prefix={BUILD}/crash-{target}-"]
    if merge:
        options = ["-merge=1"]
    folders = [str(kept), str(found)] if merge else [str(found), str(kept)]
    command = [sys.executable, str(HERE / "fuzz.py"), target, *options, *folders]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return target, done.returncode, time.monotonic() - begin, done.stdout[-1500:] + done.stderr[-3000:]


def main() -> int:
    """Run all; 1 when a target failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--inputs", type=int, default=100_000, help="of all targets together (default 100000)"
    )
    parser.add_argument("--target", action="append", choices=SHARES, help="may be repeated (default: all)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--merge", action="store_true", help="put what was found into the corpus instead")
    arguments = parser.parse_args()
    chosen = arguments.target or list(SHARES)
    total = sum(SHARES[name] for name in chosen)
    failed = False
    with ThreadPoolExecutor(arguments.jobs) as pool:
        counts = {name: round(arguments.inputs * SHARES[name] / total) for name in chosen}
        futures = [pool.submit(run, name, count, arguments.merge) for name, count in counts.items()]
        for future in futures:
            target, status, seconds, tail = future.result()
            word = "merged" if arguments.merge else f"{counts[target]} inputs"
            print(
                f"{target}: {word} in {seconds:.0f} s, {'ok' if status == 0 else f'FAILED ({status})'}",
                flush=True,
            )
            if status:
                failed = True
                print(tail)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
