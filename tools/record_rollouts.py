#!/usr/bin/env python3
"""Records real rollouts: a small chat model answers arithmetic questions, several times each.

Every group is one few-shot prompt (solved examples as earlier turns of the chat, 400 to 700 tokens)
and its responses, sampled from the unmodified distribution at temperature 1 in f32 on the CPU: no
top-k, no top-p, no penalties. old_logprobs are the log-softmax values that were sampled from. The
reward is 1 for the right final number plus 0.1 for ending with "The answer is N."; questions are of
a difficulty where the model is sometimes right, so that most groups have spread. Output: the
project's rollout schema.

Run it with the torch environment and a model that has a tokenizer and chat template:

    "$(tools/venv torch)/bin/python" tools/record_rollouts.py --model DIR --out rollouts.jsonl

The prompt's keys and values are computed once per group and copied to the batch of responses.
"""

import argparse
import json
import os
import random
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

INSTRUCTION = (
    "You solve arithmetic questions. Write the calculation in one or two short steps, "
    "then end with: The answer is N."
)
MIN_PROMPT, MAX_PROMPT = 400, 700
FORMAT = re.compile(r"The answer is (-?\d+)\.$")
NUMBER = re.compile(r"-?\d+")


@dataclass(frozen=True)
class Problem:
    question: str
    solution: str
    answer: int


def draw_problem(rng: random.Random) -> Problem:
    """One of a few kinds of question that a model of 135M parameters gets right now and then."""
    kind = rng.choice(("sum", "difference", "product", "three", "story"))
    a, b = rng.randint(11, 49), rng.randint(2, 12)
    if kind == "sum":
        return Problem(f"What is {a} + {b}?", f"{a} + {b} = {a + b}.", a + b)
    if kind == "difference":
        a = max(a, b + 2)
        return Problem(f"What is {a} - {b}?", f"{a} - {b} = {a - b}.", a - b)
    if kind == "product":
        a, b = rng.randint(4, 13), rng.randint(4, 9)
        return Problem(f"What is {a} times {b}?", f"{a} * {b} = {a * b}.", a * b)
    if kind == "three":
        a, b, c = rng.randint(2, 12), rng.randint(2, 12), rng.randint(2, 9)
        steps = f"{a} + {b} = {a + b}. {a + b} + {c} = {a + b + c}."
        return Problem(f"What is {a} + {b} + {c}?", steps, a + b + c)
    things = rng.choice(("apples", "books", "coins", "cards", "shells"))
    return Problem(
        f"Mia has {a} {things} and gets {b} more. How many {things} does she have?",
        f"{a} + {b} = {a + b}.",
        a + b,
    )


def draw_prompt(tokenizer: Any, rng: random.Random) -> tuple[list[int], Problem]:
    """A chat of 8 to 12 solved examples and one open question, of 400 to 700 tokens."""
    while True:
        shots = [draw_problem(rng) for _ in range(rng.randint(8, 12))]
        problem = draw_problem(rng)
        if problem.question in {shot.question for shot in shots}:
            continue
        chat = [{"role": "system", "content": INSTRUCTION}]
        for shot in shots:
            reply = f"{shot.solution} The answer is {shot.answer}."
            chat.append({"role": "user", "content": shot.question})
            chat.append({"role": "assistant", "content": reply})
        chat.append({"role": "user", "content": problem.question})
        encoded = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)
        if MIN_PROMPT <= len(encoded["input_ids"]) <= MAX_PROMPT:
            return list(encoded["input_ids"]), problem


@torch.inference_mode()
def sample(
    model: torch.nn.Module,
    prompt: list[int],
    count: int,
    limit: int,
    eos: int,
    rng: np.random.Generator,
) -> list[tuple[list[int], list[float]]]:
    """Responses as (ids, log-probs); the eos id, where one was drawn, is the last of its ids."""
    cache = DynamicCache()
    first = model(torch.tensor([prompt]), cache=cache, logits_to_keep=1)
    cache.batch_repeat_interleave(count)
    logits = first.logits[:, -1].expand(count, -1)
    responses: list[tuple[list[int], list[float]]] = [([], []) for _ in range(count)]
    open_rows = set(range(count))
    for _ in range(limit):
        logprobs = torch.log_softmax(logits.double(), dim=-1).numpy()
        cumulative = np.exp(logprobs).cumsum(axis=-1)
        draws = rng.random(count)[:, None] * cumulative[:, -1:]
        ids = (cumulative > draws).argmax(axis=-1)
        for row in sorted(open_rows):
            responses[row][0].append(int(ids[row]))
            responses[row][1].append(float(str(np.float32(logprobs[row, ids[row]]))))
            if ids[row] == eos:
                open_rows.remove(row)
        if not open_rows:
            break
        # Rows that have ended go on being computed; nobody looks at them.
        logits = model(torch.from_numpy(ids)[:, None], cache=cache).logits[:, -1]
    return responses


def reward_of(text: str, answer: int) -> float:
    """1 for the right final number, 0.1 for the asked-for ending."""
    numbers = NUMBER.findall(text)
    right = bool(numbers) and int(numbers[-1]) == answer
    return round(1.0 * right + 0.1 * bool(FORMAT.search(text)), 1)


def record_group(
    name: str, model: torch.nn.Module, tokenizer: Any, options: argparse.Namespace, seed: int
) -> dict[str, Any]:
    prompt, problem = draw_prompt(tokenizer, random.Random(seed))
    eos = tokenizer.eos_token_id
    drawn = sample(
        model, prompt, options.responses, options.max_tokens, eos, np.random.default_rng(seed)
    )
    responses: list[dict[str, Any]] = []
    for ids, logprobs in drawn:
        text = tokenizer.decode(ids, skip_special_tokens=True).strip()
        response = {"ids": ids, "reward": reward_of(text, problem.answer), "old_logprobs": logprobs}
        if ids[-1] != eos:
            response["truncated"] = True
        responses.append(response)
        if options.verbose:
            print(f"    {response['reward']:.1f}  {problem.question} -> {text!r}")
    return {"group": name, "prompt_ids": prompt, "responses": responses}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face directory")
    parser.add_argument("--out", type=Path, required=True, help="JSON Lines file to write")
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--responses", type=int, default=8, help="responses per group")
    parser.add_argument("--max-tokens", type=int, default=64, help="longest response")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--verbose", action="store_true", help="print every response")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    transformers.logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    start, spread = time.monotonic(), 0
    scratch = options.out.with_name(options.out.name + ".tmp")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with scratch.open("w", encoding="utf-8") as file:
        for index in range(options.groups):
            seed = options.seed * 1_000_003 + index
            group = record_group(f"arithmetic-{index:03d}", model, tokenizer, options, seed)
            file.write(json.dumps(group) + "\n")
            rewards = [response["reward"] for response in group["responses"]]
            spread += max(rewards) > min(rewards)
            print(
                f"{group['group']}: {len(group['prompt_ids'])} prompt tokens, rewards {rewards}, "
                f"{time.monotonic() - start:.0f} s",
                flush=True,
            )
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(options.out)
    share = spread / options.groups
    print(
        f"{spread} of {options.groups} groups ({share:.0%}) have reward spread; wrote {options.out}"
    )
    print(
        f"torch {torch.__version__}, transformers {transformers.__version__}, seed {options.seed}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
