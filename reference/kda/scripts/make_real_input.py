"""Record what a Kimi Linear model feeds to its Kimi Delta Attention: definitions/kda/*/tensors/.

The model is the `transformers` package's own, built from its configuration class at small sizes, with its own
initialisation, and run on a CPU in float32. Tokens are rounded to the types of the definitions. The expected values are
what the package's functions return on these, so they are an oracle that shares no code with this repository:

    python reference/kda/scripts/make_real_input.py [--out definitions/kda]

Each file holds a definition's inputs by name, and `expected.<output>` for each output, in float32. The one metadata
string, `provenance`, is a JSON object. On one machine two runs write the same bytes; another CPU may round differently.
"""

import argparse
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import KimiLinearConfig, KimiLinearModel
from transformers.models.kimi_linear import modeling_kimi_linear as package

FILE_NAME = "kimi_linear.safetensors"
MODEL_SEED, TOKEN_SEED = 7, 1
LAYER = 1  # the one with Kimi Delta Attention; its input has been through attention
PREFILL_SEQUENCES = ((0, 37), (30, 33), (11, 5))  # (tokens already in the cache, tokens recorded)
DECODE_PROMPTS = (5, 40, 64)  # tokens before the one that is decoded
HEADS, SIZE = 2, 64

CONFIG: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 32,
    "layer_types": ["full_attention", "linear_attention"],  # the package's cache needs one with attention
    "mlp_layer_types": ["dense", "dense"], "linear_head_dim": SIZE, "linear_num_heads": HEADS,
    "linear_conv_kernel_dim": 4, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
    # 0.02 at width 2304 as shipped; times sqrt(2304 / 128), so that projections, hence gates, spread as they do there.
    "initializer_range": 0.085,
}  # fmt: skip

Tensors = dict[str, Tensor]
Rule = Callable[..., tuple[Tensor, Tensor]]

# From under the wrappers that would take another package's kernels where there are any.
CHUNK_RULE: Rule = inspect.unwrap(package.chunk_kimi_delta_attention)
RECURRENT_RULE: Rule = inspect.unwrap(package.recurrent_kimi_delta_attention)
CONVOLUTIONS = ("causal_conv1d_fn", "causal_conv1d_update")


# --- the model, and what is seen inside it ----------------------------------------------------------------------


class Recorder:
    """Stands in for the package's two rules, and keeps the tensors of every call. It also keeps the latest raw gates,
    which are what two projections return."""

    def __init__(self) -> None:
        self.latest: Tensors = {}  # q, k, v, a, b, state (absent in a first call)
        torch.manual_seed(MODEL_SEED)
        self.model = KimiLinearModel(KimiLinearConfig(**CONFIG)).eval()
        self.layer = self.model.layers[LAYER].self_attn
        for name, projection in (("a", self.layer.forget_gate.f_b_proj), ("b", self.layer.b_proj)):
            projection.register_forward_hook(lambda _, given, found, name=name: self.latest.update({name: found}))
        for name in CONVOLUTIONS:
            setattr(package, name, inspect.unwrap(getattr(package, name)))
        package.chunk_kimi_delta_attention = self.wrap(CHUNK_RULE)
        package.recurrent_kimi_delta_attention = self.wrap(RECURRENT_RULE)

    def wrap(self, rule: Rule) -> Rule:
        def recorded(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
            self.latest |= {"q": query, "k": key, "v": value}
            state = options["initial_state"]
            self.latest["state"] = torch.zeros(1, HEADS, SIZE, SIZE) if state is None else state.clone()
            return rule(query, key, value, **options)

        return recorded

    def run(self, tokens: Tensor, context: int) -> Tensors:
        """Run tokens [T] with the first `context` of them in the cache already; what layer LAYER read in the rest, in
        the types of the definitions."""
        cache = None
        if context:
            cache = self.model(input_ids=tokens[None, :context], use_cache=True).past_key_values
        self.model(input_ids=tokens[None, context:], past_key_values=cache, use_cache=True)
        seen = {name: x if name == "state" else x.bfloat16() for name, x in self.latest.items()}
        return seen | {"a": seen["a"].view(1, -1, HEADS, SIZE)}

    def log_gate(self, a: Tensor) -> Tensor:
        """g [1, T, H, K], as the package's forget gate makes it of these raw gates."""
        gate = self.layer.forget_gate
        projections = gate.f_a_proj, gate.f_b_proj
        gate.f_a_proj, gate.f_b_proj = nn.Identity(), nn.Identity()
        g: Tensor = gate(a.flatten(-2).float())
        gate.f_a_proj, gate.f_b_proj = projections
        return g

    def parameters(self) -> Tensors:
        """A_log [H] and dt_bias [H, K]."""
        gate = self.layer.forget_gate
        return {"A_log": gate.A_log.detach().flatten(), "dt_bias": gate.dt_bias.detach().view(HEADS, SIZE)}


def l2_normalised(x: Tensor) -> Tensor:
    """x * rsqrt(sum(x^2) + 1e-6) over the last dimension, in float32, rounded to bfloat16."""
    x = x.float()
    return (x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + 1e-6)).bfloat16()


