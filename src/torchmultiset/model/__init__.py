"""The whole model, its objectives, and how it is built, saved and loaded."""
