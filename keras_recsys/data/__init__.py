"""From raw columns to batches of ids: vocabularies, loaders, splits and `tf.data`."""

from keras_recsys.data.dataset import make_dataset
from keras_recsys.data.movielens import load_movielens
from keras_recsys.data.splits import split_by_user_time
from keras_recsys.data.vocabulary import Vocabulary

__all__ = [
    "Vocabulary",
    "load_movielens",
    "make_dataset",
    "split_by_user_time",
]
