"""From raw columns to batches of ids: readers, vocabularies, splits and `tf.data`."""

from keras_recsys.data.click_logs import read_avazu, read_criteo
from keras_recsys.data.csv_files import read_csv
from keras_recsys.data.dataset import make_dataset
from keras_recsys.data.fit_numbers import fit_numbers
from keras_recsys.data.hashed_vocabulary import HashedVocabulary
from keras_recsys.data.movielens import load_movielens
from keras_recsys.data.parquet_files import read_arrays, read_parquet, write_parquet
from keras_recsys.data.ranking_dataset import make_ranking_dataset
from keras_recsys.data.raw_dataset import encode_dataset, fit_vocabularies
from keras_recsys.data.read_report import ReadReport
from keras_recsys.data.sampling import downsample_negatives
from keras_recsys.data.schema import schema_of
from keras_recsys.data.sequence_dataset import make_sequence_dataset
from keras_recsys.data.sequences import (
    Sequences,
    k_core,
    read_sequence_baskets,
    read_sequence_lines,
    read_sequence_pairs,
    read_sequence_sessions,
)
from keras_recsys.data.splits import split_by_user_time
from keras_recsys.data.tfrecord_files import read_tfrecord, write_tfrecord
from keras_recsys.data.vocabulary import Vocabulary

__all__ = [
    "HashedVocabulary",
    "ReadReport",
    "Sequences",
    "Vocabulary",
    "downsample_negatives",
    "encode_dataset",
    "fit_numbers",
    "fit_vocabularies",
    "k_core",
    "load_movielens",
    "make_dataset",
    "make_ranking_dataset",
    "make_sequence_dataset",
    "read_arrays",
    "read_avazu",
    "read_criteo",
    "read_csv",
    "read_parquet",
    "read_sequence_baskets",
    "read_sequence_lines",
    "read_sequence_pairs",
    "read_sequence_sessions",
    "read_tfrecord",
    "schema_of",
    "split_by_user_time",
    "write_parquet",
    "write_tfrecord",
]
