#!/usr/bin/env python3
"""Checks that TensorBoard's own reader finds in a run's event files what metrics.jsonl holds.

Runs of a tiny model: to the end, killed and taken up again, damaged in several ways, on two ranks.
After each, every number of metrics.jsonl must be there under one tag, step by step, rounded to f32,
and nothing else.

    "$(tools/venv light)/bin/python" tools/check_tensorboard.py build/release/launch/coppice [MPIEXEC]

Exit status: 0 equal, 1 not.
"""

import argparse
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event

ROOT = Path(__file__).resolve().parent.parent
NAMES = {"seconds": "time"}  # objects of a metrics line whose panel is called otherwise


def write_inputs(place: Path, program: Path) -> None:
    config = ROOT / "tests" / "golden" / "llama_tied" / "config.json"
    subprocess.run([program, "init", "--hf-config", config, "--seed", "7", "--out", place / "m.h5"],
                   check=True, capture_output=True)
    random.seed(3)
    with (place / "rollouts.jsonl").open("w") as out:
        for group in range(4):
            prompt = [random.randrange(61) for _ in range(random.randint(1, 12))]
            responses = [{"ids": [random.randrange(61) for _ in range(random.randint(1, 9))],
                          "reward": random.random()} for _ in range(4)]
            out.write(json.dumps({"group": f"g{group}", "prompt_ids": prompt,
                                  "responses": responses}) + "\n")
    (place / "run.textproto").write_text(
        'run_dir: "run"\nmodel { checkpoint: "m.h5" }\n'
        'data { rollouts: "rollouts.jsonl" groups_per_step: 2 epochs: 1000 }\n'
        "loss { entropy_coef: 0.01 }\noptimizer { learning_rate: 1e-3 }\n"
        "checkpoint { every_steps: 2 }\nlimits { max_steps: 6 }\nthreads_per_rank: 1\n")


def command(program: Path, run_dir: str, *settings: str) -> list[str]:
    words = [str(program), "train", "--config", "run.textproto", "--set", f"run_dir={run_dir}"]
    for setting in settings:
        words += ["--set", setting]
    return words


def train(place: Path, words: list[str]) -> None:
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr}")


def numbers(value, path=()):
    """(names on the way, number) of everything in a metrics line that is one."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from numbers(inner, (*path, name))
    elif isinstance(value, (int, float)):  # true and false too
        yield path, float(value)


def metrics_of(run: Path) -> dict:
    """(name of the metric, step) -> value"""
    values = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        metrics = json.loads(line)
        step = metrics.pop("step")
        for path, number in numbers(metrics):
            values["/".join((NAMES.get(path[0], path[0]), *path[1:])), step] = number
        if metrics["rows"]:
            values["sharing_ratio", step] = metrics["logical_rows"] / metrics["rows"]
    return values


def differences(run: Path) -> list[str]:
    expected, wrong, seen = metrics_of(run), [], set()
    reader = EventAccumulator(str(run), size_guidance={"scalars": 0})
    reader.Reload()
    for tag in reader.Tags()["scalars"]:
        # The panel before the first slash is ours to choose, but for what is an object in the line.
        name = tag if tag.split("/")[0] in ("time", "communication") and tag in {
            n for n, _ in expected} else tag.split("/", 1)[1]
        if tag.startswith("other/"):
            wrong.append(f"{tag}: no panel of its own")
        steps = [event.step for event in reader.Scalars(tag)]
        if steps != sorted(set(steps)):
            wrong.append(f"{tag}: steps {steps}")
        for event in reader.Scalars(tag):
            key = name, event.step
            if key in seen or key not in expected:
                wrong.append(f"{tag} at step {event.step}: not in metrics.jsonl, or twice")
            elif np.float32(expected[key]) != np.float32(event.value):
                wrong.append(f"{tag} at step {event.step}: {event.value}, not {expected[key]}")
            seen.add(key)
    wrong += [f"{name} at step {step}: missing" for name, step in expected.keys() - seen]
    return [f"{run.name}: {line}" for line in wrong]


def files(run: Path) -> list[Path]:
    return sorted(run.glob("events.out.tfevents.*"))


def records(file: Path) -> list[tuple[int, Event]]:
    """(where it begins, event): by the format's description, without its checksums."""
    data, at, found = file.read_bytes(), 0, []
    while at < len(data):
        length = int.from_bytes(data[at:at + 8], "little")
        found.append((at, Event.FromString(data[at + 12:at + 12 + length])))
        at += 16 + length
    return found


