"""The OpenAPI documents of the service API and of the worker API, made from the wire models.

`python -m server_stub.api.openapi` writes them beside this module, where the server serves them from.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core.core_schema import EnumSchema

from server_stub.api.batch import LINE_TYPES
from server_stub.api.operations import OPERATIONS
from xdb_sdk.protocol import (
    BATCH_CONTENT_TYPE,
    DEADLINE_HEADER,
    EXECUTE_PATH,
    IDEMPOTENCY_KEY_HEADER,
    PROCESS_CLOSED_PATH,
    PROTOCOL_VERSION,
    RPC_PATH,
    SERVICE_BATCH_PATH,
    SERVICE_PREFIX,
    WAIT_UNTIL_PATH,
    WORKER_BATCH_PATH,
    AnswerLine,
    ErrorBody,
    ErrorSubType,
    ExecuteAnswer,
    ExecuteCall,
    ExecuteLine,
    GetHistoryAnswer,
    GetHistoryRequest,
    ProcessClosedCall,
    ProcessClosedLine,
    ReviseAnswer,
    RpcAnswer,
    RpcCall,
    RpcLine,
    WaitUntilAnswer,
    WaitUntilCall,
    WaitUntilLine,
    WorkerErrorBody,
)

Document: TypeAlias = dict[str, Any]

SERVICE_DOCUMENT = "openapi-service.json"
WORKER_DOCUMENT = "openapi-worker.json"

_JSON = "application/json"
_REF = "#/components/schemas/"
_DESIGN_REFERENCE = re.compile(r"\s*\(semantics [^)]*\)")

_CONVENTIONS = """
Bodies are JSON in UTF-8. Fields that hold their default may be left out in both directions, and unknown fields are
ignored in both directions. A name ending in `Ms` is an integer of milliseconds; instants (`...AtMs`, `...FromMs`,
`...BeforeMs`) count from 1970-01-01T00:00Z. Ids and names have 1 to 255 bytes of UTF-8 and no character NUL.

