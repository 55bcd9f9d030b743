"""Models that can be asked: one protocol, one short adapter each, opened by name. See docs/models.md."""

from tilewright.models.errors import (
    BadModelName,
    BadPriceTable,
    MissingKey,
    MissingPackage,
    ModelError,
    ModelRejected,
    ModelUnavailable,
    NoRecordedReply,
)
from tilewright.models.opening import PROVIDERS, default_model_name, open_model
from tilewright.models.prices import Price, find_price
from tilewright.models.protocol import Model, OnText
from tilewright.models.retries import RetryPolicy

__all__ = [
    "PROVIDERS",
    "BadModelName",
    "BadPriceTable",
    "MissingKey",
    "MissingPackage",
    "Model",
    "ModelError",
    "ModelRejected",
    "ModelUnavailable",
    "NoRecordedReply",
    "OnText",
    "Price",
    "RetryPolicy",
    "default_model_name",
    "find_price",
    "open_model",
]
