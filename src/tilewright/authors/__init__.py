"""Who writes kernels: a model that is asked with prompts, or the built-in playbook."""

from tilewright.authors.model_author import ModelAuthor
from tilewright.authors.protocol import Ask, Author

__all__ = ["Ask", "Author", "ModelAuthor"]
