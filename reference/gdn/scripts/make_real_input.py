"""Record what a Qwen3-Next model feeds to its gated delta rule, and what that rule answers: definitions/gdn/*/tensors/.

The model is the `transformers` package's own, built from its configuration class at small sizes, with its own
initialisation, and run on a CPU. The expected values are returned by the package's functions, so they are an oracle
that shares no code with this repository:

    python reference/gdn/scripts/make_real_input.py [--out definitions/gdn]

Each file holds a definition's inputs by name, and `expected.<output>` for each output, in float32. The one metadata
string, `provenance`, is a JSON object (a single string, because safetensors writes several in random order). On one
machine two runs write the same bytes; another CPU may round differently.
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
from torch import Tensor
from transformers import Qwen3NextConfig, Qwen3NextModel
from transformers.models.qwen3_next import modeling_qwen3_next as package

FILE_NAME = "qwen3_next.safetensors"
MODEL_SEED = 729  # of the first 1000, the one whose four A = exp(A_log) are spread best: 0.09, 0.5, 3.8, 9.2
TOKEN_SEED = 1
LAYER = 1  # the one with a gated delta rule; its input has been through attention and experts
PREFILL_SEQUENCES = ((0, 66), (40, 64), (21, 13))  # (tokens already in the cache, tokens recorded)
DECODE_PROMPTS = (5, 40, 64, 90)  # tokens before the one that is decoded

CONFIG: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "layer_types": ["full_attention", "linear_attention"],  # the package's cache needs one with attention
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    # Every expert is chosen for every token: a near tie in the router cannot make two machines disagree.
    "num_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    # 0.02 at width 2048 as shipped; times sqrt(2048 / 128), so that projections, hence gates, spread as they do there.
    "initializer_range": 0.08,
}

Tensors = dict[str, Tensor]
Rule = Callable[..., tuple[Tensor, Tensor | None]]

# The package takes fla and causal-conv1d in place of these where they are installed. They need a GPU, and the oracle
# is to be the package's own arithmetic, so its plain PyTorch versions are taken from under the wrappers.
CHUNK_RULE: Rule = inspect.unwrap(package.torch_chunk_gated_delta_rule)
RECURRENT_RULE: Rule = inspect.unwrap(package.torch_recurrent_gated_delta_rule)
CONVOLUTIONS = ("causal_conv1d_fn", "causal_conv1d_update")


# --- the model, and what is seen inside it ----------------------------------------------------------------------


def build_model(dtype: torch.dtype) -> Qwen3NextModel:
    """The package's model with its own initialisation. A_log stays float32, as the definition has it."""
    torch.manual_seed(MODEL_SEED)
    model = Qwen3NextModel(Qwen3NextConfig(**CONFIG)).eval()
    layer = model.layers[LAYER].linear_attn
    A_log = layer.A_log.detach().clone()
    model.to(dtype)
    layer.A_log.data = A_log
    return model


