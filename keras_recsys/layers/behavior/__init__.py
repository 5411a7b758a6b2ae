"""History and target -> interest."""

from keras_recsys.layers.behavior.behavior_retrieval import BehaviorRetrieval
from keras_recsys.layers.behavior.dual_query_attention import DualQueryAttention
from keras_recsys.layers.behavior.interest_evolution import InterestEvolution
from keras_recsys.layers.behavior.iterative_memory import IterativeMemory
from keras_recsys.layers.behavior.memory_enhancement import MemoryEnhancement
from keras_recsys.layers.behavior.memory_slots import MemorySlots
from keras_recsys.layers.behavior.reverse_position_embedding import (
    ReversePositionEmbedding,
)
from keras_recsys.layers.behavior.self_attention_block import SelfAttentionBlock
from keras_recsys.layers.behavior.target_attention import TargetAttention
from keras_recsys.layers.behavior.time_bucket_embedding import TimeBucketEmbedding

__all__ = [
    "BehaviorRetrieval",
    "DualQueryAttention",
    "InterestEvolution",
    "IterativeMemory",
    "MemoryEnhancement",
    "MemorySlots",
    "ReversePositionEmbedding",
    "SelfAttentionBlock",
    "TargetAttention",
    "TimeBucketEmbedding",
]
