"""Tables and figures of data, predictions and models."""
