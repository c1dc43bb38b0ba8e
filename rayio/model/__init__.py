"""The model: roles and the state machines that they use. Nothing here depends on Ray."""
