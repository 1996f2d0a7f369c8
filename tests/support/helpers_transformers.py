"""Small models of transformers with random weights and linear attention."""

from typing import Any

import torch
import transformers
from torch import Tensor

COMMON = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "max_position_embeddings": 256,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "pad_token_id": 0, "eos_token_id": None,
}  # fmt: skip
EXPERTS = {
    "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
}  # fmt: skip
# OLMo Hybrid: as many value as key heads, value heads twice as long, write strengths up to 2.
OLMO = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_value_head_dim": 16}
MODELS = {
    "qwen3_next": ("Qwen3Next", "", EXPERTS),
    "qwen3_5": ("Qwen3_5", "Text", {}),
    "qwen3_5_moe": ("Qwen3_5Moe", "Text", EXPERTS),
    "olmo_hybrid": ("OlmoHybrid", "", OLMO),
}
MODEL = "qwen3_next"
LINEAR = 2  # layers with linear attention
PROMPTS = 2


def made(family: str, **sizes: Any) -> Any:
    """Weights large enough that what a layer computes decides the next token."""
    name, part, more = MODELS[family]
    config = getattr(transformers, f"{name}{part}Config")(**COMMON | more | sizes)
    torch.manual_seed(3)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=weight[0].numel() ** -0.5)
        model.lm_head.weight.mul_(4)
    return model


def prompts(padded: bool = True) -> dict[str, Tensor]:
    """Two prompts, the first of which has padding on its left."""
    ids = torch.randint(1, 64, (PROMPTS, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :4] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def logits_of(model: Any, **inputs: Any) -> Tensor:
    with torch.no_grad():
        return model(**(inputs or prompts())).logits
