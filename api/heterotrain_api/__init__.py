"""What users write and what the operator and the trainer agree on. Imports pydantic and nothing else."""
