"""Files of engines: answers, log-probabilities, counts of drafts, pages of /metrics."""
