"""The committer and the use cases of the service API: what turns requests and answers into transactions."""
