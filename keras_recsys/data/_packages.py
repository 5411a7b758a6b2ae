"""Import of packages that only some functions need."""

import importlib


def import_package(name, needed_by):
    """Returns a package.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"`{needed_by}` needs the package {name}. "
            'Install it with: pip install "keras-recsys[data]"'
        ) from error
