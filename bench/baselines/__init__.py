"""Other ways to do the same, written for comparison only."""
