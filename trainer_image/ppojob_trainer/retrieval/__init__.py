"""Search over a corpus: indices by words and by vectors, and Search-R1's way to ask."""
