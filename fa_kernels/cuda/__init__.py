"""CUDA: plan a launch (needs no GPU), compile its kernel with NVRTC, launch it, checked."""
