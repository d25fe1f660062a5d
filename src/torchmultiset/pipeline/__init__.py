"""From a config and a file to a trained model in a folder: what `multiset train` runs, and what reads its results."""