class Recorder:
    """Stands in for the package's two rules and keeps the arguments and results of every call.

    The rules return the output in the type of the query: they are given a float32 query so that it comes back
    unrounded, and the model gets it in the type that it expects.
    """

    def __init__(self) -> None:
        self.latest: Tensors = {}  # q, k, v, g, beta, state (absent in a first call), output, new_state

    def wrap(self, rule: Rule) -> Rule:
        def recorded(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
            record = {"q": query, "k": key, "v": value, "g": options["g"], "beta": options["beta"]}
            if options["initial_state"] is not None:
                record["state"] = options["initial_state"].clone()  # the cache is overwritten in place after the call
            output, state = rule(query.float(), key, value, **options)
            assert state is not None, "the model must run with a cache"
            self.latest = record | {"output": output, "new_state": state.clone()}
            return output.to(query.dtype), state

        return recorded

    def run(self, model: Qwen3NextModel, tokens: Tensor, context: int) -> Tensors:
        """Run tokens [T] with the first `context` of them in the cache already; what layer LAYER did in the rest."""
        cache = None
        if context:
            cache = model(input_ids=tokens[None, :context], use_cache=True).past_key_values
        model(input_ids=tokens[None, context:], past_key_values=cache, use_cache=True)
        return self.latest


def install(recorder: Recorder) -> None:
    """Route the package's calls of its rules through the recorder. For the life of this process."""
    for name in CONVOLUTIONS:
        setattr(package, name, inspect.unwrap(getattr(package, name)))
    package.torch_chunk_gated_delta_rule = recorder.wrap(CHUNK_RULE)
    package.torch_recurrent_gated_delta_rule = recorder.wrap(RECURRENT_RULE)


def widen_gates(layer: Any) -> Tensors:
    """Make a layer compute its gates in float32 from its bfloat16 a and b; returns where the latest a and b lie.

    In a bfloat16 model the package rounds beta = sigmoid(b) to bfloat16, which this specification does not. Upcast
    between projection and gates, b goes through the package's own expression with no such rounding.
    """
    split = layer.fix_query_key_value_ordering
    seen: Tensors = {}

    def widened(mixed_qkvz: Tensor, mixed_ba: Tensor) -> tuple[Tensor, ...]:
        q, k, v, z, b, a = split(mixed_qkvz, mixed_ba)
        seen.update(a=a, b=b)
        return q, k, v, z, b.float(), a.float()

    layer.fix_query_key_value_ordering = widened
    return seen


# --- tensors ----------------------------------------------------------------------------------------------------


def distinct_heads(x: Tensor) -> Tensor:
    """[..., num_v_heads, d] -> [..., num_k_heads, d]: undo the repetition of key heads, having seen that it is one."""
    ratio = CONFIG["linear_num_value_heads"] // CONFIG["linear_num_key_heads"]
    heads = x[..., ::ratio, :]
    assert torch.equal(repeated_heads(heads), x), "the package no longer repeats each key head in place"
    return heads


def repeated_heads(x: Tensor) -> Tensor:
    """[..., num_k_heads, d] -> [..., num_v_heads, d], as the package does before its rules."""
    return x.repeat_interleave(CONFIG["linear_num_value_heads"] // CONFIG["linear_num_key_heads"], dim=-2)


def l2_normalised(x: Tensor) -> Tensor:
    """x * rsqrt(sum(x^2) + 1e-6) over the last dimension, in float32."""
    x = x.float()
    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + 1e-6)


def k_last(tensors: Tensors) -> Tensors:
    """States [.., K, V], as the package has them, to [.., V, K]."""
    return {name: x.transpose(-1, -2) if name.endswith("state") else x for name, x in tensors.items()}


# --- prefill ----------------------------------------------------------------------------------------------------


def prefill(recorder: Recorder) -> Tensors:
    """Sequences run one by one through a float32 model, packed: the inputs and results of gdn_prefill_k_first."""
    model = build_model(torch.float32)
    generator = torch.Generator().manual_seed(TOKEN_SEED)
    parts: list[Tensors] = []
    for context, length in PREFILL_SEQUENCES:
        tokens = torch.randint(CONFIG["vocab_size"], (context + length,), generator=generator)
        parts.append(prefill_sequence(recorder.run(model, tokens, context)))
    lengths = torch.tensor([length for _, length in PREFILL_SEQUENCES])
    packed = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return packed | {"cu_seqlens": torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])}


def prefill_sequence(seen: Tensors) -> Tensors:
    """One sequence: q, k normalised, q, k, v rounded to bfloat16, and what the package's rule returns on those."""
    q = l2_normalised(distinct_heads(seen["q"])).bfloat16()  # [1, T, num_k_heads, K]
    k = l2_normalised(distinct_heads(seen["k"])).bfloat16()
    v = seen["v"].bfloat16()  # [1, T, num_v_heads, V]
    g, beta = seen["g"], seen["beta"]  # [1, T, num_v_heads] float32, g in log space
    state = seen.get("state", torch.zeros_like(seen["new_state"]))  # [1, num_v_heads, K, V]
    output, final_state = CHUNK_RULE(
        repeated_heads(q).float(),
        repeated_heads(k).float(),
        v.float(),
        g=g,
        beta=beta,
        initial_state=state,
        output_final_state=True,
        use_qk_l2norm_in_kernel=False,
    )
    assert final_state is not None
    results = {"expected.output": output[0], "expected.final_state": final_state}
    return {"q": q[0], "k": k[0], "v": v[0], "g": g[0], "beta": beta[0], "initial_state": state} | results


