"""Models that can be asked: one protocol, one short adapter each, opened by name. See docs/models.md."""

from tilewright.models.prices import Price
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
    RetryPolicy,
    default_model_name,
    default_provider,
    key_variables,
    open_model,
    providers,
)
