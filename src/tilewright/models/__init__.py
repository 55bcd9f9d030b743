"""Models that can be asked: one protocol, one short adapter each, opened by name. See docs/models.md."""

from tilewright.models.prices import Price, find_price
from tilewright.models.protocol import (
    BadModelName,
    BadPriceTable,
    MissingKey,
    MissingPackage,
    Model,
    ModelError,
    ModelRejected,
    ModelUnavailable,
    NoRecordedReply,
    OnText,
    Provider,
)
from tilewright.models.provider_table import default_model_name, default_provider, key_variables, open_model, providers
from tilewright.models.retries import RetryPolicy

__all__ = [
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
    "Provider",
    "RetryPolicy",
    "default_model_name",
    "default_provider",
    "find_price",
    "key_variables",
    "open_model",
    "providers",
]
