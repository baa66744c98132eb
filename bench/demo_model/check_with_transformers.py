#!/usr/bin/env python3
"""Checks that Hugging Face reads a model directory as this room does: same logits, same tokens.

    python3 bench/demo_model/check_with_transformers.py deploy/demo-model [directory ...]

Needs transformers. Exits 0 only if every directory agrees.
"""

import json
import pathlib
import random
import sys

import torch
import transformers

import corpus
import safetensors_file
from qwen3 import Qwen3Config, Qwen3ForCausalLM
from tokenizer import Tokenizer

LOGIT_TOLERANCE = 1e-4

_TEXTS = (
    "12+34*2=",
    "Hello,  world!\n\n\tit's 2026; naïve café, e\u0301 in NFD",
    "😀👨‍👩‍👧 日本語 שלום \u200d\ufeff ½ ² Ⅷ ١٢٣ _x_ '\u017f",
    "".join(map(chr, range(0x300))),
)


def check_logits(directory, config):
    """Compares fp32 logits; random ids up to 300 tokens reach every row of the vocabulary."""
    ours = Qwen3ForCausalLM(Qwen3Config.from_json(config))
    stored = {}
    for path in sorted(directory.glob("*.safetensors")):
        stored.update(safetensors_file.load(path))
    ours.load_state_dict({name: tensor.float() for name, tensor in stored.items()})
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    generator = torch.Generator().manual_seed(1)
    worst = 0.0
    with torch.no_grad():
        for length in (1, 7, 64, 300):
            ids = torch.randint(config["vocab_size"], (2, length), generator=generator)
            difference = (ours(ids) - theirs(ids).logits).abs().max().item()
            worst = max(worst, difference)
    print(f"{directory}: logits differ by at most {worst:.2e}")
    return worst <= LOGIT_TOLERANCE


def check_tokenizer(directory, config):
    """Compares ids on the corpus, and round trips on texts that the corpus has nothing like."""
    content = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    ours = Tokenizer([tuple(pair) for pair in content["model"]["merges"]])
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    rng = random.Random(2)
    documents = [corpus.document(rng, 2048) for _ in range(2000)]
    different = sum(ours.encode(text) != theirs.encode(text) for text in documents)
    broken = 0
    for text in (*documents, *_TEXTS):
        normal = theirs.backend_tokenizer.normalizer.normalize_str(text)
        broken += theirs.decode(theirs.encode(text)) != normal
    eos = theirs.eos_token_id == config["eos_token_id"] and len(theirs) == ours.size
    print(f"{directory}: {different} of {len(documents)} texts encode differently, "
          f"{broken} do not round-trip, eos agrees: {eos}")
    return different == 0 and broken == 0 and eos


def main():
    right = True
    for directory in map(pathlib.Path, sys.argv[1:]):
        config = json.loads((directory / "config.json").read_text())
        right &= check_logits(directory, config)
        if (directory / "tokenizer.json").exists():
            right &= check_tokenizer(directory, config)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
