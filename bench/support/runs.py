"""Made-up models, rollouts and runs of the built program, for benches that time whole runs of it."""
import json
import pathlib
import platform
import random
import subprocess

SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576,
    "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "hidden_act": "silu",
    "tie_word_embeddings": True, "initializer_range": 0.02}


def group_line(config, name, prefix, response, group_size, seed=1):
    """One line of a rollouts file: random ids, rewards in turn 0 and 1."""
    draw = random.Random(seed)

    def ids(count):
        return [draw.randrange(config["vocab_size"]) for _ in range(count)]
    responses = [{"ids": ids(response), "reward": float(i % 2)} for i in range(group_size)]
    return json.dumps({"group": name, "prompt_ids": ids(prefix), "responses": responses}) + "\n"


class Runs:
    """A directory with one fresh model, and runs of the program on it, one group a step."""

    def __init__(self, program, directory, config):
        self.program, self.directory = program, pathlib.Path(directory)
        self.config = config
        (self.directory / "config.json").write_text(json.dumps(config))
        subprocess.run([program, "init", "--hf-config", str(self.directory / "config.json"),
                        "--seed", "1", "--out", str(self.directory / "model.h5")], check=True,
                       stderr=subprocess.DEVNULL)
        self.count = 0

    def settings(self, prefix, response, group_size, steps, more):
        """Flags of `train` and `plan` for steps of one group of these lengths."""
        name = f"p{prefix}_r{response}_g{group_size}"
        rollouts = self.directory / f"{name}.jsonl"
        if not rollouts.exists():
            rollouts.write_text(group_line(self.config, "g0", prefix, response, group_size))
        (self.directory / "run.textproto").write_text(
            f'run_dir: "{self.directory}/run_{self.count}"\n'
            f'model {{ checkpoint: "{self.directory}/model.h5" }}\n'
            f'data {{ rollouts: "{rollouts}" groups_per_step: 1 epochs: {steps} }}\n'
            f"batching {{ max_rows_per_microbatch: {group_size * (prefix + response)} }}\n"
            "optimizer { learning_rate: 1e-6 }\n")
        flags = ["--config", str(self.directory / "run.textproto")]
        for setting in more:
            flags += ["--set", setting]
        return flags

    def train(self, prefix, response, group_size, steps, more=()):
        """The metrics of every step but the first, in which memory settles."""
        self.count += 1
        flags = self.settings(prefix, response, group_size, steps + 1, more)
        subprocess.run([self.program, "train"] + flags, check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        run_dir = self.directory / f"run_{self.count}"
        lines = (run_dir / "metrics.jsonl").read_text().splitlines()
        for checkpoint in (run_dir / "checkpoints").glob("*.h5"):
            checkpoint.unlink()
        return [json.loads(line) for line in lines][1:]

    def plan(self, prefix, response, group_size, more=()):
        flags = self.settings(prefix, response, group_size, 1, more)
        return json.loads(subprocess.run([self.program, "plan", "--json"] + flags, check=True,
                                         capture_output=True, text=True).stdout)


def machine():
    """The processor, its cores, and the commit that is benched, in a line."""
    model = next((line.split(":")[1].strip()
                  for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    cores = len(__import__("os").sched_getaffinity(0))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True,
                            text=True, cwd=pathlib.Path(__file__).parent).stdout.strip()
    return f"{model}, {cores} cores, commit {commit or 'unknown'}"
