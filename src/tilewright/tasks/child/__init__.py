"""What runs inside the reference's process, beside the reference."""
