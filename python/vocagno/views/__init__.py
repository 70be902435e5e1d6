"""Pictures of one text under two tokenizers, as HTML and in a terminal; `layout` places tokens."""
