"""A model's files: its Hugging Face config, and sizes and devices that a user describes."""
