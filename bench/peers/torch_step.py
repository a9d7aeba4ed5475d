#!/usr/bin/env python3
"""One GRPO step at a time in PyTorch and transformers, for bench/peers/compare.py.

Reads the model and the one group that Coppice also gets, and packs it in one of the ways below. Then
answers each line of its input with one optimizer step and a line of JSON: seconds, loss, gradient
norm, peak memory. What is prepared before the first line (ids, masks, the optimizer) is not timed.

  repeated          the prompt once for each response, causal attention without a mask
  packed            the prompt once, all rows in one sequence under a dense mask
  packed-compiled   the same through torch.compile: one decoder layer for all, and head with loss
  prefix-grouper    the prompt once, attention in the two calls of the published package

Everywhere: f32, the head on rows that predict a response token only, fused AdamW.
"""

import argparse
import json
import os
import resource
import sys
import time
from dataclasses import dataclass

import torch
import transformers
from torch.nn.utils import clip_grad_norm_
from transformers.integrations.sdpa_attention import sdpa_attention_forward

LEARNING_RATE, CLIP = 1e-6, 0.2  # compare.py gives Coppice the same rate; the clip is the default
# As large as most gradients. With the usual 1e-8 a first step moves every weight by the whole rate, also
# where its gradient is rounding only, and that alone changed a second gradient norm by 1.2e-4.
EPSILON = 1e-3


@dataclass
class Rows:
    """A group as the model reads it. `edge_rows` are the rows (of all sequences laid end to end) that
    predict a response token; edge e, in order of responses, is row edge_rows[row_of_edge[e]]."""

    inputs: dict
    edge_rows: torch.Tensor
    row_of_edge: torch.Tensor


def repeated(prompt, responses):
    length = len(prompt) + len(responses[0])
    assert all(len(response) == len(responses[0]) for response in responses), "one length, no padding"
    rows = [
        sequence * length + row
        for sequence in range(len(responses))
        for row in range(len(prompt) - 1, length - 1)
    ]
    ids = torch.tensor([prompt + response for response in responses])
    return Rows({"input_ids": ids}, torch.tensor(rows), torch.arange(len(rows)))


def shared(prompt, responses):
    """The prompt, then one response behind the other, each counting on from the prompt."""
    ids, positions, edge_rows, row_of_edge = list(prompt), [*range(len(prompt))], [len(prompt) - 1], []
    for response in responses:
        first = len(ids)
        row_of_edge += [0, *range(len(edge_rows), len(edge_rows) + len(response) - 1)]
        edge_rows += range(first, first + len(response) - 1)  # the last row predicts nothing
        ids += response
        positions += range(len(prompt), len(prompt) + len(response))
    inputs = {"input_ids": torch.tensor([ids]), "position_ids": torch.tensor([positions])}
    return Rows(inputs, torch.tensor(edge_rows), torch.tensor(row_of_edge))


def additive(visible):
    return torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)[None, None]


def packed(prompt, responses):
    """A row sees the prompt and its own response, up to itself."""
    rows = shared(prompt, responses)
    segments = [0] * len(prompt)
    for number, response in enumerate(responses, 1):
        segments += [number] * len(response)
    segment = torch.tensor(segments)
    own_or_prompt = (segment[:, None] == segment) | (segment == 0)
    rows.inputs["attention_mask"] = additive(own_or_prompt.tril())
    return rows


def prefix_grouper(prompt, responses):
    """The package hands its attention function first the prompt, then every response behind a copy
    of the prompt's keys. Its own masks are made for FlashAttention-2; SDPA needs the response's
    causal one, aligned to the last key."""
    from prefix_grouper import PrefixGrouper

    longest = max(map(len, responses))
    ones = torch.ones(longest, len(prompt) + longest, dtype=torch.bool)
    lower_right = additive(ones.tril(len(prompt)))

    def attention(query, key, value, _package_mask, module, **options):
        mask = None if query.shape[2] == key.shape[2] else lower_right
        return sdpa_attention_forward(module, query, key, value, mask, **options)[0]

    def grouped_attention(module, query, key, value, _mask, *, grouper, **options):
        return grouper.forward(attention, query, key, value, module, **options), None

    transformers.AttentionInterface.register("prefix_grouper", grouped_attention)
    rows = shared(prompt, responses)
    rows.inputs["grouper"] = PrefixGrouper([[len(prompt), *map(len, responses)]])
    return rows


