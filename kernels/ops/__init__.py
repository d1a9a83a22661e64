"""One file an op: its signature, contract and reference body."""
