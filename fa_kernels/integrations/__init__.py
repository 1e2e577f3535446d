"""The attention as other libraries take it: torch with autograd, Hugging Face's models."""
