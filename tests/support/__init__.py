"""What the tests share: servers they start and stop themselves, and rows to load."""
