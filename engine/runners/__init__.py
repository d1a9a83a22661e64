"""One file a kind of runner, exporting `open`: it owns the weights and KV tensors of a lane and runs its steps."""
