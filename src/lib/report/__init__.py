"""What the comparing notebook computes and shows: statistics, bills, diagnostics, tables, pictures."""
