"""Figures of click models: by hand, and against scikit-learn group by group."""

import dataclasses
import math

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from cases.case_models import make_labels, make_model, make_rows, predict
from sklearn import metrics

from keras_recsys.analysis import (
    ClickReport,
    compare_models,
    evaluate_clicks,
    evaluate_model,
)

# Pairs (positive, negative): 0.6 > 0.2, 0.6 < 0.7, 0.9 > 0.2, 0.9 > 0.7.
LABELS = [0, 1, 0, 1]
PROBABILITIES = [0.2, 0.6, 0.7, 0.9]
LOSS = -(math.log(0.8) + math.log(0.6) + math.log(0.3) + math.log(0.9)) / 4


def make_clicks(num_rows=400, num_groups=30, seed=0):
    """Labels, probabilities with many ties, groups, and weights."""
    rng = np.random.default_rng(seed)
    probabilities = np.round(rng.uniform(size=num_rows), 1)
    labels = rng.uniform(size=num_rows) < probabilities**2
    # Small and large groups, so that some hold one label only.
    groups = (num_groups * rng.uniform(size=num_rows) ** 3).astype("int64")
    return labels, probabilities, groups, rng.uniform(0.1, 3.0, num_rows)


def gauc_loop(labels, probabilities, groups, weights):
    """GAUC by scikit-learn, one group at a time; and the groups that have one."""
    areas, shares, left_out = [], [], 0
    for group in np.unique(groups):
        rows = groups == group
        if len(np.unique(labels[rows])) < 2:
            left_out += rows.sum()
            continue
        areas.append(
            metrics.roc_auc_score(
                labels[rows], probabilities[rows], sample_weight=weights[rows]
            )
        )
        shares.append(weights[rows].sum())
    return np.average(areas, weights=shares), len(areas), left_out


def test_by_hand():
    report = evaluate_clicks(LABELS, PROBABILITIES)
    assert report.num_rows == 4
    assert report.num_positives == 2
    assert report.auc == 0.75
    assert report.log_loss == pytest.approx(LOSS, abs=1e-15)
    assert report.base_log_loss == pytest.approx(math.log(2), abs=1e-15)
    assert report.information_gain == pytest.approx(1 - LOSS / math.log(2), abs=1e-15)
    assert report.calibration == pytest.approx(2.4 / 2, abs=1e-15)
    assert report.gauc is None
    assert report.num_groups_scored is None


def test_gauc_by_hand():
    # Group 5: AUC 1 of 2 rows. Group 2: ties, AUC (1 + 1/2) / 2 of 3 rows. Group 9
    # holds only positives, which count in AUC alone.
    report = evaluate_clicks(
        [0, 0, 1, 1, 0, 1, 1],
        [0.2, 0.5, 0.5, 0.3, 0.1, 0.8, 0.0],
        groups=[5, 2, 2, 5, 2, 9, 9],
    )
    assert report.gauc == pytest.approx((2 * 1.0 + 3 * 0.75) / 5, abs=1e-15)
    assert report.num_groups == 3
    assert report.num_groups_scored == 2
    assert report.num_rows_left_out == 2


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_equals_scikit_learn(weighted, seed):
    labels, probabilities, groups, weights = make_clicks(seed=seed)
    given = weights if weighted else None
    report = evaluate_clicks(labels, probabilities, groups=groups, weights=given)
    one = weights if weighted else np.ones(len(labels))
    gauc, num_scored, left_out = gauc_loop(labels, probabilities, groups, one)
    assert report.gauc == pytest.approx(gauc, abs=1e-12)
    assert (report.num_groups_scored, report.num_rows_left_out) == (
        num_scored,
        left_out,
    )
    assert 0 < num_scored < report.num_groups
    auc = metrics.roc_auc_score(labels, probabilities, sample_weight=given)
    assert report.auc == pytest.approx(auc, abs=1e-12)
    base = np.full(len(labels), np.average(labels, weights=given))
    loss = metrics.log_loss(labels, base, sample_weight=given)
    assert report.base_log_loss == pytest.approx(loss, abs=1e-12)
    expected = np.sum(one * probabilities) / np.sum(one * labels)
    assert report.calibration == pytest.approx(expected, abs=1e-12)


