"""Figures of bench/peers/compare.py as ratios, as a table, and as the files under docs/benchmarks.

The JSON file holds one result per shape; the Markdown file is made from the whole of it.
"""

import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

GIB = 2**30
# Bars on peak resident memory, in GiB: the plain grouped step, and with block recompute.
MEMORY_BARS = {"P=512 R=64 G=8": (3.4, 3.0), "P=2048 R=64 G=16": (6.0, 3.0)}
VERSIONS = """
import importlib.metadata, json, platform
names = "torch", "transformers", "prefix-grouper"
print(json.dumps({"python": platform.python_version()} |
                 {name: importlib.metadata.version(name) for name in names}))
"""
INTRODUCTION = """\
# One GRPO step beside PyTorch

Made by `bench/peers/compare.py` ([how](README.md#peers)); figures of every round are in `peers.json`.
All sides in one run on the same cores, turn by turn, with the machine's sgemm measured between them; each
does forward, backward, gradient norm and AdamW of the same group in f32. Medians. Useful work is
`executed_flops` (docs/metrics.md), the same for both programs where the packing is the same. sgemm is the
best of 1024, 2048 and 4096 cubed in each of these measurements, and of them the median. Peak memory is the
process's own maximum resident size. The gradient norm is that of the first step; where a side differed by
more than 1e-4 of it, the run said so and failed.
"""


