#!/usr/bin/env python3
"""Asks a chat model in a Hugging Face directory one question and looks for the answer in its reply.

A model whose rotary rows, tokenizer or chat template went wrong on the way still loads, and
babbles; this is the check that sees it. Run it with the torch environment:

    "$(tools/venv torch)/bin/python" tools/check_greedy_text.py runs/smollm2

Exit status: 0 when the reply contains the expected text, 1 when it does not.
"""

import argparse
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging


def greedy_reply(directory: Path, question: str, max_new_tokens: int) -> str:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    with torch.inference_mode():
        ids = model.generate(**prompt, max_new_tokens=max_new_tokens, do_sample=False)
    return tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="Hugging Face directory with a tokenizer")
    parser.add_argument("--question", default="What is 7+5?")
    parser.add_argument("--expect", default="12", help="text that the reply must contain")
    parser.add_argument("--max-new-tokens", type=int, default=32)
    options = parser.parse_args()
    logging.disable_progress_bar()
    reply = greedy_reply(options.model, options.question, options.max_new_tokens)
    print(f"{options.question} -> {reply}")
    if options.expect not in reply:
        print(f"the reply does not contain {options.expect!r}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
