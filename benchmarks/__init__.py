"""Benchmarks, and the plain reference implementations they compare with."""