def test_one_group_is_auc():
    labels, probabilities, _, weights = make_clicks()
    report = evaluate_clicks(
        labels, probabilities, groups=np.zeros(len(labels)), weights=weights
    )
    assert report.gauc == pytest.approx(report.auc, abs=1e-12)


def test_a_row_of_weight_two_is_two_rows():
    once = [0, 1, 2, 3, 3]
    labels, probabilities = np.array(LABELS), np.array(PROBABILITIES)
    twice = evaluate_clicks(labels[once], probabilities[once], groups=[0] * 5)
    weighted = evaluate_clicks(
        labels, probabilities, groups=[0] * 4, weights=[1, 1, 1, 2]
    )
    for name in ("auc", "gauc", "log_loss", "base_log_loss", "calibration"):
        got, want = getattr(weighted, name), getattr(twice, name)
        assert got == pytest.approx(want, abs=1e-15), name
    assert weighted.num_rows == 4


@pytest.mark.parametrize(
    "make",
    [
        list,
        np.array,
        lambda x: np.array(x)[:, None],
        tf.constant,
        lambda x: tf.constant(x)[:, None],
        lambda x: pd.Series(x, index=[7, 3, 3, 1]),
        lambda x: pd.Series(x).convert_dtypes(),
        lambda x: pd.DataFrame({"column": x}),
        lambda x: {"probability": np.array(x)[:, None]},
    ],
)
def test_all_kinds_of_columns(make):
    want = evaluate_clicks(LABELS, PROBABILITIES, weights=[1, 2, 1, 1])
    got = evaluate_clicks(make(LABELS), make(PROBABILITIES), weights=make([1, 2, 1, 1]))
    assert got.num_positives == 2
    assert got.log_loss == pytest.approx(want.log_loss, abs=1e-6)  # tf: float32
    assert got.auc == want.auc


@pytest.mark.parametrize(
    "groups",
    [
        ["b", "a", "b", "a"],
        [b"b", b"a", b"b", b"a"],
        tf.constant(["b", "a", "b", "a"]),
        tf.constant([[8], [7], [8], [7]]),
        pd.Series(["b", "a", "b", "a"]),
        pd.Series(["b", "a", "b", "a"], dtype="category"),
        pd.Series([8, 7, 8, 7], dtype="Int64"),
        pd.to_datetime(["2020-01-02", "2020-01-01"] * 2),
        [2**53 + 1, 2**53, 2**53 + 1, 2**53],  # one number, as floats
        [True, False, True, False],
    ],
)
def test_all_kinds_of_groups(groups):
    report = evaluate_clicks([0, 1, 1, 0], PROBABILITIES, groups=groups)
    assert report.gauc == 0.5  # 0.2 < 0.7, and 0.6 < 0.9 the wrong way round
    assert report.num_groups == 2


def test_probabilities_of_0_and_1_cost_a_finite_loss():
    report = evaluate_clicks([0, 1], [1.0, 0.0])
    assert report.log_loss == pytest.approx(-math.log(1e-7), abs=1e-9)
    assert evaluate_clicks([0, 1], [0.0, 1.0]).log_loss == pytest.approx(1e-7, rel=1e-6)


def test_log_loss_is_that_of_keras():
    labels = np.array([[0.0], [1.0], [1.0]], "float32")
    probabilities = np.array([[1.0], [0.0], [0.7]], "float32")
    loss = keras.losses.binary_crossentropy(labels, probabilities)
    want = float(np.mean(loss))
    assert evaluate_clicks(labels, probabilities).log_loss == pytest.approx(
        want, rel=0.01
    )  # 1 - 1e-7 is no float32


def test_sums_are_float64():
    # In float32, a sum of 0.1 over two million rows is off by more than 1 %.
    probabilities = np.full(2_000_000, 0.1, "float32")
    labels = np.arange(2_000_000) % 10 == 0
    assert evaluate_clicks(labels, probabilities).calibration == pytest.approx(
        1.0, abs=1e-7
    )


@pytest.mark.parametrize("label", [0, 1])
def test_one_label_has_a_log_loss_and_no_auc(label):
    report = evaluate_clicks([label] * 3, [0.5, 0.25, 0.25], groups=[1, 1, 2])
    assert math.isnan(report.auc)
    assert math.isnan(report.gauc)
    assert math.isnan(report.information_gain)
    assert report.base_log_loss == 0.0
    assert report.num_groups_scored == 0
    assert report.num_rows_left_out == 3
    loss = -np.mean(np.log(np.abs(1 - label - np.array([0.5, 0.25, 0.25]))))
    assert report.log_loss == pytest.approx(loss, abs=1e-12)
    assert report.calibration == pytest.approx(1 / 3) or not label
    assert math.isnan(report.calibration) == (not label)
    assert "nan" not in str(report)


