"""The worker of the sign-up: `uvicorn examples.user_signup.worker:app --port 8802`."""

# [start:worker]
from examples.user_signup.process import UserSignupProcess
from xdb_sdk import Registry, Worker

registry = Registry()
registry.add_process(UserSignupProcess)

app = Worker(registry)
# [end:worker]
