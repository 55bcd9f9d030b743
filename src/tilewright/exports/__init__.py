"""A finished kernel in the form its users need: a torch package, a project for the Hugging Face Hub, plain CUDA."""
