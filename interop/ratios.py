"""kvferry beside SGLang on this machine: baseline.py for each with itself, by turns, and how the medians compare.

    python ratios.py --peer PROGRAM [--only handoff,failure,abort] [--turns 3] [--n 2000]

By turns, because what a machine gives changes from minute to minute: a ratio is of figures that were taken next to each other. Lines of
baseline.py go to standard error, the table to standard output.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
FIGURES = ("us_p50", "us_p99", "rooms_per_s")


def turn(o, peer):
    """One run of baseline.py: {(what, in flight, figure): value}."""
    cmd = [sys.executable, os.path.join(HERE, "baseline.py"), "--prefill", peer, "--decode", peer, "--only", o.only, "--repeat", "1", "--n", str(o.n)]
    done = subprocess.run(cmd, stdout=subprocess.PIPE, text=True, check=True, timeout=o.limit)
    out = {}
    for line in done.stdout.splitlines():
        row = json.loads(line)
        if "summary" in row:
            for name, (_, median, _) in row["min_median_max"].items():
                if name in FIGURES:
                    out[row["summary"], row.get("inflight", 1), name] = median
        else:
            print(line, file=sys.stderr)
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--peer", required=True, help="kvferry's peer program")
    ap.add_argument("--only", default="handoff,failure,abort")
    ap.add_argument("--turns", type=int, default=3)
    ap.add_argument("--n", type=int, default=2000, help="rooms a run of handoff")
    ap.add_argument("--limit", type=int, default=300, help="seconds that one turn of one side may take")
    o = ap.parse_args()
    ours, theirs = [], []
    for _ in range(o.turns):
        theirs.append(turn(o, "sglang"))
        ours.append(turn(o, o.peer))
    print(f"{'':64} {'in flight':>9} {'figure':>11} {'sglang':>10} {'kvferry':>10} {'ratio':>8}  of each turn")
    for what, inflight, name in ours[0]:
        k, s = ([run[what, inflight, name] for run in runs] for runs in (ours, theirs))
        each = " ".join(f"{a / b:.3g}" for a, b in zip(k, s))
        ratio = statistics.median(a / b for a, b in zip(k, s))
        print(f"{what:64} {inflight:9} {name:>11} {statistics.median(s):10.1f} {statistics.median(k):10.1f} {ratio:8.3f}  {each}")


if __name__ == "__main__":
    main()
