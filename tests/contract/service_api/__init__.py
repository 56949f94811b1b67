"""The service API as a raw client sees it."""
