"""Predictors and their training objectives: construction, saving and loading."""