def test_weights_may_leave_one_label():
    report = evaluate_clicks([0, 1, 1], [0.1, 0.2, 0.3], weights=[0, 1, 1])
    assert math.isnan(report.auc)
    assert report.num_positives == 2


def test_table():
    report = ClickReport(12_345, 678, 0.75, 0.5, 0.625, 1.5, math.nan, 1200, 0, 12_345)
    assert str(report).splitlines() == [
        "rows                  12,345",
        "positives                678",
        "AUC                   0.7500",
        "log loss              0.5000",
        "information gain      20.0 %",
        "calibration           1.5000",
        "GAUC                       -",
        "groups scored     0 of 1,200",
        "rows left out         12,345",
    ]
    without = evaluate_clicks(LABELS, PROBABILITIES)
    assert "GAUC" not in str(without)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.auc = 1.0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"labels": [0, 2, -1]}, r"`labels`.*0 and 1.*2 of 3 rows.*2\.0 at row 1"),
        ({"labels": [0, 1, math.nan]}, r"`labels`.*1 of 3 rows.*nan at row 2"),
        ({"labels": []}, r"`labels` must be of shape.*Received: shape \(0,\)"),
        ({"labels": np.eye(3)}, r"`labels` must be of shape.*\(3, 3\)"),
        ({"labels": 1}, r"`labels` must be of shape.*Received: shape \(\)"),
        ({"labels": [0, 1]}, r"`probabilities` must have as many rows.* 2\..*3 rows"),
        (
            {"probabilities": [-0.1, math.nan, 1.1]},
            r"`probabilities`.*\[0, 1\].*3 of 3 rows.*-0\.1 at row 0",
        ),
        (
            {"probabilities": {"logits": [0.5] * 3}},
            r"`probabilities`.*'probability'.*\['logits'\]",
        ),
        ({"probabilities": np.full((3, 2), 0.5)}, r"`probabilities`.*\(3, 2\)"),
        ({"groups": [1, 2]}, r"`groups` must have as many rows.* 3\..*2 rows"),
        ({"groups": ["a", None, None]}, r"`groups`.*2 of 3 rows.*row 1"),
        ({"groups": [1.0, 2.0, math.nan]}, r"`groups`.*1 of 3 rows.*row 2"),
        (
            {"groups": pd.Series([1, pd.NA, 2], dtype="Int64")},
            r"`groups`.*1 of 3 rows.*row 1",
        ),
        ({"weights": [1, -1, math.inf]}, r"`weights`.*2 of 3 rows.*-1\.0 at row 1"),
        ({"weights": [0, 0, 0]}, r"`weights`.*only zeros"),
        ({"weights": [1, 1]}, r"`weights` must have as many rows.*2 rows"),
    ],
)
def test_refuses(given, text):
    columns = {"labels": [0, 1, 1], "probabilities": [0.1, 0.2, 0.3], **given}
    with pytest.raises(ValueError, match=text):
        evaluate_clicks(**columns)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"labels": ["0", "1"]}, "`labels` must hold numbers.*U1"),
        ({"labels": pd.Series([0, pd.NA], dtype="Int64")}, "`labels`.*none missing"),
        ({"probabilities": [0.5, None]}, "`probabilities`.*none missing"),
        ({"groups": np.array(["a", 1], object)}, "`groups`.*ordered.*'int' and 'str'"),
    ],
)
def test_refuses_types(given, text):
    columns = {"labels": [0, 1], "probabilities": [0.1, 0.2], **given}
    with pytest.raises(TypeError, match=text):
        evaluate_clicks(**columns)


# A model and a data set.


@pytest.fixture(scope="module")
def model():
    return make_model("dlrm")


def batches(columns, *labels, size=4):
    return tf.data.Dataset.from_tensor_slices((columns, *labels)).batch(size)


