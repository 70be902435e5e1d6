"""Pictures of what was measured, drawn with matplotlib; `style` has what they share."""
