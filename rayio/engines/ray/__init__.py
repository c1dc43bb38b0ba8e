"""The model on Ray: the same roles, each in an actor. The only room that imports ray."""
