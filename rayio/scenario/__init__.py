"""WHAT to emulate, as humans write it: sections of values, distributions, and the arithmetic that follows from them."""
