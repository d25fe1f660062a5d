"""What is measured, and the plain implementations it is measured against."""
