"""Trains a two-layer Qwen3-Next from random weights three times: as transformers computes it, on gdnspec's operators,
and as transformers computes it from another seed.

    python examples/train_two_layers.py                    on a GPU in bfloat16 if there is one, else on a CPU
    python examples/train_two_layers.py --dtype bfloat16   on a CPU too, where gradients come from torch_backward

The text is that of the standard library's documentation strings, byte by byte. All runs see the same batches. The loss
on gdnspec must stay nearer to that of transformers than another seed's: else the exit code is 1.
"""

import argparse
import ast
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from gdnspec.integrations.transformers import use
from torch import Tensor
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

WINDOW = 20  # steps, over which a curve is averaged
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


def text(size: int) -> Tensor:
    """The first bytes of the standard library's documentation strings, file after file."""
    found = bytearray()
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, DOCUMENTED):
                found += (ast.get_docstring(node) or "").encode() + b"\n"
        if len(found) >= size:
            break
    return torch.frombuffer(found[:size], dtype=torch.uint8).long()


def batches(data: Tensor, count: int, rows: int, length: int) -> Iterator[Tensor]:
    """The same ones in every run."""
    random = torch.Generator().manual_seed(0)
    for _ in range(count):
        starts = torch.randint(0, len(data) - length, (rows, 1), generator=random)
        yield data[starts + torch.arange(length)]


def made(args: argparse.Namespace, seed: int) -> Any:
    """Two layers of linear attention without experts."""
    size, head = args.hidden, args.head_size
    config = Qwen3NextConfig(
        vocab_size=256, hidden_size=size, intermediate_size=2 * size, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=head,
        linear_value_head_dim=head, mlp_only_layers=[0, 1], layer_types=["linear_attention"] * 2,
    )  # fmt: skip
    torch.manual_seed(seed)
    return Qwen3NextForCausalLM(config).to(args.device, getattr(torch, args.dtype)).train()


def trained(args: argparse.Namespace, data: Tensor, seed: int, on_gdnspec: bool) -> tuple[list[float], float]:
    """The loss of each step, and the seconds that the first one took, in which kernels are built. The optimizer has
    weights of its own in float32, which the model gets rounded."""
    model = made(args, seed)
    weights = [w for w in model.parameters() if w.requires_grad]
    exact = [w.detach().float().clone() for w in weights]
    optimizer = torch.optim.AdamW(exact, lr=args.rate)
    losses, first, began = list[Tensor](), 0.0, time.monotonic()
    with use(model) if on_gdnspec else nullcontext():
        for tokens in batches(data, args.steps, args.rows, args.length):
            tokens = tokens.to(args.device)
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
            loss.backward()
            losses.append(loss.detach())
            for mine, weight in zip(exact, weights, strict=True):
                mine.grad = None if weight.grad is None else weight.grad.float()
                weight.grad = None
            optimizer.step()
            for mine, weight in zip(exact, weights, strict=True):
                weight.data.copy_(mine)
            if len(losses) == 1:
                loss.item()  # which waits for the device
                first = time.monotonic() - began
    return torch.stack(losses).tolist(), first


def smooth(losses: list[float]) -> list[float]:
    """The mean of each window."""
    parts = [losses[i : i + WINDOW] for i in range(0, len(losses), WINDOW)]
    return [sum(part) / len(part) for part in parts]


def distance(one: list[float], other: list[float]) -> float:
    """The largest difference of two curves, averaged over windows."""
    return max(abs(x - y) for x, y in zip(smooth(one), smooth(other), strict=True))


def arguments(words: list[str] | None) -> argparse.Namespace:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description="Trains a two-layer Qwen3-Next with and without gdnspec.")
    parser.add_argument("--device", default="cuda" if gpu else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="by default float32 on a CPU, else bfloat16")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rows", type=int, default=4, help="sequences of a batch")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--hidden", type=int, default=64, help="elements of a hidden state")
    parser.add_argument("--head-size", type=int, help="by default 16 on a CPU, else 128")
    parser.add_argument("--rate", type=float, default=3e-3, help="of learning")
    parser.add_argument("--text", type=int, default=300_000, help="bytes of text")
    args = parser.parse_args(words)
    for name in ("steps", "rows", "length", "hidden", "head_size"):
        given = getattr(args, name)
        if given is not None and given < 1:
            parser.error(f"--{name.replace('_', '-')}: {given} is less than 1")
    if args.length < 2:
        parser.error("--length: a sequence of one token has none to predict; give 2 or more")
    if not 0 < args.rate <= 1:
        parser.error(f"--rate: {args.rate:g} is no rate of learning; give one above 0 and at most 1")
    if args.length >= args.text:
        parser.error(f"--length: a sequence of {args.length} tokens does not fit into --text {args.text} bytes")
    if args.device == "cuda" and not gpu:
        parser.error("--device cuda: PyTorch finds no CUDA GPU here; leave it out to run on the CPU")
    on_cpu = args.device == "cpu"
    args.dtype = args.dtype or ("float32" if on_cpu else "bfloat16")
    args.head_size = args.head_size or (16 if on_cpu else 128)
    return args


def main(words: list[str] | None = None) -> int:
    args = arguments(words)
    data, curves = text(args.text), {}
    for name, seed, on_gdnspec in (("transformers", 0, False), ("gdnspec", 0, True), ("another seed", 1, False)):
        began = time.monotonic()
        curves[name], first = trained(args, data, seed, on_gdnspec)
        seconds = time.monotonic() - began
        print(
            f"{name}: {args.steps} steps in {seconds:.0f} s, {first:.0f} s of it for the first",
            file=sys.stderr,
            flush=True,
        )
    print(f"loss on {args.device} in {args.dtype}, the mean of each {WINDOW} steps")
    print(f"{'from step':>10}" + "".join(f"{name:>15}" for name in curves))
    for i, row in enumerate(zip(*map(smooth, curves.values()), strict=True)):
        print(f"{i * WINDOW:>10}" + "".join(f"{x:>15.4f}" for x in row))
    own = curves["transformers"]
    ours, seeds = distance(curves["gdnspec"], own), distance(curves["another seed"], own)
    print(f"largest difference to transformers: gdnspec {ours:.4f}, another seed {seeds:.4f}")
    return 0 if ours < seeds else 1


if __name__ == "__main__":
    sys.exit(main())
