"""The commands of `vocagno`: for each, a function that adds its options and one that runs it."""
