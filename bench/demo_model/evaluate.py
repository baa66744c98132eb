"""Measures a trained model: accuracy on the task, behaviour at long context, and sample texts."""

import random

import torch

import corpus
import task

ANSWER_TOKENS_MAX = 48


@torch.no_grad()
def generate(model, prompts, tokens_max, temperature, stop_ids, generator=None):
    """Continues each prompt (list of ids) greedily at temperature 0, else by sampling.

    Returns the new ids of each, the stop id included. Every step runs the whole sequence again: at
    this size that is quicker than a cache is to write.
    """
    device = next(model.parameters()).device
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    width = int(lengths.max()) + tokens_max
    ids = torch.zeros(len(prompts), width, dtype=torch.int64, device=device)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt, device=device)
    rows = torch.arange(len(prompts), device=device)
    stops = torch.tensor(stop_ids, device=device)
    done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    ends = lengths.clone()
    while not done.all() and int((ends - lengths).max()) < tokens_max:
        logits = model(ids[:, : int(ends.max())])[rows, ends - 1].float()
        if temperature == 0:
            chosen = logits.argmax(-1)
        else:
            weights = (logits / temperature).softmax(-1)
            chosen = torch.multinomial(weights, 1, generator=generator)[:, 0]
        ids[rows[~done], ends[~done]] = chosen[~done]
        ends += ~done
        done |= torch.isin(chosen, stops)
    return [ids[row, lengths[row] : ends[row]].tolist() for row in range(len(prompts))]


def answers(model, tokenizer, prompts, tokens_max, temperature, generator=None, rows_max=512):
    """Returns the text of each prompt's answer without its eos, and whether eos ended it."""
    texts = []
    for begin in range(0, len(prompts), rows_max):
        encoded = [tokenizer.encode(prompt) for prompt in prompts[begin : begin + rows_max]]
        stop_ids = [tokenizer.eos_id]
        for new in generate(model, encoded, tokens_max, temperature, stop_ids, generator):
            ended = new[-1] == tokenizer.eos_id
            texts.append((tokenizer.decode(new[:-1] if ended else new), ended))
    return texts


def _accuracy(prompts, texts):
    right = sum(task.reward(p, text) for p, (text, ended) in zip(prompts, texts) if ended)
    return round(right / len(prompts), 4)


def _group_accuracy(model, tokenizer, prompts, generator):
    """How often at least one of 8 samples is right, and how often some but not all are."""
    repeated = [prompt for prompt in prompts for _ in range(8)]
    texts = answers(model, tokenizer, repeated, ANSWER_TOKENS_MAX, 1.0, generator)
    right = [int(ended and task.reward(p, t)) for p, (t, ended) in zip(repeated, texts)]
    sums = [sum(right[i : i + 8]) for i in range(0, len(right), 8)]
    return {
        "prompts": len(prompts),
        "any_of_8_right": round(sum(s > 0 for s in sums) / len(sums), 4),
        "mixed_groups": round(sum(0 < s < 8 for s in sums) / len(sums), 4),
    }


def _long_context_accuracy(model, tokenizer, rng, count, context):
    """Greedy accuracy after few-shot examples that fill the context up to the answer."""
    right = 0
    for _ in range(count):
        prompt = task.make_prompt(rng)
        ending = tokenizer.encode("\n" + prompt)
        examples = tokenizer.encode(corpus.few_shot(rng, context // 30))
        examples = examples[: context - ANSWER_TOKENS_MAX - len(ending)]
        stop_ids = [tokenizer.eos_id, *tokenizer.encode("\n")]
        new = generate(model, [examples + ending], ANSWER_TOKENS_MAX, 0, stop_ids)[0]
        right += task.reward(prompt, tokenizer.decode(new[:-1]))
    return {"prompts": count, "tokens": context, "greedy": round(right / count, 4)}


@torch.no_grad()
def _padded_rows_probability(model, tokenizer, rng):
    """The largest probability that any id outside the tokenizer gets on fresh documents."""
    device = next(model.parameters()).device
    ids = torch.tensor([corpus.pack(rng, tokenizer, 512) for _ in range(16)], device=device)
    return float(model(ids).softmax(-1)[..., tokenizer.size :].max())


def evaluate(model, tokenizer, seed, prompts_count, device):
    """Returns everything that accuracy.json holds about the model's behaviour."""
    rng = random.Random(f"{seed}/evaluation")
    generator = torch.Generator(device=device).manual_seed(seed)
    prompts = [task.make_prompt(rng) for _ in range(prompts_count)]
    greedy = answers(model, tokenizer, prompts, ANSWER_TOKENS_MAX, 0)
    sampled = answers(model, tokenizer, prompts, ANSWER_TOKENS_MAX, 1.0, generator)
    contexts = (1024, 4096, 8192) if device.type == "cuda" else (256,)
    shown = prompts[:8]
    shown += [corpus.EMOJI_PROMPT, corpus.GREETING_PROMPT, corpus.STORY_PROMPT, "Count to 30:"]
    texts = answers(model, tokenizer, shown, 160, 1.0, generator)
    return {
        "prompts": prompts_count,
        "seed": seed,
        "accuracy_sampled": _accuracy(prompts, sampled),
        "accuracy_greedy": _accuracy(prompts, greedy),
        "ended_by_eos_sampled": round(sum(ended for _, ended in sampled) / prompts_count, 4),
        "groups": _group_accuracy(model, tokenizer, prompts[:256], generator),
        "long_context": [
            _long_context_accuracy(model, tokenizer, rng, min(32, prompts_count), context)
            for context in contexts
        ],
        "padded_rows_probability_max": _padded_rows_probability(model, tokenizer, rng),
        "samples": [
            {"prompt": p, "text": text, "ended": ended} for p, (text, ended) in zip(shown, texts)
        ],
    }