def check(program: Path, mpiexec: str | None) -> list[str]:
    wrong = []

    def expect(condition: bool, what: str) -> None:
        if not condition:
            wrong.append(what)

    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        write_inputs(place, program)

        run, words = place / "whole", command(program, "whole")
        train(place, words)
        wrong += differences(run)
        expect(len(files(run)) == 1, "whole: one start, one file")
        events = [event for _, event in records(files(run)[0])]
        expect(events[0].file_version == "brain.Event:2" and events[0].wall_time > 1.6e9, "version")
        described = {v.tag for e in events for v in e.summary.value
                     if v.metadata.summary_description}
        expect(described == {v.tag for v in events[-1].summary.value}, "units are told")
        before = [file.read_bytes() for file in files(run)]
        train(place, words)  # finished: changes nothing
        expect([file.read_bytes() for file in files(run)] == before, "whole: changed at its end")

        # Cut off in the middle of the last step: the reader stops before it. The next start, which
        # has nothing to do but that, writes it again.
        last = records(files(run)[0])[-1][0]
        os.truncate(files(run)[0], last + 40)
        reader = EventAccumulator(str(run), size_guidance={"scalars": 0})
        reader.Reload()
        expect([e.step for e in reader.Scalars("loss/loss")] == [1, 2, 3, 4, 5], "torn: five steps")
        train(place, words)
        wrong += differences(run)
        expect(len(files(run)) == 2, "torn: a file of its own")

        # A run of a program that wrote no events.
        for file in files(run):
            file.unlink()
        train(place, command(program, "whole", "limits.max_steps=8"))
        wrong += differences(run)

        # Steps beyond the checkpoint are void: a run that did seven goes on from step 5,
        # and only to step 6. The first was on a machine whose clock was ahead.
        run = place / "again"
        train(place, command(program, "again", "limits.max_steps=5"))
        state = run / "checkpoints" / "step_00000005.h5"
        kept = state.read_bytes()
        files(run)[0].rename(run / "events.out.tfevents.2000000000.elsewhere.1")
        train(place, command(program, "again", "limits.max_steps=7"))
        for checkpoint in (run / "checkpoints").iterdir():
            checkpoint.unlink()
        state.write_bytes(kept)
        train(place, command(program, "again", "limits.max_steps=6"))
        wrong += differences(run)
        expect(len(files(run)) == 3, "again: a file for each start")

        # Killed at any moment, several times.
        words = command(program, "killed", "limits.max_steps=400", "checkpoint.every_steps=7")
        run = place / "killed"
        for kill in range(4):
            child = subprocess.Popen(words, cwd=place, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
            lines = -1
            while child.poll() is None and lines < 20 * (kill + 1):
                time.sleep(0.01)
                if (run / "metrics.jsonl").exists():
                    lines = (run / "metrics.jsonl").read_bytes().count(b"\n")
            child.send_signal(signal.SIGKILL)
            child.wait()
        steps = len((run / "metrics.jsonl").read_text().splitlines())
        train(place, command(program, "killed", f"limits.max_steps={steps + 5}",
                             "checkpoint.every_steps=7"))
        wrong += differences(run)
        expect(len(files(run)) >= 4, "killed: a file for each start")

        if mpiexec:
            train(place, [mpiexec, "--allow-run-as-root", "--oversubscribe", "-np", "2",
                          *command(program, "ranks")])
            wrong += differences(place / "ranks")
            expect(len(files(place / "ranks")) == 1, "ranks: only one writes")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("program", type=Path, help="the built coppice")
    parser.add_argument("mpiexec", nargs="?", help="for a run on two ranks")
    arguments = parser.parse_args()
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it tells of each restart
    wrong = check(arguments.program.resolve(), arguments.mpiexec)
    print("\n".join(wrong) if wrong else "TensorBoard reads what metrics.jsonl holds")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
