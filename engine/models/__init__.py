"""Architectures: one file each, turning a Hugging Face config into a `ModelSpec` and naming its weights."""
