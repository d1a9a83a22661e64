"""Weights as checkpoints quantise them: which layout a folder has, and its matrices as codes and scales."""
