"""A checkpoint through the engine and through PyTorch."""

import dataclasses
import hashlib
import itertools
import random
import statistics
from collections import namedtuple

import torch
import transformers

import checkpoint
import lockstep_ops
from bits import compare
from lockstep_ops import hugging_face

SEGMENTS = (1, 2)
SPLIT = lockstep_ops.SPLIT_KV_SIZE
NEW_TOKENS = 48
TEMPERATURE = 0.8  # parity_engine's.
# Both sides of blocks and splits; answers to 1000 and 2030 tokens run over the end of a split.
PROMPT_LENGTHS = (1, 17, 129, 640, 1000, 1537, 2030, 2600)
BATCHED = (1, 2, 3, 4)  # Indices of prompts that share a batch, padded and packed,
DECODED = (1, 4, 6)     # and of those whose answers are run again token by token.
SEED = 11
TIMED = 5

KEYS = ("engine", "errors", "passes", "planted", "answers", "bits")

Job = namedtuple("Job", ("name", "directory", "answers"))  # answers: by segments.


def _requests(vocabulary):
    source = random.Random(SEED)
    return [([source.randrange(vocabulary) for _ in range(length)], NEW_TOKENS)
            for length in PROMPT_LENGTHS]


def start(engine, name, work, executor):
    """Writes the checkpoint, and leaves the engine's runs to `executor`."""
    directory = work / name
    config = checkpoint.make(name, directory, SEED)
    requests = _requests(config.vocab_size)
    return Job(name, directory, {
        s: executor.submit(engine.run, str(directory), s, SPLIT, requests) for s in SEGMENTS})


def _ids(answer):
    return torch.from_numpy(answer.ids).long().cuda()[None]


def _stock_logprobs(model, answer):
    """As a trainer without our ops computes them."""
    ids = _ids(answer)
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
    return torch.log_softmax(logits, dim=-1).gather(1, ids[0, 1:, None])[:, 0].cpu()


def _of_logits(logits, ids):
    return lockstep_ops.token_logprobs(logits, ids, temperature=TEMPERATURE, entropy=True)


def _in_one_pass(model, answer):
    ids = _ids(answer)
    return _of_logits(model(input_ids=ids, use_cache=False).logits[0, :-1], ids[0, 1:])


def _in_a_batch(model, answers):
    longest = max(len(a.ids) for a in answers)
    ids = torch.zeros(len(answers), longest, dtype=torch.long, device="cuda")
    mask = torch.zeros_like(ids)
    for row, answer in enumerate(answers):
        ids[row, :len(answer.ids)] = _ids(answer)[0]
        mask[row, :len(answer.ids)] = 1
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    return [_of_logits(logits[row, :len(a.ids) - 1], ids[row, 1:len(a.ids)])
            for row, a in enumerate(answers)]


def _packed(model, answers):
    """All sequences in one row, one after the other."""
    ids = torch.cat([_ids(a) for a in answers], dim=1)
    positions = torch.cat([torch.arange(len(a.ids), device="cuda") for a in answers])[None]
    logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0]
    ends = itertools.accumulate(len(a.ids) for a in answers)
    return [_of_logits(logits[end - len(a.ids):end - 1], ids[0, end - len(a.ids) + 1:end])
            for a, end in zip(answers, ends)]


def _token_by_token(model, answer):
    """Logprobs of the answer alone, from a cache that grows by one key a step."""
    ids = _ids(answer)
    cache, begin, rows = transformers.DynamicCache(), 0, []
    for end in range(ids.shape[1] - NEW_TOKENS, ids.shape[1]):
        logits = model(input_ids=ids[:, begin:end], past_key_values=cache, use_cache=True).logits
        rows.append(logits[0, -1])
        begin = end
    return _of_logits(torch.stack(rows), ids[0, -NEW_TOKENS:])


def _compared(answer, actual, last=None):
    """One comparison for each array, of the last values only where so many are asked for."""
    for name, values in zip(actual._fields, actual):
        expected = torch.from_numpy(getattr(answer, name).copy())
        yield compare(name, values.cpu(), expected if last is None else expected[-last:])


def _digests(name, segments, answers):
    """SHA-256 of the engine's ids and raw logprobs, by request."""
    return [{"model": name, "segments": segments, "prompt_tokens": len(a.ids) - NEW_TOKENS,
             "new_tokens": NEW_TOKENS, "ids": hashlib.sha256(a.ids.tobytes()).hexdigest(),
             "raw": hashlib.sha256(a.raw.tobytes()).hexdigest()} for a in answers]


