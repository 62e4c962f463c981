"""What is accepted of a drafter in fact, beside what its certificates promise."""
