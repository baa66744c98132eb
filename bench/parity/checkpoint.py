"""Random checkpoints in the shapes of Qwen3, as Hugging Face directories."""

import math

import torch
import transformers

transformers.utils.logging.disable_progress_bar()

POSITIONS = 4096
_SMALL = {"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16,
          "intermediate_size": 3072, "tie_word_embeddings": True}
_8B = {"hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
       "intermediate_size": 12288, "tie_word_embeddings": False}
SHAPES = {"qwen3-small": _SMALL, "qwen3-8b": _8B,
          "qwen3-8b-6-layers": {**_8B, "num_hidden_layers": 6}}
# Mean of q_norm and k_norm, and a factor of every 256th channel of the other norms. Peaked weights
# exercise what default initialisation leaves idle, maxima that move and channels that stand out,
# but make so chaotic a model that bf16 says little of fp32; even ones do not.
WEIGHTS = {"peaked": (4.0, 20.0), "even": (1.0, 1.0)}
# A shape of SHAPES and a kind of WEIGHTS.
MODELS = ("qwen3-small-peaked", "qwen3-small-even", "qwen3-8b-6-layers-peaked", "qwen3-8b-even")

_LOGIT_DEVIATION = 3.0
_OUTLIER_PERIOD, _OUTLIER_OFFSET = 256, 37


def _draw(name, parameter, config, weights, generator):
    """Values of a parameter; the scales keep activations of order one."""
    qk_mean, outlier_factor = WEIGHTS[weights]
    values = torch.randn(parameter.shape, generator=generator, device="cuda")
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return values * (qk_mean / 8) + qk_mean
    if name.endswith("norm.weight"):
        values = values / 8 + 1
        values[_OUTLIER_OFFSET::_OUTLIER_PERIOD] *= outlier_factor
        return values
    if name.endswith("embed_tokens.weight") and not config.tie_word_embeddings:
        return values
    inputs = parameter.shape[1]
    if name.endswith(("embed_tokens.weight", "lm_head.weight")):
        return values * (_LOGIT_DEVIATION / math.sqrt(inputs))
    # What is added to the residual stream shrinks with the number of additions.
    added = name.endswith(("o_proj.weight", "down_proj.weight"))
    return values / math.sqrt(inputs * (2 * config.num_hidden_layers if added else 1))


def make(name, directory, seed):
    """Writes a checkpoint, by a name like those in MODELS, and returns its configuration."""
    shape, _, weights = name.rpartition("-")
    config = transformers.Qwen3Config(
        vocab_size=151936, num_key_value_heads=8, head_dim=128, rms_norm_eps=1e-6,
        max_position_embeddings=POSITIONS, attention_bias=False, use_sliding_window=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **SHAPES[shape])
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    generator = torch.Generator("cuda").manual_seed(seed)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            parameter.copy_(_draw(parameter_name, parameter, config, weights, generator))
    model.save_pretrained(directory)
    return config


def load(directory, dtype):
    """The stock model, on the GPU."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, device_map="cuda", attn_implementation="sdpa").eval()
