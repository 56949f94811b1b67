"""The worker of the claims: `uvicorn examples.expense_approval.worker:app --port 8802`."""

from examples.expense_approval.process import ExpenseApprovalProcess
from xdb_sdk import Registry, Worker

registry = Registry()
registry.add_process(ExpenseApprovalProcess)

app = Worker(registry)