def output_of(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    return done.stdout.strip()


def machine():
    info = Path("/proc/cpuinfo").read_text()
    fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    flags = fields.get("flags", "").split()
    vectors = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "no AVX2"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    cores = len(os.sched_getaffinity(0))
    return (f"{cores} core{'s' * (cores > 1)} of {fields.get('model name', platform.machine())} ({vectors}), "
            f"{memory:.0f} GiB, Linux {platform.release().split('-')[0]}")  # fmt: skip


def commit(root):
    dirty = output_of(["git", "status", "--porcelain", "--untracked-files=no"], cwd=root)
    return output_of(["git", "rev-parse", "--short", "HEAD"], cwd=root) + (dirty and " and changes")


def command_line(script):
    return shlex.join([script, *sys.argv[1:]])


def new_result(options, root):
    versions = {"coppice": output_of([options.program, "--version"]).split()[-1]}
    versions |= json.loads(output_of([options.python, "-c", VERSIONS]))
    return {
        "shape": f"P={options.prefix} R={options.response} G={options.group_size}",
        "command": command_line("bench/peers/compare.py"),
        "commit": commit(root),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "threads": options.threads,
        "versions": versions,
        "repetitions": 0,
        "repetitions_asked": options.repetitions,
        "sgemm_gflops": [],
        "sides": {},
        "failed": {},
        "ratios": [],
    }


def add_rates(found):
    sgemm = statistics.median(found["sgemm_gflops"])
    for side in found["sides"].values():
        side["median_step_seconds"] = statistics.median(side["step_seconds"])
        side["median_passes_seconds"] = statistics.median(side["passes_seconds"])
        side["useful_gflops"] = side["executed_flops"] / side["median_step_seconds"] / 1e9
        side["of_sgemm"] = side["useful_gflops"] / sgemm


def add_ratios(found):
    """What the sides are measured for, with the bars that the project has set itself."""
    sides = found["sides"]
    found["ratios"] = ratios = []

    def add(name, value, bar, at_least=True):
        reached = None if bar is None else value >= bar if at_least else value <= bar
        ratios.append({"name": name, "value": value, "bar": bar, "at_least": at_least,
                       "reached": reached})  # fmt: skip

    ours, block, long = (
        sides.get(f"Coppice, {way}") for way in ("grouped", "grouped-block", "repeated")
    )
    peer = {name.removeprefix("PyTorch, "): side for name, side in sides.items()}
    packed = [peer[way] for way in ("packed", "packed-compiled") if way in peer]
    plain_bar, block_bar = MEMORY_BARS.get(found["shape"], (None, None))
    if ours:
        step = ours["median_step_seconds"]
        add("useful rate of the grouped step / sgemm", ours["of_sgemm"], 0.75)
        if packed:
            best = min(side["median_step_seconds"] for side in packed)
            add("time of PyTorch packed, the better / Coppice", best / step, 1.4)
        if "prefix-grouper" in peer:
            grouper = peer["prefix-grouper"]["median_step_seconds"]
            add("time of PyTorch with prefix-grouper / Coppice", grouper / step, None)
        if "repeated" in peer:
            other = peer["repeated"]
            add("useful rate of Coppice / PyTorch repeated",
                ours["useful_gflops"] / other["useful_gflops"], 1.2)  # fmt: skip
            add("time of PyTorch repeated / Coppice", other["median_step_seconds"] / step, None)
        if long:
            bound = long["executed_flops"] / ours["executed_flops"]
            passes = long["median_passes_seconds"] / ours["median_passes_seconds"]
            add("Coppice repeated / grouped, forward and backward, of the FLOP bound "
                f"{bound:.2f}", passes / bound, 0.92)  # fmt: skip
            add("Coppice repeated / grouped, whole step", long["median_step_seconds"] / step, None)
        add("peak memory of Coppice grouped, GiB", ours["peak_resident_bytes"] / GIB, plain_bar, False)
    if block:
        add("the same with BLOCK recompute, GiB", block["peak_resident_bytes"] / GIB, block_bar, False)


def table(found):
    rows = [("", "step", "forward + backward", "useful GFLOP/s", "of sgemm", "peak memory",
             "gradient norm")]  # fmt: skip
    for name, side in found["sides"].items():
        rows.append((name, f"{side['median_step_seconds']:.3f} s",
                     f"{side['median_passes_seconds']:.3f} s", f"{side['useful_gflops']:.1f}",
                     f"{side['of_sgemm']:.1%}", f"{side['peak_resident_bytes'] / GIB:.2f} GiB",
                     f"{side['first_steps'][0]['grad_norm']:.6g}"))  # fmt: skip
    rows += [(name, "failed: " + why, "", "", "", "", "") for name, why in found["failed"].items()]
    text = [f"{found['shape']}, {found['repetitions']} of {found['repetitions_asked']} rounds, "
            f"{found['threads']} threads, sgemm {statistics.median(found['sgemm_gflops']):.1f} "
            f"(highest {max(found['sgemm_gflops']):.1f}) GFLOP/s", ""]  # fmt: skip
    text += markdown_table(rows)
    if not found["ratios"]:
        return "\n".join(text) + "\n"
    rows = [("", "measured", "bar", "")]
    for ratio in found["ratios"]:
        sign = ">=" if ratio["at_least"] else "<="
        bar = "" if ratio["bar"] is None else f"{sign} {ratio['bar']}"
        verdict = {None: "", True: "reached", False: "missed"}[ratio["reached"]]
        rows.append((ratio["name"], f"{ratio['value']:.3f}", bar, verdict))
    return "\n".join(text + [""] + markdown_table(rows)) + "\n"


def markdown_table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return lines


def write(out, found):
    """Replaces this shape's result in OUT.json and makes OUT.md anew."""
    path = out.with_suffix(".json")
    results = json.loads(path.read_text()) if path.exists() else {}
    results[found["shape"]] = found
    text = INTRODUCTION
    for result in results.values():
        versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        text += (f"\n## {result['shape']}\n\n    {result['command']}\n\nCommit {result['commit']}, "
                 f"{result['date']}; {result['machine']}; {versions}.\n\n{table(result)}")  # fmt: skip
    for target, content in ((path, json.dumps(results, indent=1) + "\n"),
                            (out.with_suffix(".md"), text)):  # fmt: skip
        part = target.with_suffix(target.suffix + ".tmp")
        part.write_text(content)
        part.replace(target)
