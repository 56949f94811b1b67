"""Runs the sign-up example and prints the spans of its client and worker; needs the package `opentelemetry-sdk`."""

import runpy

# [start:setup]
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

provider = TracerProvider(resource=Resource({"service.name": "sign-up"}))
provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(provider)
# [end:setup]

if __name__ == "__main__":
    runpy.run_module("examples.user_signup", run_name="__main__")
