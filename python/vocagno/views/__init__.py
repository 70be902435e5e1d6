"""Pictures of one text under two tokenizers, as HTML, in a terminal and as a figure.

`texts` and `passage` have the data, `layout` places the tokens, and the other modules draw them.
"""
