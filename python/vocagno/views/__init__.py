"""How two tokenizers cut a text, drawn: as HTML, and in a terminal. `groups` says what is drawn."""
