"""State of an optimizer around others.

Keras saves the inner optimizers as parts, and once more with the `variables` of the
outer one: a table of ten million rows has 1.3 GB of state that need not be there twice.
"""


def save_variables(variables, store):
    """Puts variables into a store, by number."""
    for i, variable in enumerate(variables):
        store[str(i)] = variable.numpy()


def load_variables(variables, store):
    """Assigns what `save_variables` has put into a store.

    Raises:
        ValueError: If the store is of another optimizer.
    """
    if len(store.keys()) != len(variables):
        raise ValueError(
            f"The saved state must have {len(variables)} variables. "
            f"Received: {len(store.keys())}."
        )
    for i, variable in enumerate(variables):
        variable.assign(store[str(i)])
