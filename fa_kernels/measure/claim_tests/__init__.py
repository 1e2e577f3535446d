"""Tests of the claims in data/paper/claims.csv: a verdict and its sentence, from data at hand."""
