"""What lockstep_ops has to refuse, since the engine computes nothing equal to it."""

import torch
import transformers

import lockstep_ops

TOKENS = 16


def _model():
    config = transformers.Qwen3Config(
        vocab_size=512, hidden_size=256, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, intermediate_size=512, max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    with torch.device("cuda"):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def _run(**arguments):
    model = lockstep_ops.make_canonical(_model())
    ids = torch.arange(TOKENS, device="cuda")[None]
    return model(input_ids=ids, use_cache=False, **arguments)


def _canonical_with(**fields):
    model = _model()
    for name, value in fields.items():
        setattr(model.config, name, value)
    return lockstep_ops.make_canonical(model)


class _Adapter(torch.nn.Module):
    """As libraries of adapters wrap a layer."""

    def __init__(self, layer):
        super().__init__()
        self.base_layer = layer

    def forward(self, x):
        return self.base_layer(x)


def _adapted():
    model = _model()
    mlp = model.model.layers[0].mlp
    mlp.down_proj = _Adapter(mlp.down_proj)
    return lockstep_ops.make_canonical(model, segments=2)


def _on_gpu(values):
    return torch.tensor(values, device="cuda")


CASES = {
    "padding on the left": lambda: _run(
        attention_mask=_on_gpu([[0] * 3 + [1] * (TOKENS - 3)])),
    "a mask of four dimensions": lambda: _run(
        attention_mask=torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool, device="cuda").tril()),
    "positions with a gap": lambda: _run(
        position_ids=_on_gpu([[*range(8), *range(9, TOKENS + 1)]])),
    "scaled rotary embeddings": lambda: _canonical_with(
        rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, "factor": 2.0}),
    "another activation": lambda: _canonical_with(hidden_act="gelu"),
    "sliding windows": lambda: _canonical_with(layer_types=["sliding_attention"]),
    "an adapter around a layer": _adapted,
}


def refusals():
    """For each case what it was refused with; None for one that was taken."""
    found = []
    with torch.no_grad():
        lockstep_ops.make_canonical(_model())  # What is right is taken.
        _run()
        for what, case in CASES.items():
            try:
                case()
                found.append({"what": what, "refused": None})
            except ValueError as error:
                found.append({"what": what, "refused": str(error)})
    return found
