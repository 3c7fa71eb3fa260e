"""Reads one AWS request and writes one answer, in whatever protocol the service speaks.

The shapes are botocore's own, so a parameter has the same name here as in the service's API
reference. It must not know what any call does.
"""

import io
import json
import time
import urllib.parse
import uuid
from functools import lru_cache
from xml.sax.saxutils import escape

import botocore.parsers
import botocore.serialize
from moto.core.parse import PROTOCOL_PARSERS
from moto.core.request import Request, determine_request_protocol
from moto.core.routing import get_service_router
from moto.core.serialize import get_serializer_class
from moto.core.utils import get_service_model


class Refused(Exception):
    """A call that the service answers with an error."""

    def __init__(self, code, message, status=400):
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.status = code, message, status


@lru_cache(maxsize=None)
def model_of(service):
    return get_service_model(service)


class Answer:
    """What goes back to the caller."""

    def __init__(self, status, headers, body):
        self.status, self.headers = status, [pair for pair in headers if wanted(pair[0])]
        self.body = body.encode() if isinstance(body, str) else body


def wanted(header):
    return header.lower() not in ("content-length", "date", "server", "connection", "status")


class Call:
    """One request: whose service, which action, with which parameters."""

    def __init__(self, environ):
        self.environ = environ
        self.at = time.monotonic()
        # Of one that a fault holds: its number, and whether it gets lost.
        self.number, self.lost = None, False
        length = int(environ.get("CONTENT_LENGTH") or 0)
        self.body = environ["wsgi.input"].read(length) if length else b""
        environ["wsgi.input"] = io.BytesIO(self.body)
        scope = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2]
        scope = scope.partition(",")[0].split("/")
        if len(scope) != 5:
            raise Refused("MissingAuthenticationToken", "the request is not signed", 403)
        self.key, _, self.region, self.service, _ = scope
        self.model = model_of(self.service)
        request = Request(dict(environ, **{"wsgi.input": io.BytesIO(self.body)}))
        content = environ.get("CONTENT_TYPE", "")
        self.protocol = determine_request_protocol(self.model, content)
        # A path with a name in it is what says the action of a REST service.
        path = {}
        if self.protocol in ("query", "ec2"):
            form = dict(urllib.parse.parse_qsl(self.body.decode()))
            self.action = form.get("Action", "")
        elif "HTTP_X_AMZ_TARGET" in environ:
            self.action = environ["HTTP_X_AMZ_TARGET"].rpartition(".")[2]
        else:
            operation, path = get_service_router(self.service).match(request)
            self.action = operation.name
        self.operation = self.model.operation_model(self.action)
        parser = PROTOCOL_PARSERS[self.protocol](self.operation, map_type=dict)
        self.params = parser.parse(
            {
                "method": request.method,
                "values": request.values,
                "headers": request.headers,
                "body": request.data,
                "url_path": request.path,
                "url_params": path,
            }
        )

    @property
    def name(self):
        """As a policy names it."""
        return f"{self.service}:{self.action}"

    @property
    def agent(self):
        """The header `User-Agent` of the caller."""
        return self.environ.get("HTTP_USER_AGENT", "")

    def is_from(self, app):
        """Whether the caller's client calls itself so."""
        return app in self.agent.split()

    def same(self):
        """All that two calls must share to be the same call; not the token that names them."""
        params = {name: value for name, value in self.params.items() if name != "ClientToken"}
        return json.dumps(params, sort_keys=True, default=str)

    def with_params(self, params):
        """The environment of the same call with other parameters; for EC2 alone."""
        serializer = botocore.serialize.create_serializer("ec2")
        form = serializer.serialize_to_request(params, self.operation)["body"]
        body = urllib.parse.urlencode(form).encode()
        return dict(
            self.environ, CONTENT_LENGTH=str(len(body)), **{"wsgi.input": io.BytesIO(body)}
        )

    def read(self, answer):
        """An answer of the service as a value."""
        parser = botocore.parsers.create_parser(self.model.metadata["protocol"])
        raw = {"status_code": answer.status, "headers": dict(answer.headers), "body": answer.body}
        return parser.parse(raw, self.operation.output_shape)

    def write(self, result):
        """A value as the service answers with it."""
        serializer = get_serializer_class(self.model.service_name, self.protocol)
        written = serializer(self.operation).serialize(result)
        return Answer(written["status_code"], written["headers"].items(), written["body"])

    def refuse(self, refused):
        """An error as the service's protocol puts it."""
        code, message = refused.code, refused.message
        text = f"<Code>{code}</Code><Message>{escape(message)}</Message>"
        xml = [("Content-Type", "text/xml;charset=UTF-8")]
        request = uuid.uuid4()
        if self.protocol == "ec2":
            body = f"<Errors><Error>{text}</Error></Errors><RequestID>{request}</RequestID>"
            return Answer(refused.status, xml, f"<Response>{body}</Response>")
        if self.protocol == "query":
            body = f"<Error><Type>Sender</Type>{text}</Error><RequestId>{request}</RequestId>"
            return Answer(refused.status, xml, f"<ErrorResponse>{body}</ErrorResponse>")
        headers = [("Content-Type", "application/x-amz-json-1.1"), ("x-amzn-ErrorType", code)]
        if "awsQueryCompatible" in self.model.metadata:
            headers.append(("x-amzn-query-error", f"{code};Sender"))
        body = json.dumps({"__type": code, "message": message})
        return Answer(refused.status, headers, body)

    def denied(self, action):
        """The caller lacks the right to an action, which may be another than the call's."""
        words = f"User: arn:aws:iam::123456789012:user/{self.key} is not authorized to perform: "
        words += f"{action} because no identity-based policy allows the {action} action"
        if self.protocol == "ec2":
            words = f"You are not authorized to perform this operation. {words}"
            return Refused("UnauthorizedOperation", words, 403)
        code = "AccessDenied" if self.protocol == "query" else "AccessDeniedException"
        return Refused(code, words, 403 if self.protocol != "json" else 400)

    def throttled(self):
        if self.protocol == "ec2":
            return Refused("RequestLimitExceeded", "Request limit exceeded.", 503)
        code = "Throttling" if self.protocol == "query" else "ThrottlingException"
        return Refused(code, "Rate exceeded", 400)

    def unavailable(self):
        code = "Unavailable" if self.protocol == "ec2" else "ServiceUnavailable"
        return Refused(code, "The service is unavailable. Please try again shortly.", 503)
