import numpy as np
import pytest
import tensorflow as tf

from keras_recsys.data import encode_dataset, read_parquet, schema_of, write_parquet
from keras_recsys.features import CategoricalFeature, NumericFeature, SequenceFeature

FEATURES = [
    CategoricalFeature("city", 9, dtype="int64"),
    SequenceFeature("tags", 5),
    NumericFeature("age"),
]


def test_files_of_encoded_columns_are_read_by_it(tmp_path):
    columns = {
        "city": np.array([3, 8]),
        "tags": np.array([[1, 2], [4, 0]], "int32"),
        "age": np.array([1.5, 2.5], "float32"),
    }
    dataset = tf.data.Dataset.from_tensors((columns, np.ones((2, 1), "float32")))
    files = write_parquet(dataset, tmp_path)
    schema = schema_of(FEATURES)
    assert schema == {"city": "int64", "tags": "int32[]", "age": "float32"}
    batches = read_parquet(files, schema, label="label")
    got, _ = next(iter(encode_dataset(batches, {}, max_len={"tags": None})))
    for name, column in columns.items():
        assert got[name].dtype == column.dtype
        np.testing.assert_array_equal(got[name], column)


def test_says_what_is_no_feature():
    with pytest.raises(TypeError, match="`features` must hold.*Received: 'city'"):
        schema_of(["city"])
