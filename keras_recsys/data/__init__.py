"""From raw columns to batches of ids: readers, vocabularies, splits and `tf.data`."""

from keras_recsys.data.calendar_features import calendar_features
from keras_recsys.data.click_logs import read_avazu, read_criteo
from keras_recsys.data.csv_files import read_csv
from keras_recsys.data.dataset import make_dataset
from keras_recsys.data.ett import ett_borders, load_ett
from keras_recsys.data.fit_numbers import fit_numbers
from keras_recsys.data.hashed_vocabulary import HashedVocabulary
from keras_recsys.data.movielens import load_movielens
from keras_recsys.data.movielens_lists import make_movielens_lists
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
from keras_recsys.data.series_scaler import SeriesScaler
from keras_recsys.data.splits import split_by_user_time
from keras_recsys.data.tfrecord_files import read_tfrecord, write_tfrecord
from keras_recsys.data.time_series import (
    TimeSeries,
    read_time_series,
    split_time_series,
)
from keras_recsys.data.vocabulary import Vocabulary
from keras_recsys.data.weather import load_weather
from keras_recsys.data.window_dataset import make_window_dataset

__all__ = [
    "HashedVocabulary",
    "ReadReport",
    "Sequences",
    "SeriesScaler",
    "TimeSeries",
    "Vocabulary",
    "calendar_features",
    "downsample_negatives",
    "encode_dataset",
    "ett_borders",
    "fit_numbers",
    "fit_vocabularies",
    "k_core",
    "load_ett",
    "load_movielens",
    "load_weather",
    "make_dataset",
    "make_movielens_lists",
    "make_ranking_dataset",
    "make_sequence_dataset",
    "make_window_dataset",
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
    "read_time_series",
    "schema_of",
    "split_by_user_time",
    "split_time_series",
    "write_parquet",
    "write_tfrecord",
]
