"""History and target -> interest."""

from keras_recsys.layers.behavior.dual_query_attention import DualQueryAttention
from keras_recsys.layers.behavior.iterative_memory import IterativeMemory
from keras_recsys.layers.behavior.memory_enhancement import MemoryEnhancement
from keras_recsys.layers.behavior.reverse_position_embedding import (
    ReversePositionEmbedding,
)
from keras_recsys.layers.behavior.target_attention import TargetAttention
from keras_recsys.layers.behavior.time_bucket_embedding import TimeBucketEmbedding

__all__ = [
    "DualQueryAttention",
    "IterativeMemory",
    "MemoryEnhancement",
    "ReversePositionEmbedding",
    "TargetAttention",
    "TimeBucketEmbedding",
]
