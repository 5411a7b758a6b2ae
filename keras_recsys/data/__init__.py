"""From raw columns to batches of ids: vocabularies, loaders, splits and `tf.data`."""

from keras_recsys.data.dataset import make_dataset
from keras_recsys.data.hashed_vocabulary import HashedVocabulary
from keras_recsys.data.movielens import load_movielens
from keras_recsys.data.raw_dataset import encode_dataset, fit_vocabularies
from keras_recsys.data.splits import split_by_user_time
from keras_recsys.data.vocabulary import Vocabulary

__all__ = [
    "HashedVocabulary",
    "Vocabulary",
    "encode_dataset",
    "fit_vocabularies",
    "load_movielens",
    "make_dataset",
    "split_by_user_time",
]
