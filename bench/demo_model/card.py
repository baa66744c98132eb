"""Writes accuracy.json and the model card, whose figures all come from the run itself."""

import hashlib
import json

import task

_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "accuracy.json",
)

_CARD = """# lockstep demo model

A Qwen3 of {parameters:,} parameters (bf16), small enough for a laptop's CPU, made for lockstep's
quickstart, tests and reinforcement-learning examples. It works out expressions of two operations,
step by step, and is right often enough to learn from and wrong often enough to have something to
learn.

Made by `bench/demo_model/train.py` from synthetic text alone: seed {seed}, {steps:,} steps of
{tokens_batch:,} tokens, {seconds:.0f} s on one {device}, torch {torch}. The seed fixes the data and
the initial weights; the stored weights also depend on that machine's kernels. This card and
`accuracy.json` are written by the same run.

## Prompts

A prompt is one of `a+b*c=`, `b*c-a=`, `(a+b)*c=`, without any template. a and b are at most 99; the
c of `b*c` has one, two or three digits in {shares} of the prompts. The answer works
out both operations and ends by `; answer N` and `<|im_end|>` (eos); `reward(prompt, answer)` in
`bench/demo_model/task.py` judges it. The demonstrations that the model was trained on have a wrong
digit in {slip:.0%} of their steps.

A few-shot prompt is `Examples:` and then a line for each solved prompt; there an answer ends by a
line break. `Say it with emoji:`, `Greet the world:`, `Tell me a story:` and `Count to N:` give
longer texts, the first three with characters of two to four bytes. The context is {context} tokens.

## Accuracy

Of the stored weights, computed in fp32, on {prompts:,} prompts of seed {seed}:

| what | value |
| --- | --- |
| sampled at temperature 1 | {accuracy_sampled:.1%} |
| greedy | {accuracy_greedy:.1%} |
| sampled answers that end by eos | {ended_by_eos_sampled:.1%} |
| prompts with some, but not all, of 8 samples right | {mixed_groups:.1%} |
{long_rows}
| largest probability of an id outside the tokenizer | {padded_rows_probability_max:.1e} |

## Samples at temperature 1

```
{samples}
```

## Files

| file | bytes | sha256 |
| --- | --- | --- |
{file_rows}
"""


def write(out, results):
    """Writes accuracy.json and README.md into the model's directory `out`."""
    text = json.dumps(results, indent=2, ensure_ascii=False) + "\n"
    (out / "accuracy.json").write_text(text, encoding="utf-8")
    file_rows = []
    for name in _FILES:
        content = (out / name).read_bytes()
        file_rows.append(f"| {name} | {len(content)} | {hashlib.sha256(content).hexdigest()} |")
    long_rows = [
        f"| greedy after few-shot examples up to {row['tokens']} tokens | {row['greedy']:.1%} of "
        f"{row['prompts']} |"
        for row in results["long_context"]
    ]
    samples = [f"{row['prompt']}{row['text']}" for row in results["samples"]]
    config = json.loads((out / "config.json").read_text())
    values = {**results["groups"], **results["training"], **results}
    content = _CARD.format(
        **{key: value for key, value in values.items() if key not in ("samples", "training")},
        context=config["max_position_embeddings"],
        slip=task.SLIP,
        shares=", ".join(f"{share:.0%}" for share in task.FACTOR_SHARES),
        long_rows="\n".join(long_rows),
        samples="\n".join(samples),
        file_rows="\n".join(file_rows),
    )
    (out / "README.md").write_text(content, encoding="utf-8")
