"""The model: roles, the brains they talk to, and the two in-process engines. Nothing here knows Ray."""
