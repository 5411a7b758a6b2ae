"""`build_informer` and `build_transformer_forecaster`."""

import functools

import informer_golden as reference
import keras
import numpy as np
import pytest
from golden_files import golden
from helpers import (
    BACKEND,
    array,
    check_model,
    output_and_gradients,
    randomize,
    tensor,
)

from keras_recsys.analysis import evaluate_forecasts
from keras_recsys.models import build_informer, build_transformer_forecaster


def informer_of(z, meta):
    """The model of a golden file, its weights and samples in place."""
    seq_len, pred_len = z["x_enc"].shape[1], z["y"].shape[1]
    model = build_informer(
        meta["enc_in"],
        seq_len=seq_len,
        pred_len=pred_len,
        label_len=z["x_dec"].shape[1] - pred_len,
        num_outputs=meta["c_out"],
        frequency=meta["freq"],
        calendar_embedding=meta["embed"],
        hidden_dim=meta["d_model"],
        num_heads=meta["n_heads"],
        intermediate_dim=meta["d_ff"],
        encoder_layers=meta["e_layers"],
        decoder_layers=meta["d_layers"],
        attention="full" if meta["attn"] == "full" else "prob_sparse",
        factor=meta["factor"],
        distill=meta["distil"],
        mix=meta["mix"],
        activation=meta["activation"],
        dropout=meta["dropout"],
    )
    sparse = reference.model_weights(model, z, meta["e_layers"])
    samples = [z[f"call{n}.key_index"] for n in range(len(sparse))]
    reference.fix_samples(sparse, samples)
    return model


@golden("informer", having=["x_enc", "w.out.W"])
def test_golden_model(path):
    z, meta = reference.read(path)
    model = informer_of(z, meta)
    inputs = [tensor(z[x]) for x in ("x_enc", "mark_enc", "x_dec", "mark_dec")]
    got = array(reference.cut(model, model.output["forecast"])(inputs))
    reference.assert_golden(got, z["y"])
    loss = np.mean((got - z["target"]) ** 2)
    reference.assert_golden(loss, z["loss_mse"])


@golden("informer", having=["x_enc", "g.out.W"])
def test_golden_gradients(path):
    z, meta = reference.read(path)
    model = informer_of(z, meta)
    # Their gradients in the place of weights, in our layout.
    wanted = informer_of({**z, **{f"w{x[1:]}": z[x] for x in z if x[:2] == "g."}}, meta)
    cut = reference.cut(model, model.output["forecast"])
    inputs = [z[x] for x in ("x_enc", "mark_enc", "x_dec", "mark_dec")]
    upstream = 2 * (z["y"] - z["target"]) / z["target"].size
    _, gradients = output_and_gradients(
        cut, inputs, upstream.astype("float32"), call={"training": False}
    )
    places = {id(weight): i for i, weight in enumerate(model.weights)}
    assert len(gradients) == sum(x[:2] == "g." for x in z)
    for weight, got in zip(cut.trainable_variables, gradients, strict=True):
        want = array(wanted.weights[places[id(weight)]])
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-6, err_msg=weight.path)


SIZES = {
    "seq_len": 20,
    "pred_len": 4,
    "label_len": 6,
    "hidden_dim": 8,
    "num_heads": 2,
    "intermediate_dim": 12,
    "factor": 2,
    "dropout": 0.0,
}


def windows(rows=3, channels=2, fields=4, seed=0, **sizes):
    """Inputs of a model of `SIZES`."""
    rng = np.random.default_rng(seed)
    sizes = {**SIZES, **sizes}
    steps = sizes["seq_len"] + sizes["pred_len"]
    return {
        "values": rng.normal(size=(rows, sizes["seq_len"], channels)).astype("float32"),
        "calendar": rng.uniform(-0.5, 0.5, (rows, steps, fields)).astype("float32"),
    }


X = windows()


@functools.cache
def small():
    """A model of random weights; tests leave it as it is."""
    model = build_informer(2, **SIZES)
    randomize(model, np.random.default_rng(5), scale=0.4)
    return model


def forecast(model, inputs):
    return array(model(inputs)["forecast"])


