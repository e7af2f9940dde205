"""Images for classification: reading, listing, splitting, loading, checking."""
