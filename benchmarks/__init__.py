"""What Epochal's speed is measured with: ``make bench`` runs all of it and writes ``RESULTS.md`` beside this file."""
