"""What redraws the paper's figures and carries out studies."""
