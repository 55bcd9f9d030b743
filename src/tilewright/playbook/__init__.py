"""The expertise that needs no model: words to a reference, and a PyTorch function to kernel files."""