@pytest.mark.parametrize(
    ("settings", "inputs"),
    [
        ({}, X),
        (
            {
                "encoder_layers": [2, 1],
                "encoder_exponents": [0, 2],
                "decoder_layers": 2,
                "calendar_embedding": "learned",
                "normalization": "instance",
                "num_outputs": 1,
                "mix": False,
                "padding": "same",
                "attention_options": {"measure": "exact", "lazy": "cummean"},
            },
            {**X, "calendar": np.ones((3, 24, 4), "int32")},
        ),
        (
            {"calendar_embedding": None, "normalization": "last", "distill": False},
            {"values": X["values"]},
        ),
    ],
    ids=["plain", "stack", "no_calendar"],
)
def test_contract(settings, inputs, tmp_path):
    if BACKEND == "jax" and settings:
        pytest.skip("JAX compiles each operation, and the rest is one code")
    check_model(
        lambda **kw: build_informer(2, **SIZES, **settings, **kw), inputs, tmp_path
    )


def test_contract_transformer(tmp_path):
    sizes = {k: v for k, v in SIZES.items() if k != "factor"}
    check_model(
        lambda **kw: build_transformer_forecaster(2, **sizes, **kw), X, tmp_path
    )


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 11_330_055),
        ({"encoder_layers": 3, "decoder_layers": 2}, 19_474_439),
        ({"encoder_layers": [3, 2, 1]}, 25_517_575),
    ],
)
def test_counts_of_weights_are_those_of_the_paper(settings, count):
    model = build_informer(7, seq_len=96, label_len=48, pred_len=24, **settings)
    assert sum(np.prod(w.shape) for w in model.trainable_weights) == count


def test_count_of_weights_of_one_channel():
    model = build_informer(1, seq_len=96, label_len=48, pred_len=24)
    assert sum(np.prod(w.shape) for w in model.trainable_weights) == 11_308_545


@pytest.mark.parametrize(
    ("exponents", "steps"), [(None, 20 + 10), ([0, 2], 20 + 5), ([1, 1], 20)]
)
def test_stack_joins_the_last_steps(exponents, steps):
    model = build_informer(
        2, **SIZES, encoder_layers=[1, 1], encoder_exponents=exponents
    )
    assert model.get_layer("informer_memory").output.shape == (None, steps, 8)


def test_stack_of_the_paper_ends_in_72_steps():
    sizes = {**SIZES, "seq_len": 96}
    model = build_informer(2, **sizes, encoder_layers=[3, 2, 1])
    assert model.get_layer("informer_memory").output.shape[1] == 24 + 24 + 24
    sizes["seq_len"] = 97
    model = build_informer(2, **sizes, encoder_layers=[3, 2, 1])
    assert model.get_layer("informer_memory").output.shape[1] == 73


def test_decoder_starts_with_known_steps_and_zeros():
    tensors = [
        small().get_layer(f"informer_decoder_{x}").output for x in ("values", "times")
    ]
    values, times = (array(x) for x in keras.Model(small().input, tensors)(X))
    np.testing.assert_array_equal(values[:, :6], X["values"][:, -6:])
    np.testing.assert_array_equal(values[:, 6:], 0.0)
    np.testing.assert_array_equal(times, X["calendar"][:, 14:])


def test_no_label_is_allowed():
    model = build_informer(2, **{**SIZES, "label_len": 0})
    assert forecast(model, X).shape == (3, 4, 2)


def test_future_times_matter():
    later = X["calendar"].copy()
    later[:, -1] += 0.3
    got = forecast(small(), {**X, "calendar": later})
    assert np.abs(got - forecast(small(), X)).max() > 1e-3


@pytest.mark.parametrize("normalization", ["last", "instance"])
def test_normalization_follows_the_level(normalization):
    model = build_informer(2, **SIZES, normalization=normalization)
    moved = {**X, "values": X["values"] + 50.0}
    want = forecast(model, X) + 50.0
    np.testing.assert_allclose(forecast(model, moved), want, rtol=1e-4)


