"""What trainify promises in numbers, held against others: ``python -m benchmarks``."""
