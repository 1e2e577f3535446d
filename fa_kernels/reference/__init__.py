"""The specification in NumPy: the algorithms as the papers write them, tile by tile."""
