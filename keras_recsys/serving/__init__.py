"""Serving: a model as a SavedModel that needs TensorFlow alone."""

from keras_recsys.serving.export import ExportReport, export
from keras_recsys.serving.export_forecaster import export_forecaster
from keras_recsys.serving.export_next_item import export_next_item

__all__ = ["ExportReport", "export", "export_forecaster", "export_next_item"]
