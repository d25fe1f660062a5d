"""The local web page of `multiset demo`, which shows a model's predictions step by step."""
