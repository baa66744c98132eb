"""Model ops in the canonical orders of lockstep's CUDA backend, for trainers in PyTorch.

A forward pass through them gives the log-probabilities that a lockstep worker of the same GPU model
gives, bit for bit: the ratio of an on-policy update is then exactly 1. README.md beside this file
holds shapes, types and the order of every op; kernels/README.md is the contract.

    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).cuda()
    lockstep_ops.make_canonical(model, segments=1, split_kv_size=1024)
    with torch.no_grad():
        logits = model(input_ids=ids).logits                # fp32
    logprobs = lockstep_ops.token_logprobs(logits[0, :-1], ids[0, 1:]).raw
"""

from .attention import attention, attention_scale
from .constants import CONTRACT_VERSION, KV_BLOCK, SPLIT_KV_SIZE
from .hugging_face import make_canonical
from .linear import SCHEDULES as LINEAR_SCHEDULES
from .linear import linear
from .logprobs import TokenLogprobs, token_logprobs
from .norm import rms_norm
from .rotary import inverse_frequencies, rotary_tables
from .tree import tree_sum

__all__ = [
    "CONTRACT_VERSION", "KV_BLOCK", "LINEAR_SCHEDULES", "SPLIT_KV_SIZE", "TokenLogprobs",
    "attention", "attention_scale", "inverse_frequencies", "linear", "make_canonical", "rms_norm",
    "rotary_tables", "token_logprobs", "tree_sum",
]
