"""What a system that watches xdb needs: a scrape configuration, alerts, and a tracer provider."""
