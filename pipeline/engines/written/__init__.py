"""What engines write: answers, log-probabilities, counts of drafts, pages of /metrics."""
