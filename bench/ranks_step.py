#!/usr/bin/env python3
"""Times a training step on several ranks against one rank with as many threads.

Runs the built program: one rank with N threads, then N ranks with one thread each along every axis,
in turn and several times, so that drift meets all alike. Prints medians, the ratio to one rank, and
what was sent along each axis. SmolLM2-135M shapes, but with 8 query and 4 key-value heads, so that
heads divide; random weights; each step holds N groups of one prompt and its responses.
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import tempfile

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576,
    "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 49152,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000.0,
    "hidden_act": "silu", "tie_word_embeddings": True, "initializer_range": 0.02}


def rollouts(groups, prefix, response, group_size):
    draw = random.Random(1)
    for group in range(groups):
        def ids(count):
            return [draw.randrange(CONFIG["vocab_size"]) for _ in range(count)]
        yield json.dumps({
            "group": f"g{group}", "prompt_ids": ids(prefix),
            "responses": [{"ids": ids(response), "reward": float(i % 2)}
                          for i in range(group_size)]})


def run(program, directory, name, ranks, threads, grid, steps):
    run_dir = directory / name
    launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                "-np", str(ranks)] if ranks > 1 else []
    command = launcher + [
        program, "train", "--config", str(directory / "run.textproto"),
        "--set", f"run_dir={run_dir}", "--set", f"threads_per_rank={threads}",
        "--set", f"limits.max_steps={steps}"]
    for axis, size in grid.items():
        command += ["--set", f"parallel.{axis}={size}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    for checkpoint in (run_dir / "checkpoints").glob("*.h5"):
        checkpoint.unlink()
    return [json.loads(line) for line in lines][1:]  # memory settles in the first


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="build/release/launch/coppice")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--prefix", type=int, default=512)
    parser.add_argument("--response", type=int, default=64)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--layers", type=int, default=CONFIG["num_hidden_layers"])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--only", action="append", metavar="GRID",
                        help="context, data, tensor or 'tensor, rows whole'; beside one rank")
    options = parser.parse_args()
    n = options.ranks
    sides = {"one rank": (1, n, {}),
             "tensor": (n, 1, {"tensor": n}),
             "tensor, rows whole": (n, 1, {"tensor": n, "sequence_parallel": "false"}),
             "context": (n, 1, {"context": n}),
             "data": (n, 1, {"data": n})}
    unknown = set(options.only or []) - set(list(sides)[1:])
    if unknown:
        parser.error(f"no grid {', '.join(sorted(unknown))}. There are {'; '.join(list(sides)[1:])}")
    for name in list(sides)[1:]:
        if options.only and name not in options.only:
            del sides[name]
            continue
        ranks, threads, grid = sides[name]
        sides[name + ", no overlap"] = (ranks, threads, grid | {"overlap": "false"})
    found = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(temporary)
        (directory / "config.json").write_text(
            json.dumps(CONFIG | {"num_hidden_layers": options.layers}))
        (directory / "rollouts.jsonl").write_text(
            "\n".join(rollouts(n, options.prefix, options.response, options.group_size)) + "\n")
        subprocess.run([options.program, "init", "--hf-config", str(directory / "config.json"),
                        "--seed", "1", "--out", str(directory / "model.h5")], check=True,
                       stderr=subprocess.DEVNULL)
        rows = options.prefix + options.group_size * options.response
        (directory / "run.textproto").write_text(
            f'model {{ checkpoint: "{directory}/model.h5" }}\n'
            f'data {{ rollouts: "{directory}/rollouts.jsonl" groups_per_step: {n} epochs: 100 }}\n'
            f"batching {{ sharing: GROUPED max_rows_per_microbatch: {rows} }}\n"
            "optimizer { learning_rate: 1e-6 }\n")
        for repetition in range(options.repetitions):
            for number, (name, (ranks, threads, grid)) in enumerate(sides.items()):
                found[name] += run(options.program, directory, f"run_{repetition}_{number}", ranks,
                                   threads, grid, options.steps + 1)

    def median(name, key):
        return statistics.median(key(step) for step in found[name])

    print(f"P={options.prefix} R={options.response} G={options.group_size}, {n} groups a step, "
          f"{options.layers} layers, f32; medians of {options.steps * options.repetitions} steps")
    print(f"{'':<30}{'step':>9}{'forward':>9}{'backward':>9}{'reduce':>9}{'ratio':>7}  sent a step")
    base = median("one rank", lambda step: step["step_seconds"])
    for name in sides:
        seconds = median(name, lambda step: step["step_seconds"])
        phases = [median(name, lambda step, phase=phase: step["seconds"].get(phase, 0.0))
                  for phase in ("forward", "backward", "reduce")]
        last = found[name][-1]
        sent = f"{last.get('communication_bytes', 0) / 1e6:.1f} MB"
        print(f"{name:<30}{seconds:>8.3f}s" + "".join(f"{value:>8.3f}s" for value in phases) +
              f"{seconds / base:>7.2f}  {sent}")
        for axis, traffic in last.get("communication", {}).items():
            waited = median(name, lambda step: step["communication"][axis]["seconds"])
            print(f"{'':<22}{axis}: {traffic['calls']} calls, {traffic['bytes'] / 1e6:.1f} MB, "
                  f"{waited:.3f} s waited")


if __name__ == "__main__":
    main()
