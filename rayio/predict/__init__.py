"""What would happen: a run's own costs and times as a scenario, so that the virtual clock predicts the next run."""
