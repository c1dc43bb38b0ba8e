"""The engines: the model carried out on this process, on the virtual clock, and on Ray."""
