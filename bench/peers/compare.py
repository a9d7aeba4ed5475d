#!/usr/bin/env python3
"""Measures one GRPO step of SmolLM2-135M in Coppice and in PyTorch, side by side on the same cores.

All do the same work on the same group: forward, backward, gradient norm and AdamW in f32, old
log-probs = current ones. Loss and gradient norm of the first two steps must agree to 1e-4.

Rounds alternate: the machine's sgemm, a turn of one side, sgemm, a turn of the next side ... A turn is a
process of its own that makes two steps, of which the second counts: `coppice train`, or a child that makes
a step when it is told to (torch_step.py). So no side takes memory in the turn of another, and every side's
peak memory is its own.

  bench/peers/compare.py                                       # P=512 R=64 G=8: about 14 minutes on 2 cores
  bench/peers/compare.py --prefix 2048 --group-size 16 --peers packed,packed-compiled,prefix-grouper
  bench/peers/compare.py --tiny                                # only checks that both do the same work

Prints a table after each round and, but for --tiny, writes OUT.json and OUT.md, which keep the figures
of other shapes. Needs a build (build/release), and fetches model and Python packages where missing.
Exit status: 0, or 1 where a side failed or did other work.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import report

ROOT = Path(__file__).resolve().parents[2]
LEARNING_RATE, EPSILON = 1e-6, 1e-3  # as in torch_step.py
TOLERANCE = 1e-4
TINY_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 96, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": True, "initializer_range": 0.1}  # fmt: skip
COPPICE = {
    "grouped": ["batching.sharing=GROUPED"],
    "grouped-block": ["batching.sharing=GROUPED", "numerics.recompute=BLOCK"],
    "repeated": ["batching.sharing=REPEATED"],
}
PEERS = ["repeated", "packed", "packed-compiled", "prefix-grouper"]


class Failure(Exception):
    """A side that ended or answered otherwise than it should."""


class CoppiceSide:
    def __init__(self, way, options, work):
        self.packing = "repeated" if way == "repeated" else "grouped"
        self.run_dir = work / f"run_{way}"
        settings = [f"run_dir={self.run_dir}", *COPPICE[way]]
        self.command = [options.program, "train", "--config", str(work / "run.textproto")]
        self.command += [word for setting in settings for word in ("--set", setting)]

    def turn(self):
        done = subprocess.run(self.command, capture_output=True, text=True)
        if done.returncode != 0:
            raise Failure(done.stderr.strip() or f"status {done.returncode}")
        steps = [json.loads(line) for line in (self.run_dir / "metrics.jsonl").open()]
        subprocess.run(["rm", "-r", self.run_dir], check=True)  # 1.6 GB of checkpoint
        for step in steps:
            step["passes_seconds"] = step["seconds"]["forward"] + step["seconds"]["backward"]
        return steps

    def close(self):
        pass


class TorchSide:
    def __init__(self, way, options, work):
        self.packing = "repeated" if way == "repeated" else "grouped"
        self.log = work / f"{way}.log"
        self.child = None
        self.command = [options.python, ROOT / "bench/peers/torch_step.py", "--way", way]
        self.command += ["--model", options.model, "--rollouts", work / "rollouts.jsonl"]
        self.command += ["--threads", str(options.threads)]
        self.environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}

    def start(self):
        self.child = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log.open("w"),
            text=True, env=self.environment)  # fmt: skip

    def step(self):
        try:
            print(file=self.child.stdin, flush=True)
        except BrokenPipeError:
            pass  # the log says why
        line = self.child.stdout.readline()
        if not line:
            raise Failure(self.log.read_text().strip().splitlines()[-1])
        return json.loads(line)

    def turn(self):
        self.start()
        try:
            return [self.step(), self.step()]
        finally:
            self.close()

    def close(self):
        if self.child is None:
            return
        try:
            self.child.stdin.close()
        except BrokenPipeError:
            pass  # it has ended already
        self.child.wait()
        self.child = None


def write_inputs(options, work):
    """The group, the run config and, for --tiny, a model; all from a seed."""
    draw = random.Random(1)
    config = json.loads((Path(options.model) / "config.json").read_text())

    def ids(count):
        return [draw.randrange(config["vocab_size"]) for _ in range(count)]

    def response(number):
        made = {"ids": ids(options.response), "reward": float(number % 3 == 0)}
        if options.tiny:  # ratios other than 1, so that the loss says something of the log-probs
            made["old_logprobs"] = [draw.uniform(-5, -4) for _ in range(options.response)]
        return made

    group = {
        "group": "g0",
        "prompt_ids": ids(options.prefix),
        "responses": [response(number) for number in range(options.group_size)],
    }
    (work / "rollouts.jsonl").write_text(json.dumps(group) + "\n")
    (work / "run.textproto").write_text(
        f'model {{ hf: "{options.model}" }}\n'
        f'data {{ rollouts: "{work}/rollouts.jsonl"  groups_per_step: 1  epochs: 2 }}\n'
        "batching { max_rows_per_microbatch: 1000000 }\n"
        f"optimizer {{ learning_rate: {LEARNING_RATE}  epsilon: {EPSILON} }}\n"
        f"threads_per_rank: {options.threads}\n"
    )
    return config


def make_tiny_model(options, work):
    (work / "config.json").write_text(json.dumps(TINY_CONFIG))
    for arguments in (
        ["init", "--hf-config", work / "config.json", "--seed", "1", "--out", work / "tiny.h5"],
        ["export", "--checkpoint", work / "tiny.h5", "--out", work / "tiny"],
    ):
        subprocess.run([options.program, *arguments], check=True, capture_output=True)
    return str(work / "tiny")


def executed_flops(config, options, packing):
    """As docs/metrics.md defines it."""
    p, r, g = options.prefix, options.response, options.group_size
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    hidden, layers, head_dim = config["hidden_size"], config["num_hidden_layers"], config["head_dim"]
    linear = layers * hidden * (
        (2 * heads + 2 * kv_heads) * head_dim + 3 * config["intermediate_size"]
    )
    if packing == "grouped":
        rows, edge_rows = p + g * r, 1 + g * (r - 1)
        pairs = p * (p + 1) // 2 + g * (r * p + r * (r + 1) // 2)
    else:
        rows, edge_rows = g * (p + r), g * r
        pairs = g * (p + r) * (p + r + 1) // 2
    attention = 4 * heads * head_dim * layers * pairs
    return 3 * (2 * linear * rows + attention + 2 * config["vocab_size"] * hidden * edge_rows)


def differences(sides):
    """What the first two steps of each side differ in from those of the first. A loss whose terms
    cancel is compared at their scale, the mean advantage."""
    reference, problems = None, []
    for name, side in sides.items():
        if len(side["first_steps"]) < 2:
            continue
        reference = reference or side["first_steps"]
        for number, (step, expected) in enumerate(zip(side["first_steps"], reference), 1):
            loss_scale = max(abs(expected["loss"]), expected.get("advantage_abs_mean", 1.0))
            for key, scale in (("loss", loss_scale), ("grad_norm", expected["grad_norm"])):
                if not abs(step[key] - expected[key]) <= TOLERANCE * scale:
                    problems.append(f"{name}: {key} of step {number} is {step[key]}, not {expected[key]}")
    return problems


def measure(options, work, config):
    def sgemm():
        command = [options.sgemm, "--threads", str(options.threads)]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    running, found = {}, report.new_result(options, ROOT)
    for kind, ways, title in (
        (CoppiceSide, options.coppice, "Coppice, {}"),
        (TorchSide, options.peers, "PyTorch, {}"),
    ):
        for way in ways:
            side = running[title.format(way)] = kind(way, options, work)
            found["sides"][title.format(way)] = {
                "packing": side.packing, "first_steps": [], "step_seconds": [], "passes_seconds": [],
                "executed_flops": executed_flops(config, options, side.packing)}  # fmt: skip
    try:
        for repetition in range(options.repetitions):
            round_begin = time.monotonic()
            for name, side in list(running.items()):
                if not options.tiny:
                    found["sgemm_gflops"].append(sgemm())
                begin = time.monotonic()
                try:
                    steps = side.turn()
                except Failure as failure:
                    found["failed"][name] = str(failure)
                    side.close()
                    del running[name], found["sides"][name]
                    continue
                figures = found["sides"][name]
                if repetition == 0:
                    figures["first_steps"] = [
                        {key: s[key] for key in ("loss", "grad_norm", "advantage_abs_mean") if key in s}
                        for s in steps
                    ]
                last = steps[-1]
                figures["step_seconds"].append(last["step_seconds"])
                figures["passes_seconds"].append(last["passes_seconds"])
                figures["peak_resident_bytes"] = last["peak_resident_bytes"]
                if last.get("executed_flops", figures["executed_flops"]) != figures["executed_flops"]:
                    raise SystemExit(f"{name}: executed_flops is counted otherwise there")
                print(f"round {repetition + 1}: {name:<26}{last['step_seconds']:9.3f} s "
                      f"(turn {time.monotonic() - begin:.0f} s)", file=sys.stderr, flush=True)  # fmt: skip
            found["sgemm_gflops"].append(sgemm())
            found["repetitions"] = repetition + 1
            took = time.monotonic() - round_begin  # the first is the longest: warm-up, compilation
            print(f"round {repetition + 1} of {options.repetitions} took {took:.0f} s; at most "
                  f"{took * (options.repetitions - repetition - 1):.0f} s to go", file=sys.stderr)  # fmt: skip
            report.add_rates(found)
            if not options.tiny:
                report.add_ratios(found)
            print(report.table(found), flush=True)
            if options.out:
                report.write(options.out, found)
    finally:
        for side in running.values():
            side.close()
    return found


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def names(known):
        def parsed(text):
            chosen = [name for name in text.split(",") if name]
            if set(chosen) - set(known):
                raise argparse.ArgumentTypeError(f"known are {', '.join(known)}")
            return chosen

        return parsed

    parser.add_argument("--prefix", type=int, help="prompt tokens [512]")
    parser.add_argument("--response", type=int, help="tokens of each response [64]")
    parser.add_argument("--group-size", type=int, help="responses [8]")
    parser.add_argument("--repetitions", type=int, help="counted steps of each side [3]")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--peers", type=names(PEERS), help=f"PyTorch's ways [{','.join(PEERS)}]")
    parser.add_argument("--coppice", type=names(COPPICE), default=list(COPPICE),
                        help=f"Coppice's ways [{','.join(COPPICE)}]")  # fmt: skip
    parser.add_argument("--tiny", action="store_true",
                        help="a tiny random model; without torch.compile unless --peers asks for it")  # fmt: skip
    parser.add_argument("--out", type=Path, help="without its suffix [docs/benchmarks/peers]")
    parser.add_argument("--model", help="Hugging Face directory [.cache/smollm2-hf]")
    parser.add_argument("--program", default=str(ROOT / "build/release/launch/coppice"))
    parser.add_argument("--sgemm", default=str(ROOT / "build/release/bench/sgemm_bench"))
    options = parser.parse_args()
    sizes = {"prefix": (512, 24), "response": (64, 8), "group_size": (8, 4), "repetitions": (3, 1)}
    for name, (usual, tiny) in sizes.items():
        if getattr(options, name) is None:
            setattr(options, name, tiny if options.tiny else usual)
    if options.peers is None:
        options.peers = [way for way in PEERS if not (options.tiny and way == "packed-compiled")]
    if options.out is None and not options.tiny:
        options.out = ROOT / "docs/benchmarks/peers"
    return options


def main():
    options = parse()

    def environment(kind):
        made = subprocess.run([ROOT / "tools/venv", kind], check=True, capture_output=True, text=True)
        return f"{made.stdout.strip()}/bin/python"

    options.python = environment("peers")
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        if options.tiny:
            options.model = make_tiny_model(options, work)
        elif options.model is None:
            options.model = str(ROOT / ".cache/smollm2-hf")
            subprocess.run([environment("light"), ROOT / "tools/smollm2_to_hf.py", "--out",
                            options.model], check=True)  # fmt: skip
        found = measure(options, work, write_inputs(options, work))
    problems = [f"{name} failed: {why}" for name, why in found["failed"].items()]
    problems += differences(found["sides"])
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(f"loss and gradient norm of {len(found['sides'])} sides agree to {TOLERANCE:g}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
