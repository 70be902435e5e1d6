"""Studies: many training runs that differ in a few options, carried out and compared."""
