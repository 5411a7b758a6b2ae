"""Output layers of next-item models in plain NumPy, one row and one step at a time."""

import numpy as np
from helpers import array

LOWEST = -1e9
IDS = np.array(
    [[3, 5, 3, 7, 5, 1], [0, 0, 4, 4, 2, 6], [1, 2, 0, 9, 0, 2], [8, 0, 0, 0, 0, 0]],
    "int32",
)
TARGETS = np.array(
    [[5, 3, 7, 9, 1, 3], [0, 0, 4, 2, 6, 2], [2, 9, 0, 2, 0, 5], [1, 0, 0, 0, 0, 0]],
    "int32",
)
NUM_IDS, STATE_DIM, DIM = 12, 5, 3


def inputs_of(rng):
    """States, ids and table, in float32."""
    states = rng.normal(size=(*IDS.shape, STATE_DIM)).astype("float32")
    return states, IDS, rng.normal(size=(NUM_IDS, DIM)).astype("float32")


def softmax(x):
    x = np.exp(x - x.max())
    return x / x.sum()


def log_softmax_of_items(logits):
    """Log-probabilities without id 0."""
    return np.concatenate([[LOWEST], np.log(softmax(logits[1:]))])


def weights_of(layer):
    """Weights by name, float64."""
    return {w.name: array(w).astype("float64") for w in layer.weights}


def every_prefix(states, ids):
    """The place, and the real states and ids up to it, of every real step."""
    for row, step in np.ndindex(ids.shape):
        real = np.flatnonzero(ids[row, : step + 1])
        if ids[row, step]:
            yield row, step, states[row, real].astype("float64"), ids[row, real]


def losses_of(logits_of, states, ids, targets):
    """Cross entropy of the target of every real step."""
    losses = np.zeros(targets.shape)
    for row, step, past, items in every_prefix(states, ids):
        if targets[row, step]:
            logits = logits_of(past, items)
            losses[row, step] = -log_softmax_of_items(logits)[targets[row, step]]
    return losses


def last_logits(logits_of, states, ids):
    """Logits after the last real step of every row."""
    last = {}
    for row, _, past, items in every_prefix(states, ids):
        last[row] = logits_of(past, items)
    return np.array([last[row] for row in range(len(ids))])


def check_candidates(layer, states, ids, table):
    """Scores of all items as candidates are the logits, each item once."""
    logits = array(layer(states, ids, table))
    candidates = np.tile(np.arange(len(table), dtype="int32")[::-1], (len(ids), 1))
    scores, items = layer.candidate_scores(states, ids, table, candidates)
    for of_row in array(items):
        assert sorted(of_row[of_row > 0]) == list(range(1, len(table)))
    want = np.take_along_axis(logits, array(items), axis=1)
    np.testing.assert_allclose(array(scores), want, rtol=1e-5, atol=1e-5)
