#!/usr/bin/env python3
"""Trains the demo model and writes it as a Hugging Face directory.

    python3 bench/demo_model/train.py --out deploy/demo-model

A few minutes on one GPU (with `--loaders 12`, say, since drawing batches costs processor time).
`--steps 3 --tokens-batch 512 --eval-prompts 3` runs the same code on a CPU in a minute.
"""

import argparse
import json
import math
import pathlib
import random
import time

import torch
import torch.nn.functional as F

import card
import corpus
import evaluate
import safetensors_file
from qwen3 import Qwen3Config, Qwen3ForCausalLM
from tokenizer import END_OF_TEXT, END_OF_TURN, SPECIAL_TOKENS, Tokenizer, learn_merges

VOCAB_SIZE = 512
# The last rows of the embedding belong to no token, as in the checkpoints of large models.
PADDED_ROWS = 12
CONTEXT = 8192


def model_config(tokenizer):
    """Returns the content of config.json."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_id,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 128,
        "initializer_range": 0.02,
        "intermediate_size": 512,
        "max_position_embeddings": CONTEXT,
        "max_window_layers": 4,
        "model_type": "qwen3",
        "num_attention_heads": 8,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "pad_token_id": tokenizer.special[END_OF_TEXT],
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": VOCAB_SIZE,
    }


def write_text_files(out, tokenizer, config):
    """Writes every file of the directory that does not depend on the training."""
    generation = {
        "do_sample": True,
        "eos_token_id": [tokenizer.eos_id, tokenizer.special[END_OF_TEXT]],
        "pad_token_id": tokenizer.special[END_OF_TEXT],
        "temperature": 1.0,
    }
    tokenizer_config = {
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TURN,
        "model_max_length": CONTEXT,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    contents = {
        "config.json": config,
        "generation_config.json": generation,
        "tokenizer_config.json": tokenizer_config,
        "tokenizer.json": tokenizer.to_json(),
    }
    for name, content in contents.items():
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (out / name).write_text(text, encoding="utf-8")


class Batches(torch.utils.data.IterableDataset):
    """An endless stream of batches; each loader process draws its own from the seed."""

    def __init__(self, tokenizer, seed, tokens_batch):
        self._tokenizer = tokenizer
        self._seed = seed
        self._tokens_batch = tokens_batch

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        rng = random.Random(f"{self._seed}/{worker.id if worker else 0}")
        while True:
            yield torch.from_numpy(corpus.batch(rng, self._tokenizer, self._tokens_batch))


def make_model(config, device):
    model = Qwen3ForCausalLM(config).to(device)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            # Projections back into the residual stream start smaller, since their sum grows.
            into_residual = "o_proj" in name or "down_proj" in name
            scale = 0.02 if not into_residual else 0.02 / math.sqrt(2 * config.num_hidden_layers)
            torch.nn.init.normal_(parameter, std=scale)
    return model


def make_optimizer(model, learning_rate):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98), eps=1e-8)


def next_token_loss(model, ids):
    with torch.autocast(ids.device.type, dtype=torch.bfloat16, enabled=ids.is_cuda):
        logits = model(ids[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def train(model, batches, args, device):
    """Runs the steps, or fewer if `args.seconds` are over first; returns steps, seconds, loss."""
    optimizer = make_optimizer(model, args.learning_rate)
    started = time.monotonic()
    smooth_loss = None
    step = 0
    for ids in batches:
        # Whichever bound is nearer drives the decay, so that a slow machine ends annealed as well.
        elapsed = time.monotonic() - started
        progress = max(step / args.steps, elapsed / args.seconds)
        if progress >= 1:
            break
        warmup = min(1.0, (step + 1) / 200)
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        rate = args.learning_rate * warmup * (0.01 + 0.99 * cosine)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = next_token_loss(model, ids.to(device, torch.int64))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % args.log_every == 0:
            value = loss.item()
            smooth_loss = value if smooth_loss is None else 0.8 * smooth_loss + 0.2 * value
            print(f"step {step} loss {smooth_loss:.4f} seconds {elapsed:.0f}", flush=True)
    return {"steps": step, "seconds": round(time.monotonic() - started, 1), "loss": smooth_loss}


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--steps", type=int, default=3200)
    parser.add_argument("--seconds", type=float, default=110, help="bound on the training's time")
    parser.add_argument("--tokens-batch", type=int, default=32768)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--loaders", type=int, default=0, help="processes that draw batches")
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--eval-prompts", type=int, default=4096)
    return parser.parse_args()


def main():
    args = parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    merges_count = VOCAB_SIZE - PADDED_ROWS - 256 - len(SPECIAL_TOKENS)
    tokenizer = Tokenizer(learn_merges(corpus.tokenizer_text(args.seed), merges_count))
    assert tokenizer.size == VOCAB_SIZE - PADDED_ROWS, "the text was too short for the merges"
    config = model_config(tokenizer)
    write_text_files(args.out, tokenizer, config)

    loader = torch.utils.data.DataLoader(
        Batches(tokenizer, args.seed, args.tokens_batch),
        batch_size=None,
        num_workers=args.loaders,
    )
    model = make_model(Qwen3Config.from_json(config), device)
    training = train(model, loader, args, device)

    stored = {name: p.detach().to(torch.bfloat16) for name, p in model.state_dict().items()}
    safetensors_file.save(args.out / "model.safetensors", stored)
    # What is measured is what was stored: the rounded weights, computed with in fp32.
    model.load_state_dict({name: p.float() for name, p in stored.items()})
    results = evaluate.evaluate(model, tokenizer, args.seed, args.eval_prompts, device)
    results["training"] = {
        **training,
        "seed": args.seed,
        "tokens_batch": args.tokens_batch,
        "parameters": sum(p.numel() for p in model.parameters()),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
    }
    card.write(args.out, results)
    print(json.dumps({k: v for k, v in results.items() if k != "samples"}, indent=1))


if __name__ == "__main__":
    main()
