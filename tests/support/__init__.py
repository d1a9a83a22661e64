"""Small drivers shared by end-to-end tests and benchmarks."""
