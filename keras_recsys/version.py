"""The version of keras_recsys, written nowhere else."""

__version__ = "0.1.0"
