"""Stand-ins for the expensive parts: a tier, an engine, a model."""
