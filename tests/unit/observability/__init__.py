"""What server and worker tell operators about themselves."""
