"""The class of models that learn a choice by its reward."""

import keras
from keras import ops

from keras_recsys.models._named_model import NamedModel

# Share that the running mean of the loss keeps at each training step.
MOMENTUM = 0.99


@keras.saving.register_keras_serializable(package="keras_recsys")
class ReinforcedModel(NamedModel):
    """A click model that draws choices in training and learns from their success.

    Its outputs are `"probability"` and the `"log_probability"` of the choices that led
    to it, both `(batch_size, 1)`. Loss and metrics of `compile` see the first alone, so
    that labels and sample weights are those of any click model. In training the
    gradient of (REINFORCE)

        mean((loss_of_sample - usual_loss) * log_probability)

    joins that of the loss; the value of the loss does not change. The reward is minus
    the loss of the sample, without regularization. `usual_loss` is its running mean
    over the steps before, 0 at the first; it is saved with the weights.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # A sum and the weight of its terms: a mean from the first step on.
        self.loss_sum, self.loss_weight = (
            self.add_weight(
                name=name,
                shape=(),
                initializer="zeros",
                dtype="float32",
                trainable=False,
                aggregation="mean",
            )
            for name in ("loss_sum", "loss_weight")
        )

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """The loss of `"probability"`; in training with the gradient of the choices."""
        clicks, log_probability = _parts(y_pred)
        loss = super().compute_loss(x, y, clicks, sample_weight, training=training)
        if not training:
            return loss
        criterion = keras.losses.get(keras.tree.flatten(self.loss)[0])
        losses = _losses(criterion, y, clicks)
        each = ops.stop_gradient(ops.cast(losses, self.loss_sum.dtype))
        usual = self.loss_sum / ops.maximum(self.loss_weight, 1 - MOMENTUM)
        advantage = ops.expand_dims(each - usual, -1)
        self.loss_sum.assign(MOMENTUM * self.loss_sum + (1 - MOMENTUM) * ops.mean(each))
        self.loss_weight.assign(MOMENTUM * self.loss_weight + (1 - MOMENTUM))
        if sample_weight is not None:
            sample_weight = keras.tree.flatten(sample_weight)[0]
        reinforce = _Reinforcement(
            name="reinforcement",
            reduction=getattr(criterion, "reduction", "sum_over_batch_size"),
        )
        return loss + reinforce(advantage, log_probability, sample_weight)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """The metrics of `"probability"`."""
        clicks, _ = _parts(y_pred)
        return super().compute_metrics(x, y, clicks, sample_weight)


class _Reinforcement(keras.losses.Loss):
    """Value 0 and the gradient of `y_true * y_pred`, weighted as any loss."""

    def call(self, y_true, y_pred):
        return ops.mean(y_true * (y_pred - ops.stop_gradient(y_pred)), axis=-1)


def _parts(y_pred):
    """The outputs without `"log_probability"`, and that one."""
    clicks = dict(y_pred)
    return clicks, clicks.pop("log_probability")


def _losses(criterion, y, clicks):
    """Loss of each sample, `(batch_size,)`."""
    probability = clicks["probability"]
    label = ops.convert_to_tensor(keras.tree.flatten(y)[0])
    label = ops.reshape(ops.cast(label, probability.dtype), ops.shape(probability))
    call = criterion.call if isinstance(criterion, keras.losses.Loss) else criterion
    return call(label, probability)