# --- the definitions --------------------------------------------------------------------------------------------


def calls(recorder: Recorder, sizes: tuple[tuple[int, int], ...]) -> list[Tensors]:
    """(tokens in the cache, tokens recorded) of each sequence, run one by one."""
    generator = torch.Generator().manual_seed(TOKEN_SEED)
    vocabulary = CONFIG["vocab_size"]
    drawn = [(context, torch.randint(vocabulary, (context + count,), generator=generator)) for context, count in sizes]
    return [recorder.run(tokens, context) for context, tokens in drawn]


def expected(rule: Rule, seen: Tensors, g: Tensor, beta: Tensor, normalised: bool) -> tuple[Tensor, Tensor]:
    """What the package's rule returns on these tokens; the state [1, H, V, K]."""
    q, k, v = (seen[name].float() for name in ("q", "k", "v"))
    output, state = rule(
        q, k, v, g=g, beta=beta, initial_state=seen["state"], output_final_state=True,
        use_qk_l2norm_in_kernel=normalised,
    )  # fmt: skip
    return output, state.mT


def prefill(recorder: Recorder, sequences: list[Tensors], raw: bool) -> Tensors:
    """The inputs and results of kda_prefill_raw_gates, or else of kda_prefill_k_last."""
    parts: list[Tensors] = []
    for seen in sequences:
        g, beta = recorder.log_gate(seen["a"]), seen["b"].float().sigmoid()
        given = seen if raw else seen | {name: l2_normalised(seen[name]) for name in ("q", "k")}
        output, final_state = expected(CHUNK_RULE, given, g, beta, raw)
        part = {name: given[name][0] for name in ("q", "k", "v")}
        part |= {"a": seen["a"][0], "b": seen["b"][0]} if raw else {"g": g[0], "beta": beta[0]}
        part["initial_state"] = seen["state"].mT
        parts.append(part | {"expected.output": output[0], "expected.final_state": final_state})
    packed = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    packed["cu_seqlens"] = torch.tensor([0, *(len(part["q"]) for part in parts)]).cumsum(0)
    return packed | (recorder.parameters() if raw else {})


def decode(recorder: Recorder, requests: list[Tensors]) -> Tensors:
    """The inputs and results of kda_decode_k_last."""
    parts: list[Tensors] = []
    for seen in requests:
        g, beta = recorder.log_gate(seen["a"]), seen["b"].float().sigmoid()
        output, new_state = expected(RECURRENT_RULE, seen, g, beta, True)
        part = {name: seen[name] for name in ("q", "k", "v", "a", "b")} | {"state": seen["state"].mT}
        parts.append(part | {"expected.output": output, "expected.new_state": new_state})
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]} | recorder.parameters()


# --- files ------------------------------------------------------------------------------------------------------


def provenance(rule: Rule, how: str) -> str:
    """A JSON object that says where a file's tensors come from."""
    source = {
        "package": "transformers", "version": transformers.__version__, "torch": torch.__version__,
        "model": KimiLinearModel.__name__, "rule": rule.__name__, "config": CONFIG, "layer": LAYER,
        "model_seed": MODEL_SEED, "token_seed": TOKEN_SEED, "how": how,
        "script": "reference/kda/scripts/make_real_input.py",
    }  # fmt: skip
    return json.dumps(source, sort_keys=True)


def save(path: Path, tensors: Tensors, source: str) -> None:
    """Write one file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file({name: x.contiguous() for name, x in tensors.items()}, partial, metadata={"provenance": source})
    partial.replace(path)
    print(f"{path}  {path.stat().st_size / 1e3:.0f} kB")


def main() -> None:
    """Write the three files below --out."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[3] / "definitions" / "kda")
    out = parser.parse_args().out
    torch.set_num_threads(1)  # the order of a sum must not depend on how many cores there are
    recorder = Recorder()
    with torch.no_grad():
        sequences = calls(recorder, PREFILL_SEQUENCES)
        requests = calls(recorder, tuple((context, 1) for context in DECODE_PROMPTS))
        raw, log, tokens = (
            prefill(recorder, sequences, raw=True),
            prefill(recorder, sequences, raw=False),
            decode(recorder, requests),
        )
    rounded = "q, k, v after the convolution, a and b after their projections, all rounded to bfloat16; states turned"
    how = (
        f"float32 model; sequences of (cached, recorded) tokens {PREFILL_SEQUENCES}, each run alone, packed; {rounded}"
    )
    save(out / "kda_prefill_raw_gates" / "tensors" / FILE_NAME, raw, provenance(CHUNK_RULE, how))
    how += "; q, k normalised in float32 and rounded; g and beta made of the rounded a and b by the package in float32"
    save(out / "kda_prefill_k_last" / "tensors" / FILE_NAME, log, provenance(CHUNK_RULE, how))
    how = f"float32 model; one token after prompts of {DECODE_PROMPTS} tokens, each with its own cache; {rounded}"
    save(out / "kda_decode_k_last" / "tensors" / FILE_NAME, tokens, provenance(RECURRENT_RULE, how))


if __name__ == "__main__":
    main()