A field without a type is a value of the user, any JSON, that is passed on unread. A column value is null, true, false,
a number or a string as it stands; `{"$bytes": "<base64>"}` is binary data and `{"$json": <any>}` a document.
"""

_SERVICE_DESCRIPTION = f"""
What a client asks of an xdb server. Every operation is a POST of its own path, or a line of the batch path. Whatever
goes wrong, the answer is an `ErrorBody`, whose `errorSubType` is for programs and whose `details` are for people.
{_CONVENTIONS}
By default a value may have 1 MiB as JSON, a call 4 MiB, a batch 64 MiB and 10,000 calls, and JSON may be nested 100
deep; NaN, Infinity and the character NUL are refused. What exceeds a limit is answered 400.
"""

_WORKER_DESCRIPTION = f"""
What an xdb server asks of a worker: the paths stand behind the worker URL that a process was started with. A worker
answers 200 with the answer, 406 to be given other attributes, or another status with a `WorkerErrorBody`, which makes a
failed attempt: the server repeats states by their retry policy, and tells the caller of an RPC. States may be called
several times for one attempt: the idempotency key is the same then.
{_CONVENTIONS}
"""

_BATCH_DESCRIPTION = """
Many calls in one request. The request has one call a line, the response one answer a line, in the order in which they
finish; the schemas here are those of one line. `status` and `body` of an answer are what the path of the single call
would have answered, and `retryAfterS` stands for its Retry-After header. The calls run side by side: a slow one delays
no other. A line that cannot be understood is answered 400 under its `callId`, or -1 if that cannot be read.
"""

_WORKER_BATCH_DESCRIPTION = f"""{_BATCH_DESCRIPTION}
A worker may leave this path out, and answer 404 or 405: the server then sends it single calls.
"""

_Errors: TypeAlias = Mapping[int, tuple[ErrorSubType, ...]]

_COMMON_ERRORS: _Errors = {
    400: (ErrorSubType.INVALID_REQUEST, ErrorSubType.PAYLOAD_TOO_LARGE),
    405: (ErrorSubType.METHOD_NOT_ALLOWED,),
    429: (ErrorSubType.TOO_MANY_REQUESTS,),
    500: (ErrorSubType.INTERNAL,),
    503: (ErrorSubType.UNAVAILABLE, ErrorSubType.UNKNOWN_OUTCOME),
}
_RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait before repeating.", "schema": {"type": "integer"}}}
_ALLOW = {"Allow": {"description": "The methods that the path takes.", "schema": {"type": "string"}}}
_HEADERS: Mapping[int, Document] = {405: _ALLOW, 429: _RETRY_AFTER, 503: _RETRY_AFTER}
_NOT_FOUND: _Errors = {404: (ErrorSubType.PROCESS_NOT_FOUND,)}
_REUSED: _Errors = {409: (ErrorSubType.REQUEST_ID_REUSED,)}
_NOT_RUNNING: _Errors = {
    409: (ErrorSubType.PROCESS_NOT_RUNNING, ErrorSubType.HISTORY_LIMIT, ErrorSubType.REQUEST_ID_REUSED)
}
_STARTING: _Errors = {
    409: (ErrorSubType.PROCESS_ALREADY_STARTED, ErrorSubType.REQUEST_ID_REUSED),
    424: (ErrorSubType.APP_DATABASE_WRITE_ERROR,),
}
_CALLING: _Errors = {
    423: (ErrorSubType.LOCK_NOT_ACQUIRED,),
    424: (
        ErrorSubType.WORKER_EXECUTION_ERROR,
        ErrorSubType.WORKER_TIMEOUT,
        ErrorSubType.WORKER_UNREACHABLE,
        ErrorSubType.INVALID_WORKER_RESPONSE,
        ErrorSubType.APP_DATABASE_READ_ERROR,
        ErrorSubType.APP_DATABASE_WRITE_ERROR,
    ),
}
_CALLED_ONCE = (*_NOT_RUNNING[409], ErrorSubType.RETRY_LATER)

_ERRORS: Mapping[str, _Errors] = {
    "start": _STARTING,
    "stop": {**_NOT_FOUND, **_REUSED},
    "describe": _NOT_FOUND,
    "get-history": _NOT_FOUND,
    "reset": {
        404: (ErrorSubType.PROCESS_NOT_FOUND, ErrorSubType.RESET_POINT_NOT_FOUND),
        409: (ErrorSubType.HISTORY_INCOMPLETE, ErrorSubType.PROCESS_ALREADY_STARTED, ErrorSubType.REQUEST_ID_REUSED),
    },
    "list": {},
    "publish": {**_NOT_FOUND, **_NOT_RUNNING},
    "publish-or-start": {**_STARTING, 409: (ErrorSubType.PROCESS_ALREADY_STARTED, *_NOT_RUNNING[409])},
    "rpc": {**_NOT_FOUND, **_CALLING, 409: _CALLED_ONCE},
    "rpc-or-start": {**_CALLING, 409: (ErrorSubType.PROCESS_ALREADY_STARTED, *_CALLED_ONCE)},
    "wait-for-completion": _NOT_FOUND,
    "wait-for-state-completion": _NOT_FOUND,
    "get-attributes": {**_NOT_FOUND, 424: (ErrorSubType.APP_DATABASE_READ_ERROR,)},
    "set-attributes": {**_NOT_FOUND, **_NOT_RUNNING, 424: (ErrorSubType.APP_DATABASE_WRITE_ERROR,)},
    "skip-timer": {404: (ErrorSubType.PROCESS_NOT_FOUND, ErrorSubType.TIMER_NOT_FOUND), **_NOT_RUNNING},
    "retry-state": {
        404: (ErrorSubType.PROCESS_NOT_FOUND, ErrorSubType.STATE_NOT_FOUND),
        409: (ErrorSubType.STATE_NOT_RUNNING, ErrorSubType.STATE_NOT_BACKING_OFF, *_NOT_RUNNING[409]),
    },
    "complete-state": {
        404: (ErrorSubType.PROCESS_NOT_FOUND, ErrorSubType.STATE_NOT_FOUND),
        409: (ErrorSubType.STATE_NOT_RUNNING, *_NOT_RUNNING[409]),
    },
    "pause": {**_NOT_FOUND, **_NOT_RUNNING},
    "resume": {**_NOT_FOUND, **_NOT_RUNNING},
    "update-config": {**_NOT_FOUND, **_NOT_RUNNING},
    "stop-processes": _REUSED,
    "replace-worker-url": _REUSED,
}

_WORKER_LINE_TYPES: Mapping[str, type[BaseModel]] = {
    "wait-until": WaitUntilLine,
    "execute": ExecuteLine,
    "rpc": RpcLine,
    "process-closed": ProcessClosedLine,
}

_WORKER_ERRORS: Mapping[int, str] = {
    400: "The call cannot be decoded.",
    404: "The worker has no such process type, state or RPC: a matter of deployment, repeated like other failures.",
    413: "The call is larger than the worker takes.",
    424: "The user's code raised. `retryable` false ends the attempts at once.",
    429: "The worker is full; no failed attempt.",
    500: "The worker itself has failed.",
    503: "The worker is stopping; no failed attempt.",
}


def service_document() -> Document:
    """Describe the service API."""
    paths: Document = {
        SERVICE_PREFIX + operation.name: {
            "post": {
                "operationId": operation.method,
                "tags": ["process execution"],
                "summary": _summary(operation.request_type),
                "requestBody": {"required": True, "content": _content(operation.request_type)},
                "responses": {
                    "200": _response(_summary(operation.answer_type), operation.answer_type),
                    **_error_responses({**_COMMON_ERRORS, **_ERRORS[operation.name]}),
                },
            }
        }
        for operation in OPERATIONS.values()
    }
    paths[SERVICE_BATCH_PATH] = _batch_path(_BATCH_DESCRIPTION, LINE_TYPES)
    paths[SERVICE_BATCH_PATH]["post"]["responses"] |= _error_responses({400: (ErrorSubType.PAYLOAD_TOO_LARGE,)})
    paths[f"{SERVICE_PREFIX}{{namespace}}/{{processId}}/history"] = _history_path()
    paths["/healthz"] = _health_path("Say that the server is alive, without asking the database.")
    paths["/readyz"] = _health_path("Say whether the database can be reached and has the right schema.")
    paths["/readyz"]["get"]["responses"] |= _error_responses({503: (ErrorSubType.UNAVAILABLE,)})
    models: list[type[BaseModel]] = [
        model for each in OPERATIONS.values() for model in (each.request_type, each.answer_type)
    ]
    return _document(
        "xdb service API", _SERVICE_DESCRIPTION, paths, [*models, *LINE_TYPES.values(), AnswerLine, ErrorBody]
    )


def _history_path() -> Document:
    """Describe the read of a history by its path, for those who have a browser at hand and no client."""
    parameters = [
        {"name": "namespace", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}},
        {"name": "processId", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}},
        *(
            {"name": name, "in": "query", "schema": {"type": kind}, "description": "As in `get-history`."}
            for name, kind in (("processExecutionId", "string"), ("afterEventId", "integer"), ("pageSize", "integer"))
        ),
    ]
    return {
        "get": {
            "operationId": "read_history",
            "tags": ["process execution"],
            "summary": _summary(GetHistoryRequest),
            "parameters": parameters,
            "responses": {
                "200": _response(_summary(GetHistoryAnswer), GetHistoryAnswer),
                **_error_responses({**_COMMON_ERRORS, **_NOT_FOUND}),
            },
        }
    }


def worker_document() -> Document:
    """Describe the worker API."""
    paths: Document = {
        WAIT_UNTIL_PATH: _worker_path("waitUntil", WaitUntilCall, WaitUntilAnswer),
        EXECUTE_PATH: _worker_path("execute", ExecuteCall, ExecuteAnswer),
        RPC_PATH: _worker_path("rpc", RpcCall, RpcAnswer),
        PROCESS_CLOSED_PATH: {
            "post": {
                "operationId": "processClosed",
                "tags": ["worker"],
                "summary": _summary(ProcessClosedCall),
                "requestBody": {"required": True, "content": _content(ProcessClosedCall)},
                "responses": {
                    "200": {"description": "Taken note of.", "content": {_JSON: {"schema": {"type": "object"}}}},
                    **{str(status): _error(status, _WORKER_ERRORS[status], WorkerErrorBody) for status in (400, 413)},
                },
            }
        },
        "/healthz": _health_path("Say that the worker is alive."),
    }
    paths[WORKER_BATCH_PATH] = _batch_path(_WORKER_BATCH_DESCRIPTION, _WORKER_LINE_TYPES)
    models: list[type[BaseModel]] = [
        WaitUntilAnswer,
        ExecuteAnswer,
        RpcAnswer,
        ReviseAnswer,
        WorkerErrorBody,
        AnswerLine,
    ]
    return _document("xdb worker API", _WORKER_DESCRIPTION, paths, [*_WORKER_LINE_TYPES.values(), *models])


def _worker_path(operation_id: str, call: type[BaseModel], answer: type[BaseModel]) -> Document:
    return {
        "post": {
            "operationId": operation_id,
            "tags": ["worker"],
            "summary": _summary(call),
            "parameters": [
                _header(IDEMPOTENCY_KEY_HEADER, "string", "The `context.idempotencyKey` of the call."),
                _header(DEADLINE_HEADER, "integer", "How long the server waits for the answer, in milliseconds."),
            ],
            "requestBody": {"required": True, "content": _content(call)},
            "responses": {
                "200": _response(_summary(answer), answer),
                "406": _response(_summary(ReviseAnswer), ReviseAnswer),
                **{str(status): _error(status, text, WorkerErrorBody) for status, text in _WORKER_ERRORS.items()},
            },
        }
    }


def _header(name: str, type_name: str, description: str) -> Document:
    return {"name": name, "in": "header", "description": description, "schema": {"type": type_name}}


def _batch_path(description: str, line_types: Mapping[str, type[BaseModel]]) -> Document:
    references = {operation: _REF + line.__name__ for operation, line in line_types.items()}
    line_schema = {
        "oneOf": [{"$ref": reference} for reference in references.values()],
        "discriminator": {"propertyName": "operation", "mapping": references},
    }
    return {
        "post": {
            "operationId": "batch",
            "tags": ["batch"],
            "summary": "Make many calls in one request.",
            "description": _prose(description),
            "requestBody": {"required": True, "content": {BATCH_CONTENT_TYPE: {"schema": line_schema}}},
            "responses": {
                "200": {
                    "description": "One answer for each call.",
                    "content": {BATCH_CONTENT_TYPE: {"schema": {"$ref": _REF + AnswerLine.__name__}}},
                }
            },
        }
    }


def _health_path(summary: str) -> Document:
    schema = {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}}
    return {
        "get": {
            "tags": ["health"],
            "summary": summary,
            "responses": {"200": {"description": "It is.", "content": {_JSON: {"schema": schema}}}},
        }
    }


def _error_responses(errors: Mapping[int, Iterable[ErrorSubType]]) -> Document:
    return {
        str(status): _error(status, ", ".join(f"`{sub_type}`" for sub_type in sub_types), ErrorBody)
        for status, sub_types in sorted(errors.items())
    }


def _error(status: int, description: str, model: type[BaseModel]) -> Document:
    response = _response(description, model)
    if status in _HEADERS:
        response["headers"] = _HEADERS[status]
    return response


def _response(description: str, model: type[BaseModel]) -> Document:
    return {"description": description, "content": _content(model)}


def _content(model: type[BaseModel]) -> Document:
    return {_JSON: {"schema": {"$ref": _REF + model.__name__}}}


def _summary(model: type[BaseModel]) -> str:
    return _prose(model.__doc__ or "").split("\n\n")[0].replace("\n", " ")


def _document(title: str, description: str, paths: Document, models: Iterable[type[BaseModel]]) -> Document:
    sources: list[tuple[type[BaseModel], Literal["validation"]]] = [(model, "validation") for model in models]
    _, schemas = models_json_schema(sources, ref_template=_REF + "{model}", schema_generator=_SchemaGenerator)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": str(PROTOCOL_VERSION),
            "description": _prose(description),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": {name: _without_design(schema) for name, schema in sorted(schemas["$defs"].items())}},
    }


class _SchemaGenerator(GenerateJsonSchema):
    """Leaves out the titles that only repeat the names of fields, and second names of the members of enums."""

    def enum_schema(self, schema: EnumSchema) -> JsonSchemaValue:
        described = super().enum_schema(schema)
        if "enum" in described:
            described["enum"] = list(dict.fromkeys(described["enum"]))
        return described

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def get_title_from_name(self, name: str) -> str:
        return name


def _without_design(schema: Document) -> Document:
    """Reword a description without its references to the design, which readers of the document do not have."""
    if "description" in schema:
        schema["description"] = _prose(schema["description"])
    return schema


def _prose(text: str) -> str:
    return _DESIGN_REFERENCE.sub("", text).strip()


def write_documents(directory: Path) -> None:
    """Write both documents."""
    for name, document in ((SERVICE_DOCUMENT, service_document()), (WORKER_DOCUMENT, worker_document())):
        directory.joinpath(name).write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    write_documents(Path(__file__).parent)
