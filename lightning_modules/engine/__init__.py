"""What stands between the schemes and Lightning: processes, steps, rows that were seen."""
