"""Serving: a model as a SavedModel that needs TensorFlow alone."""

from keras_recsys.serving.export import ExportReport, export

__all__ = ["ExportReport", "export"]
