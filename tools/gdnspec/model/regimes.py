"""The regimes: named families of inputs. How each is drawn is in gdnspec.inputs.regimes."""

REGIMES: dict[str, str] = {
    "typical": "Mamba-style gates: A uniform in (0, 16], dt log-uniform in [1e-3, 1e-1]; beta a sigmoid of a normal",
    "long_memory": "alpha = 1: nothing is forgotten",
    "slow_decay": "alpha = 1 - 1e-3",
    "fast_decay": "alpha between e^-12 and e^-2",
    "hard_reset": "alpha exactly 0 at one token in seven and at half of the first and last tokens of chunks of 64",
    "repeated_keys": "one key repeated by all tokens of a head; alpha in [0.99, 1], beta in [0, 1.95], per token",
    "near_parallel_keys": "keys within a small angle of one direction; alpha and beta drawn per token, beta up to 1.95",
    "strict_keys": "one key repeated, beta in [1.9, 2], alpha in [0.999, 1]",
    "beta_zero": "beta = 0: nothing is written",
    "beta_one": "beta = 1: a write replaces what the key held",
    "beta_two": "beta = 2: a write reflects; alpha in [0.9, 1]",
    "large_initial_state": "initial states of magnitude 100",
    "decayed_large_state": "initial states of magnitude 3e3 that decay by e^-11 over each sequence",
    "tiny_keys": "query and key elements near 1e-4: shows where the epsilon of the L2 norm stands",
    "reset_large_state": "alpha exactly 0 at every first token, initial states of magnitude 1e9",
    "large_steps": "log alpha in [-3, -0.1] by a small A and a large step; states of magnitude 100",
    "one_large_state": "one sequence starts from a state of magnitude 1e3, all others from states of magnitude 1e-2",
    "sparse_gates": "alpha = 1 at half or three quarters of the tokens, at random; mild decay at the others",
    "interleaved_gates": "alpha = 1 at every second token, mild decay at the others",
    "padded_tails": "mild decay, and at the end of each sequence tokens as padding has them: alpha = 1, beta = 0",
    "forget_regions": "the gate that forgets, in each region of its function; states as large as it is small",
    "write_regions": "the gate that writes, in each region of its function, on states that have just been reset",
    "in_turn": "gates and states of another kind for each sequence: typical, all 1, resets, near 1, near 0",
}

# Gates so small that what they leave of a state vanishes in float32, or vanishes only when it was multiplied by a power
# of two before: the last bit of a sum may depend on that.
VANISHING = frozenset({"forget_regions"})
