"""State of an optimizer around others."""


class OwnVariables:
    """Saves the state of an optimizer without that of the optimizers inside it.

    Keras saves those as parts, and once more with the `variables` of the outer one: a
    table of ten million rows has 1.3 GB of state that need not be there twice.
    """

    def save_own_variables(self, store):
        """Puts the own variables into a store, by number."""
        for i, variable in enumerate(self._variables):
            store[str(i)] = variable.numpy()

    def load_own_variables(self, store):
        """Assigns what `save_own_variables` has put into a store.

        Raises:
            ValueError: If the store is of another optimizer.
        """
        if len(store.keys()) != len(self._variables):
            raise ValueError(
                f"The saved state must have {len(self._variables)} variables. "
                f"Received: {len(store.keys())}."
            )
        for i, variable in enumerate(self._variables):
            variable.assign(store[str(i)])
