"""How high the next item ranks among all items: what Keras and keras-rs lack."""

from keras_recsys.metrics._target_rank import target_rank
from keras_recsys.metrics.hit_rate import HitRate
from keras_recsys.metrics.mrr import MRR
from keras_recsys.metrics.ndcg import NDCG

__all__ = [
    "MRR",
    "NDCG",
    "HitRate",
    "target_rank",
]
