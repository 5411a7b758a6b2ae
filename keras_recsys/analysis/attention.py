"""What attention weights say about a model."""

import numpy as np


def attention_entropy(weights):
    """Entropy of attention over a history, in bits: over how much of it is spread.

    With `p = a / sum(a)`,

        H = -sum over j of p_j log2(p_j)

    which is 0 where one item has all the weight, and `log2(n)` where `n` items have
    the same. `2**H` can be read as a number of items.

    Args:
        weights: Array or tensor of numbers of at least 0, `(..., seq_len)`, 0 at
            padding: what a layer returns with `return_attention_scores=True`.

    Returns:
        Float64 array, `(...)`; its mean over the samples is the figure of the paper. A
        history without weight has entropy 0.

    Raises:
        ValueError: If a weight is negative or not finite.

    Example:
    >>> attention_entropy([[0.25, 0.25, 0.25, 0.25], [0.0, 0.9, 0.0, 0.0]]).tolist()
    [2.0, 0.0]

    Reference:
        Lin et al., "Sparse Attentive Memory Network for Click-through Rate Prediction
        with Long Sequences", CIKM 2022, section on attention entropy. The authors' code
        adds 1e-12 to the sum and in the logarithm.
    """
    if hasattr(weights, "detach"):
        weights = weights.detach().cpu()
    weights = np.asarray(weights, "float64")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(
            "`weights` must be finite numbers of at least 0; linear attention has none "
            f"such. Received: least {weights.min()}, largest {weights.max()}."
        )
    total = weights.sum(axis=-1, keepdims=True)
    shares = weights / np.where(total > 0, total, 1.0)
    # Where a share is 0 the logarithm is that of 1.
    bits = np.log2(np.where(shares > 0, shares, 1.0))
    return 0.0 - (shares * bits).sum(axis=-1)
