"""A commit: the state after the last token that counts goes from the buffer of steps into its slot."""


def commit(pool, slots, step_states, step_slots, accepted):
    """gdn_commit_states_k_last and its bf16_state: pool [num_slots, H, V, K] is updated in place."""
    rows = ((slots >= 0) & (accepted > 0)).nonzero()[:, 0]
    pool[slots[rows].long()] = step_states[step_slots[rows].long(), accepted[rows].long() - 1]