class ExactRotary(torch.nn.Module):
    """RoPE tables from angles in double, rounded once, as Coppice makes them. transformers rounds the
    angle itself to f32: at position 2000 that is an error of 1e-4, and both would differ by it."""

    def __init__(self, config):
        super().__init__()
        assert config.rope_parameters["rope_type"] == "default", config.rope_parameters
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        self.frequencies = config.rope_parameters["rope_theta"] ** -exponents

    def forward(self, hidden, position_ids):
        angles = position_ids[..., None].double() * self.frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(hidden.dtype), angles.sin().to(hidden.dtype)


WAYS = {
    "repeated": repeated,
    "packed": packed,
    "packed-compiled": packed,
    "prefix-grouper": prefix_grouper,
}


def grpo_loss(head, hidden, rows, targets, old, advantages, weights):
    logits = head(hidden.flatten(0, 1)[rows.edge_rows])
    logprobs = logits[rows.row_of_edge, targets] - logits.logsumexp(-1)[rows.row_of_edge]
    ratio = torch.exp(logprobs - (logprobs.detach() if old is None else old))
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    return (-torch.minimum(ratio * advantages, clipped * advantages) * weights).sum()


def prepare(way, model_directory, group):
    responses = [response["ids"] for response in group["responses"]]
    rows = WAYS[way](group["prompt_ids"], responses)
    attention = "prefix_grouper" if way == "prefix-grouper" else "sdpa"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        model_directory, dtype=torch.float32, attn_implementation=attention
    ).train()
    model.model.rotary_emb = ExactRotary(model.config)
    rewards = torch.tensor([response["reward"] for response in group["responses"]])
    lengths = torch.tensor([len(response) for response in responses])
    old = [value for response in group["responses"] for value in response.get("old_logprobs", [])]
    constants = (
        torch.tensor([token for response in responses for token in response]),
        torch.tensor(old) if old else None,
        ((rewards - rewards.mean()) / (rewards.std() + 1e-6)).repeat_interleave(lengths),
        (1 / (len(responses) * lengths)).repeat_interleave(lengths),
    )
    loss = grpo_loss
    if way == "packed-compiled":  # the whole model at once takes minutes to compile
        loss = torch.compile(grpo_loss, dynamic=False)
        for layer in model.model.layers:
            layer.compile(dynamic=False)

    def loss_of():
        hidden = model.model(**rows.inputs, use_cache=False).last_hidden_state
        return loss(model.lm_head, hidden, rows, *constants)

    return model, loss_of


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--model", required=True, help="Hugging Face directory")
    parser.add_argument("--rollouts", required=True, help="JSON Lines; the first group is used")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")  # libraries that print must not disturb them
    os.dup2(2, 1)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    with open(arguments.rollouts) as lines:
        group = json.loads(lines.readline())
    model, loss_of = prepare(arguments.way, arguments.model, group)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        parameters, lr=LEARNING_RATE, betas=(0.9, 0.95), eps=EPSILON, weight_decay=0.0, fused=True
    )
    for _ in sys.stdin:
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        passes_seconds = time.perf_counter() - start
        # Not timed: the norm to compare. PyTorch's own, summed in f32, is off by 2e-5 on SmolLM2.
        squares = sum(p.grad.double().square().sum().item() for p in parameters)
        start = time.perf_counter()
        clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        answer = {
            "step_seconds": passes_seconds + time.perf_counter() - start,
            "passes_seconds": passes_seconds,
            "loss": loss.item(),
            "grad_norm": squares**0.5,
            "peak_resident_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        }
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
