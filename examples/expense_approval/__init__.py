"""An expense claim waits for its approver, and is escalated if nobody answers: a process without a table."""