def test_model_equals_its_probabilities(model):
    columns, labels = make_rows(10), make_labels(10)
    columns["user"] = np.arange(10) // 5
    want = evaluate_clicks(labels, predict(model, columns), groups=columns["user"])
    got = evaluate_model(model, batches(columns, labels), group="user")
    for name, value in dataclasses.asdict(want).items():
        assert getattr(got, name) == pytest.approx(value, abs=1e-6), name
    assert got.num_groups_scored == 2
    assert evaluate_model(model, batches(columns, labels)).gauc is None


def test_model_reads_the_data_once(model):
    columns, labels = make_rows(10), make_labels(10)
    read = []

    def generate():
        for start in (0, 4, 8):
            read.append(start)
            rows = slice(start, start + 4)
            yield {name: x[rows] for name, x in columns.items()}, labels[rows]

    assert evaluate_model(model, generate(), group="user").num_rows == 10
    assert read == [0, 4, 8]


def test_group_that_the_model_does_not_read(model):
    columns, labels = make_rows(6), make_labels(6)
    columns["session"] = np.array(["b", "b", "a", "a", "c", "c"])
    report = evaluate_model(model, batches(columns, labels), group="session")
    assert report.num_groups_scored == 3


def test_weights_of_the_data(model):
    columns, labels = make_rows(6), make_labels(6)
    weights = np.arange(6.0)
    want = evaluate_clicks(labels, predict(model, columns), weights=weights)
    got = evaluate_model(model, batches(columns, labels, weights))
    assert got.log_loss == pytest.approx(want.log_loss, abs=1e-6)


def test_model_of_your_own():
    x = keras.Input((1,), name="x")
    model = keras.Model(x, keras.ops.sigmoid(x))
    logits = np.array([[-1.0], [2.0], [0.0]], "float32")
    report = evaluate_model(model, [(logits, [0, 1, 0])])
    assert report.auc == 1.0
    want = (1 / (1 + math.e) + 1 / (1 + math.exp(-2)) + 0.5) / 1
    assert report.calibration == pytest.approx(want, abs=1e-6)


def test_model_refuses(model):
    columns, labels = make_rows(6), make_labels(6)
    dataset = batches(columns, labels)
    with pytest.raises(ValueError, match=r"`group`.*group='shop'; names \['user'"):
        evaluate_model(model, dataset, group="shop")
    with pytest.raises(ValueError, match=r"`groups` must be of shape.*\(4, 3\)"):
        evaluate_model(model, dataset, group="genres")
    with pytest.raises(ValueError, match="`dataset` must be finite"):
        evaluate_model(model, dataset.repeat())
    with pytest.raises(ValueError, match="`dataset`.*empty"):
        evaluate_model(model, dataset.take(0))
    with pytest.raises(TypeError, match=r"`dataset`.*\(inputs, labels\).*dict"):
        evaluate_model(model, batches(columns).map(lambda x: x))
    with pytest.raises(ValueError, match=r"`group`.*group='user'; names none"):
        evaluate_model(model, [(np.ones((2, 1)), [0, 1])], group="user")


# Several models.


def test_comparison_is_ranked_by_log_loss():
    rate = evaluate_clicks(LABELS, [0.5] * 4)
    good = evaluate_clicks(LABELS, [0.1, 0.9, 0.1, 0.9])
    lines = compare_models({"rate": rate, "good": good}).splitlines()
    assert [line.split()[0] for line in lines] == ["AUC", "good", "rate"]
    assert lines[1].split()[1:] == ["1.0000", "0.1054", "84.8", "%", "1.0000"]
    assert len({len(line) for line in lines}) == 1


def test_comparison_with_groups():
    report = evaluate_clicks(LABELS, PROBABILITIES, groups=[0, 0, 1, 1])
    assert compare_models({"a": report}).splitlines()[0].endswith("GAUC")


def test_comparison_refuses():
    report = evaluate_clicks(LABELS, PROBABILITIES)
    grouped = evaluate_clicks(LABELS, PROBABILITIES, groups=[0, 0, 1, 1])
    other = evaluate_clicks(LABELS[1:], PROBABILITIES[1:])
    for reports in ({"a": report, "b": other}, {"a": report, "b": grouped}, {}):
        with pytest.raises(ValueError, match="`reports` must be of the same rows"):
            compare_models(reports)
    with pytest.raises(TypeError, match=r"`reports` must be a dict.*\[ClickReport"):
        compare_models([report])
