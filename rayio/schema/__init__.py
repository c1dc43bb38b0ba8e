"""How a section of a scenario is written: fields, kinds by name, distributions."""
