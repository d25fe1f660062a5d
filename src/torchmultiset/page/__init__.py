"""A local page that shows a policy at work: `multiset demo`."""
