"""HBM traffic: closed formulas (model), and the same bytes counted in the NumPy tiles (counter)."""
