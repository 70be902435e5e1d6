"""Pictures of one text under two tokenizers, as HTML, in a terminal and as a figure; and other
results as pages.

`texts` and `passage` have the data of a picture, `layout` places its tokens, and `html`, `terminal`
and `figure` draw them. `statistics` counts how the tokens of two tokenizers overlap in many texts,
`charts` draws the curves of training runs, and `noise` reports what a filter has omitted.
"""
