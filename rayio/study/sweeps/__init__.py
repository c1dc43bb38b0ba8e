"""One scenario at many points: what changes from point to point, running what is missing, and what the points say."""