def _milliseconds(model, answer):
    """Times of a pass over a prompt and its answer, logits included."""
    times = []
    for _ in range(TIMED + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        model(input_ids=_ids(answer), use_cache=False)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return times[1:]


def _bits(name, segments, model, answers):
    """Every way through the canonical model against the engine."""
    ways = [("prompt and answer in one pass", i, _in_one_pass(model, a), None)
            for i, a in enumerate(answers)]
    ways += [("padded batch", i, logprobs, None) for i, logprobs in
             zip(BATCHED, _in_a_batch(model, [answers[i] for i in BATCHED]))]
    ways += [("packed in one row", i, logprobs, None) for i, logprobs in
             zip(BATCHED, _packed(model, [answers[i] for i in BATCHED]))]
    ways += [("answer token by token", i, _token_by_token(model, answers[i]), NEW_TOKENS)
             for i in DECODED]
    return [{"model": name, "segments": segments, "path": path,
             "prompt_tokens": PROMPT_LENGTHS[i], "new_tokens": NEW_TOKENS,
             **dataclasses.asdict(c)}
            for path, i, logprobs, last in ways for c in _compared(answers[i], logprobs, last)]


class _StockNorm(torch.nn.Module):
    """Hugging Face's own RMSNorm: the mean in whatever order, and a reciprocal root."""

    def __init__(self, original):
        super().__init__()
        self.weight, self.epsilon = original.weight, original.epsilon

    def forward(self, x):
        wide = x.float()
        mean = wide.pow(2).mean(-1, keepdim=True)
        return self.weight * (wide * torch.rsqrt(mean + self.epsilon)).to(x.dtype)


def _planted_models(model):
    """Names of differences, each planted into the canonical model (one segment) while it is looked
    at: the split, the block and the segments of a sum, and the stock norm."""
    order = model.model.layers[0].self_attn.lockstep_order
    row_parallel = [m for name, m in model.named_modules()
                    if name.endswith(("o_proj", "down_proj"))]
    order.split_kv_size = SPLIT // 2
    yield f"splits of {SPLIT // 2}"
    order.split_kv_size = SPLIT
    kept = hugging_face.attention
    hugging_face.attention = lambda *a, **k: kept(*a, kv_block=64, **k)
    yield "blocks of 64 keys"
    hugging_face.attention = kept
    for linear in row_parallel:
        linear.segments = 2
    yield "two segments instead of one"
    for linear in row_parallel:
        linear.segments = 1
    norms = [(parent, name, norm) for parent in model.modules()
             for name, norm in parent.named_children()
             if isinstance(norm, hugging_face.CanonicalRmsNorm)]
    for parent, name, norm in norms:
        setattr(parent, name, _StockNorm(norm))
    yield "norms as they are in stock"
    for parent, name, norm in norms:
        setattr(parent, name, norm)


def _planted(name, model, answers):
    answer = answers[-1]
    found = []
    for what in _planted_models(model):
        comparison = next(_compared(answer, _in_one_pass(model, answer)))
        found.append({"model": name, **dataclasses.asdict(comparison), "what": what})
    ids = _ids(answer)
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
    stock = torch.log_softmax(logits, dim=-1).gather(1, ids[0, 1:, None])[:, 0].cpu()
    comparison = compare("raw", stock, torch.from_numpy(answer.raw.copy()))
    found.append({"model": name, **dataclasses.asdict(comparison),
                  "what": "log-softmax as it is in stock"})
    return found


def _error(name, segments, engine, stock, exact):
    """Errors of log-probabilities against fp32, over all positions of all requests."""
    engine_error = torch.cat(engine).double() - torch.cat(exact).double()
    stock_error = torch.cat(stock).double() - torch.cat(exact).double()

    def rms(error):
        return float(error.square().mean().sqrt())

    def mean(error):
        return float(error.abs().mean())

    return {"model": name, "segments": segments, "positions": engine_error.numel(),
            "engine_rms": rms(engine_error), "stock_rms": rms(stock_error),
            "ratio_rms": rms(engine_error) / rms(stock_error),
            "engine_mean": mean(engine_error), "stock_mean": mean(stock_error),
            "ratio_mean": mean(engine_error) / mean(stock_error),
            "engine_max": float(engine_error.abs().max()),
            "stock_max": float(stock_error.abs().max()),
            "stock_equal_to_engine": float((torch.cat(stock) == torch.cat(engine)).double().mean()),
            "rms_by_request": [[rms(e.double() - x.double()), rms(s.double() - x.double())]
                               for e, s, x in zip(engine, stock, exact)]}


def finish(job, timed):
    """Lists for the record, by KEYS. `timed`: nothing else runs on the GPU once the engine's
    answers are there, so that passes can be timed."""
    found = {key: [] for key in KEYS}
    answers = {}
    for segments, pending in job.answers.items():
        facts, answers[segments] = pending.result()
        found["engine"].append({"model": job.name, **facts})
        found["answers"] += _digests(job.name, segments, answers[segments])
    with torch.no_grad():
        exact_model = checkpoint.load(job.directory, torch.float32)
        exact = {s: [_stock_logprobs(exact_model, a) for a in answers[s]] for s in SEGMENTS}
        del exact_model
        model = checkpoint.load(job.directory, torch.bfloat16)
        for s in SEGMENTS:
            stock = [_stock_logprobs(model, a) for a in answers[s]]
            engine = [torch.from_numpy(a.raw.copy()) for a in answers[s]]
            found["errors"].append(_error(job.name, s, engine, stock, exact[s]))
        stock_ms = _milliseconds(model, answers[1][-1]) if timed else []
        lockstep_ops.make_canonical(model, segments=1, split_kv_size=SPLIT)
        if timed:
            canonical_ms = _milliseconds(model, answers[1][-1])
            found["passes"].append({
                "model": job.name, "tokens": len(answers[1][-1].ids),
                "ratio": statistics.median(canonical_ms) / statistics.median(stock_ms),
                "stock_ms": stock_ms, "canonical_ms": canonical_ms})
        found["bits"] += _bits(job.name, 1, model, answers[1])
        found["planted"] += _planted(job.name, model, answers[1])
        del model
        model = lockstep_ops.make_canonical(checkpoint.load(job.directory, torch.bfloat16),
                                            segments=2, split_kv_size=SPLIT)
        found["bits"] += _bits(job.name, 2, model, answers[2])
    del model
    torch.cuda.empty_cache()
    return found
