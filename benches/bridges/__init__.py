"""Other trainers, each with our weights and in an environment of its own (`make bridges`)."""
