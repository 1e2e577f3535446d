"""Decks and a handout that need no kernel and no network: `python -m fa_kernels slides | handout`.

`slides/talk.md` is the one text behind both decks and the handout.
"""
