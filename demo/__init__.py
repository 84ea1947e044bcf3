"""A serving package is made trainable, and held against Hugging Face: ``python -m demo``."""
