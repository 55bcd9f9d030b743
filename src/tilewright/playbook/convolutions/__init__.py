"""Convolutions: what they are as a record, and the structures that write them."""
