"""What `vocagno COMMAND` does: a module for each kind of command, a class for each command."""
