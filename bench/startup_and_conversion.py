#!/usr/bin/env python3
"""Measures `coppice import` and `export` against the disk's copy rate, and a run's start-up.

Conversions: dd with an fsync, import, dd, export, in turn, all on one disk, all reading files that were
read just before (so the caches are in the same state), each output removed before the next. The rate of
a conversion is the bytes it writes over its whole time, start of the program included.

Start-up: the time from starting `coppice train` until its first step begins: when the first line of
metrics.jsonl appears, less what that line gives as the step's time. The time of reading the checkpoint
is that of reading its bytes from the same caches; all else that happens to them counts as start-up.

  bench/startup_and_conversion.py                 # SmolLM2-135M, about 2 minutes on an idle machine

Needs a build (build/release), and makes the model where it is missing. Prints Markdown; --out writes it.
"""

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
import report  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
BLOCK = 8 << 20


def seconds_of(command):
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def bytes_in(path):
    files = [path] if path.is_file() else path.iterdir()
    return sum(file.stat().st_size for file in files)


def read_all(path):
    """Seconds to read a file, or a directory's files."""
    start = time.perf_counter()
    for file in [path] if path.is_file() else path.iterdir():
        with file.open("rb", buffering=0) as data:
            while data.read(BLOCK):
                pass
    return time.perf_counter() - start


def conversions(options, work, model):
    """Bytes per second of copying, importing and exporting, one list each."""
    imported, exported, copy = work / "model.h5", work / "exported", work / "copy"

    def copy_rate(source):
        read_all(source)
        command = ["dd", f"if={source}", f"of={copy}", f"bs={BLOCK}", "conv=fsync", "status=none"]
        rate = source.stat().st_size / seconds_of(command)
        copy.unlink()
        return rate

    rates = {"copy (dd, fsync)": [], "import": [], "export": []}
    for _ in range(options.repetitions):
        rates["copy (dd, fsync)"].append(copy_rate(model / "model.safetensors"))
        imported.unlink(missing_ok=True)
        read_all(model)
        seconds = seconds_of([options.program, "import", "--hf", model, "--out", imported])
        rates["import"].append(bytes_in(imported) / seconds)
        rates["copy (dd, fsync)"].append(copy_rate(imported))
        read_all(imported)
        seconds = seconds_of([options.program, "export", "--checkpoint", imported, "--out", exported])
        rates["export"].append(bytes_in(exported) / seconds)
        shutil.rmtree(exported)
    return rates, imported


def write_run(work, vocabulary):
    draw = random.Random(1)

    def ids(count):
        return [draw.randrange(vocabulary) for _ in range(count)]

    group = {"group": "g0", "prompt_ids": ids(32),
             "responses": [{"ids": ids(16), "reward": float(i)} for i in range(2)]}  # fmt: skip
    (work / "rollouts.jsonl").write_text(json.dumps(group) + "\n")
    # Two steps: the first one's line is then written at its end, with no checkpoint in between.
    (work / "run.textproto").write_text(
        f'run_dir: "{work}/run"\n'
        f'data {{ rollouts: "{work}/rollouts.jsonl"  groups_per_step: 1  epochs: 2 }}\n'
    )


def start_up(options, work, field, model):
    """Seconds until the first step begins, and seconds of reading the model's bytes."""
    reading = read_all(model)
    metrics = work / "run/metrics.jsonl"
    start = time.perf_counter()
    child = subprocess.Popen(
        [options.program, "train", "--config", work / "run.textproto", "--set", f"model.{field}={model}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # fmt: skip
    while not (metrics.exists() and "\n" in (text := metrics.read_text())):
        if child.poll() is not None:
            raise SystemExit(child.stderr.read())
        time.sleep(0.002)
    first_line = time.perf_counter() - start
    child.communicate()
    shutil.rmtree(work / "run")
    return first_line - json.loads(text.splitlines()[0])["step_seconds"], reading


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--model", type=Path, help="Hugging Face directory [.cache/smollm2-hf]")
    parser.add_argument("--disk", type=Path, default=ROOT / "build",
                        help="a directory on the disk to measure [build]")  # fmt: skip
    parser.add_argument("--program", default=str(ROOT / "build/release/launch/coppice"))
    parser.add_argument("--out", type=Path, help="also writes the Markdown there")
    options = parser.parse_args()
    model = options.model or ROOT / ".cache/smollm2-hf"
    if not options.model:
        python = report.output_of([ROOT / "tools/venv", "light"]) + "/bin/python"
        subprocess.run([python, ROOT / "tools/smollm2_to_hf.py", "--out", model], check=True)
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]

    with tempfile.TemporaryDirectory(dir=options.disk) as temporary:
        work = Path(temporary)
        rates, imported = conversions(options, work, model)
        write_run(work, vocabulary)
        starts = {"an HDF5 model": [], "a Hugging Face directory": []}
        for _ in range(options.repetitions):
            starts["an HDF5 model"].append(start_up(options, work, "checkpoint", imported))
            starts["a Hugging Face directory"].append(start_up(options, work, "hf", model))

    copy = statistics.median(rates["copy (dd, fsync)"])
    rows = [("", "MB/s", "of the copy rate", "from", "to")]
    for name, found in rates.items():
        median = statistics.median(found)
        rows.append((name, f"{median / 1e6:.0f}", f"{median / copy:.0%}", f"{min(found) / 1e6:.0f}",
                     f"{max(found) / 1e6:.0f}"))  # fmt: skip
    start_rows = [("start-up from", "until the first step", "reading its bytes", "beyond reading")]
    for name, found in starts.items():
        until, reading = (statistics.median(values) for values in zip(*found))
        start_rows.append((name, f"{until:.2f} s", f"{reading:.2f} s", f"{until - reading:.2f} s"))
    text = "\n".join([
        "# Import, export and start-up", "",
        f"    {report.command_line('bench/startup_and_conversion.py')}", "",
        f"Commit {report.commit(ROOT)}; {report.machine()}. Medians of {options.repetitions}; how: the "
        "script's opening words. The project's bars: import and export at 60 % of the copy rate, and "
        "3 s of start-up beyond reading the checkpoint.", "",
        *report.markdown_table(rows), "", *report.markdown_table(start_rows), ""])  # fmt: skip
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