def linear_gate(tensors: Tensors) -> Tensors:
    """The log gate g to alpha = exp(g). The results stay: rounding alpha moves them by about 1e-7."""
    return tensors | {"g": torch.exp(tensors["g"])}


# --- decode -----------------------------------------------------------------------------------------------------


def decode(recorder: Recorder) -> Tensors:
    """One token of several requests in a bfloat16 model: the inputs and results of gdn_decode_k_first."""
    model = build_model(torch.bfloat16)
    layer = model.layers[LAYER].linear_attn
    projections = widen_gates(layer)
    generator = torch.Generator().manual_seed(TOKEN_SEED)
    requests: list[Tensors] = []
    for context in DECODE_PROMPTS:
        tokens = torch.randint(CONFIG["vocab_size"], (context + 1,), generator=generator)
        seen = recorder.run(model, tokens, context)
        request = {name: seen[name] for name in ("v", "state")} | projections
        request |= {name: distinct_heads(seen[name]) for name in ("q", "k")}  # neither normalised nor repeated
        requests.append(request | {f"expected.{name}": seen[name] for name in ("output", "new_state")})
    batch = {name: torch.cat([request[name] for request in requests]) for name in requests[0]}
    return batch | {"A_log": layer.A_log.detach(), "dt_bias": layer.dt_bias.detach()}


# --- files ------------------------------------------------------------------------------------------------------


def provenance(rule: Rule, how: str) -> str:
    """A JSON object that says where a file's tensors come from."""
    source = {
        "package": "transformers",
        "version": transformers.__version__,
        "torch": torch.__version__,
        "model": Qwen3NextModel.__name__,
        "rule": rule.__name__,
        "config": CONFIG,
        "layer": LAYER,
        "model_seed": MODEL_SEED,
        "token_seed": TOKEN_SEED,
        "how": how,
        "script": "reference/gdn/scripts/make_real_input.py",
    }
    return json.dumps(source, sort_keys=True)


def save(path: Path, tensors: Tensors, source: str) -> None:
    """Write one file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file({name: x.contiguous() for name, x in tensors.items()}, partial, metadata={"provenance": source})
    partial.replace(path)
    print(f"{path}  {path.stat().st_size / 1e3:.0f} kB")


def main() -> None:
    """Write the four files below --out."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[3] / "definitions" / "gdn")
    out = parser.parse_args().out
    torch.set_num_threads(1)  # the order of a sum must not depend on how many cores there are
    recorder = Recorder()
    install(recorder)

    with torch.no_grad():
        prompts, tokens = prefill(recorder), decode(recorder)

    how = (
        f"float32 model; sequences of (cached, recorded) tokens {PREFILL_SEQUENCES}, each run alone, packed; q, k "
        "without repeated heads, normalised in float32, rounded to bfloat16 as v is; expected: the rule on these in "
        "float32, use_qk_l2norm_in_kernel=False"
    )
    source = provenance(CHUNK_RULE, how + "; g in log space, as the model has it")
    save(out / "gdn_prefill_k_first" / "tensors" / FILE_NAME, prompts, source)
    source = provenance(CHUNK_RULE, how + " and g in log space; g here is its float32 exp; states transposed")
    save(out / "gdn_prefill_k_last" / "tensors" / FILE_NAME, k_last(linear_gate(prompts)), source)

    how = (
        f"bfloat16 model, A_log float32; one token after prompts of {DECODE_PROMPTS} tokens, each with its own cache; "
        "q, k after the convolution, without repeated heads; a, b after their projection, upcast to float32 before the "
        "model's gates; expected: the rule in the model, output in float32, use_qk_l2norm_in_kernel=True"
    )
    save(out / "gdn_decode_k_first" / "tensors" / FILE_NAME, tokens, provenance(RECURRENT_RULE, how))
    source = provenance(RECURRENT_RULE, how + "; states transposed")
    save(out / "gdn_decode_k_last" / "tensors" / FILE_NAME, k_last(tokens), source)


if __name__ == "__main__":
    main()
