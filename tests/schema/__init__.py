"""The system tables on each database: installed, checked, and upgraded from what earlier releases wrote."""