def test_dropout_and_samples_act_in_training_alone():
    model = build_informer(2, **{**SIZES, "seq_len": 40}, seed=1)
    x = windows(seq_len=40)
    first, second = (array(model(x, training=True)["forecast"]) for _ in range(2))
    assert np.abs(first - second).max() > 1e-6  # the sample alone, dropout is 0
    np.testing.assert_array_equal(forecast(model, x), forecast(model, x))


def test_initial_values_are_those_of_pytorch():
    keras.utils.set_random_seed(0)
    model = build_informer(2, **{**SIZES, "hidden_dim": 64})
    block = model.get_layer("informer_encoder_block_0")
    for weight in (block.inner.kernel, block.inner.bias):
        values = array(weight)
        assert np.abs(values).max() <= 1 / 8
        assert np.abs(values).max() > 0.1
    kernels = [array(block.self_attention.query.kernel), array(block.outer.kernel)]
    assert np.abs(kernels[1]).max() <= 12**-0.5
    other = model.get_layer("informer_encoder_block_1").self_attention.query.kernel
    assert np.abs(kernels[0] - array(other)).max() > 0.01
    model = build_informer(2, **SIZES, initial_values="keras")
    assert not array(model.get_layer("informer_encoder_block_0").inner.bias).any()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"label_len": 21}, ValueError, "`label_len` must be at most `seq_len`, 20"),
        ({"label_len": -1}, ValueError, "`label_len` must be at least 0.*-1"),
        ({"pred_len": 0}, ValueError, "`pred_len` must be at least 1.*=0"),
        ({"num_outputs": 3}, ValueError, "`num_outputs` must be at most.*2.*=3"),
        ({"frequency": "5x"}, ValueError, "`frequency`.*'5x'"),
        ({"calendar_embedding": "none"}, ValueError, "`calendar_embedding`.*'none'"),
        ({"frequency": "y"}, ValueError, "`frequency`.*'y'"),
        ({"normalization": "max"}, ValueError, "`normalization`.*'max'"),
        ({"initial_values": 1}, ValueError, "`initial_values`.*=1"),
        ({"encoder_layers": []}, ValueError, r"`encoder_layers`.*\[\]"),
        ({"encoder_layers": 1.5}, TypeError, "`encoder_layers`.*1.5"),
        ({"encoder_exponents": [0, 1]}, ValueError, r"`encoder_exponents`.*\[0, 1\]"),
        ({"encoder_exponents": [5]}, ValueError, r"`encoder_exponents`.*\[5\]"),
        ({"num_heads": 3}, ValueError, "`num_heads`.*8.*=3"),
        ({"dropout": 1}, ValueError, "`dropout`.*=1"),
        ({"inputs": {}}, ValueError, "`inputs`.*values"),
    ],
)
def test_says_what_was_given(changes, error, message):
    with pytest.raises(error, match=message):
        build_informer(2, **{**SIZES, **changes})


@pytest.mark.parametrize(
    ("embedding", "dtype"),
    [("timeF", "int32"), ("fixed", "float32"), ("learned", "float16")],
)
def test_refuses_calendar_features_of_another_kind(embedding, dtype):
    model = build_informer(2, **SIZES, calendar_embedding=embedding)
    x = {name: np.ones((3, *spec.shape[1:])) for name, spec in model.input.items()}
    x = {"values": x["values"], "calendar": x["calendar"].astype(dtype)}
    match = f"`calendar` must hold the features.*Received: dtype {dtype}"
    y = np.ones((3, *model.output["forecast"].shape[1:]), "float32")
    x = {name: tensor(array) for name, array in x.items()}
    for call in (
        lambda: model(x),
        lambda: model.predict_on_batch(x),
        lambda: evaluate_forecasts(model, [(x, y)]),
    ):
        with pytest.raises(TypeError, match=match):
            call()


def test_any_seed():
    for seed in (2**31 - 50, 2**32):
        model = build_informer(2, **SIZES, seed=seed)
        assert np.isfinite(
            array(
                model(
                    {
                        name: np.ones((1, *x.shape[1:]), x.dtype)
                        for name, x in model.input.items()
                    }
                )["forecast"]
            )
        ).all()
    with pytest.raises(TypeError, match=r"`seed` must be an integer.*seed=1.5"):
        build_informer(2, **SIZES, seed=1.5)
