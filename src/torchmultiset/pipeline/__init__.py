"""From a config and a data file to a trained and tested model in a folder: the code behind `multiset train`."""
