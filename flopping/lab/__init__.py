"""What explains and compares: benchmarks, reports, experiments, probe, show, demo."""
