"""Retrieval over a corpus: BM25 and dense indices, with Search-R1's HTTP interface."""
