"""A small Kimi Linear of transformers with random weights."""

from typing import Any

import torch
import transformers

CONFIG = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 2, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "qk_nope_head_dim": 8, "num_experts_per_token": 1, "num_experts": 2, "linear_head_dim": 32, "linear_num_heads": 2,
    "linear_conv_kernel_dim": 4, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mlp_layer_types": ["dense"] * 3, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
LINEAR = 2  # layers with linear attention


def model() -> Any:
    """Weights large enough that what a layer computes decides the next token."""
    torch.manual_seed(3)
    found = transformers.KimiLinearForCausalLM(transformers.KimiLinearConfig(**CONFIG)).eval()
    with torch.no_grad():
        for name, weight in found.named_parameters():
            if weight.dim() > 1 and not name.endswith("A_log"):
                weight.normal_(std=weight[0].numel() ** -0.5)
        found.lm_head.weight.mul_(4)
    return found
