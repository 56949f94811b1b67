"""Flight and hotel are booked side by side, with retries, and called off together if one cannot be had."""
