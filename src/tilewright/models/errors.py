"""Every way in which asking a model can fail.

    ModelError               one sentence: what is wrong and what to do
    ├── BadModelName         not `provider:model`, or a provider that is not known
    ├── BadPriceTable        a price table that cannot be read
    ├── MissingKey           the environment variable with the key is not set
    ├── MissingPackage       the adapter needs a package that is not installed
    ├── ModelRejected        the service said no and would say so again: wrong key, no such model, bad request
    ├── ModelUnavailable     still failing after every retry, or nobody answered in time
    └── NoRecordedReply      a replay has come to the end of its recording

A refusal of the model itself is no error: it is a `Reply` whose `stop` says so. So is a reply cut at its length.
"""

from __future__ import annotations

from tilewright.records import NoReply


class ModelError(NoReply):
    """Asking a model failed. The text never holds a key."""


class BadModelName(ModelError):
    pass


class BadPriceTable(ModelError):
    pass


class MissingKey(ModelError):
    pass


class MissingPackage(ModelError):
    pass


class ModelRejected(ModelError):
    pass


class ModelUnavailable(ModelError):
    pass


class NoRecordedReply(ModelError):
    pass
