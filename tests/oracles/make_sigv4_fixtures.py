#!/usr/bin/env python3
"""Records what botocore, AWS's own library, makes of requests to S3, for src/object_store/signature_test.cpp.

    python tests/oracles/make_sigv4_fixtures.py src/object_store/testdata/signatures.json

Paths are encoded here by urllib, so that the test checks the encoding too. Made with botocore 1.44.5.
"""
import datetime
import json
import sys
from unittest import mock
from urllib.parse import quote

import botocore
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

ID, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
TOKEN = "IQoJb3JpZ2luX2VjEJr//////////wEaCXVzLWVhc3QtMSJHMEUCIQD+token/with=odd+characters=="
EPOCHS = [1369353600, 1440938160, 1764000551, 951868799, 4102444800]  # the last second of a 29 February among them


def case(name, method="GET", key="", host="bucket.s3.eu-west-1.amazonaws.com", base="", query=(), headers=(), payload="", token="", region="eu-west-1",
         epoch=EPOCHS[0], scheme="https", unsigned=False):
    """One request as the client describes it, and as botocore signs it. `base` is the path before the key."""
    path = base + ("/" + quote(key, safe="/-_.~") if key else "") or "/"
    search = "&".join(f"{quote(k, safe='-_.~')}={quote(v, safe='-_.~')}" for k, v in query)
    request = AWSRequest(method=method, url=f"{scheme}://{host}{path}{'?' + search if search else ''}", data=payload.encode(), headers=dict(headers))
    signer = S3SigV4Auth(Credentials(ID, SECRET, token or None), "s3", region)
    if unsigned:  # which botocore does only under conditions that would change the request
        signer._should_sha256_sign_payload = lambda _: False
    now = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc)
    with mock.patch("botocore.auth.get_current_datetime", lambda: now):
        signer.add_auth(request)
    return {"name": name, "method": method, "host": host, "base": base, "key": key, "query": [list(q) for q in query], "headers": [list(h) for h in headers],
            "payload": payload, "token": token, "region": region, "epoch": epoch, "unsigned": unsigned, "path": path,
            "canonical_query": signer.canonical_query_string(request), "date": request.headers["X-Amz-Date"],
            "content_sha256": request.headers["X-Amz-Content-SHA256"], "authorization": request.headers["Authorization"]}


def cases():
    local = {"host": "127.0.0.1:9000", "base": "/bucket", "scheme": "http", "region": "us-east-1"}
    yield case("plain get", key="step_00001000/metadata.bin")
    yield case("head", "HEAD", "step_00001000/data_00000.bin", epoch=EPOCHS[1])
    yield case("delete", "DELETE", "a", epoch=EPOCHS[2])
    yield case("empty put", "PUT", "empty")
    yield case("put", "PUT", "text", payload="Welcome to Amazon S3.", headers=[("content-md5", "XrY7u+Ae7tCTyyK7j1rNww==")])
    yield case("put with a checksum", "PUT", "text", payload="x" * 5000, headers=[("x-amz-checksum-sha256", "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=")])
    yield case("put only if absent", "PUT", "text", payload="{}", headers=[("if-none-match", "*"), ("x-amz-meta-ingot-mark", "00ff")])
    yield case("range", key="big", headers=[("range", "bytes=8388608-16777215"), ("if-match", '"d41d8cd98f00b204e9800998ecf8427e-3"')])
    yield case("session token", key="a", token=TOKEN)
    yield case("session token and payload", "PUT", "a/b/c", token=TOKEN, payload="héllo", epoch=EPOCHS[3])
    yield case("unsigned payload", "PUT", "a", payload="anything", unsigned=True)
    yield case("unsigned payload with a token", "PUT", "a", payload="anything", unsigned=True, token=TOKEN)
    yield case("spaces and plus", key="a b+c  d")
    yield case("reserved characters", key="!*'();:@&=+$,/?#[]\"<>\\^`{|}%")
    yield case("unreserved characters", key="AZaz09-._~")
    yield case("already escaped", key="a%20b%2Fc%zz")
    yield case("dots", key="a/./b/../c/.")
    yield case("slashes", key="/a//b///")
    yield case("unicode", key="Zwölf/Boxkämpfer/速い/😀/e\u0301")
    yield case("controls", key="a\tb\nc\x01\x7f")
    yield case("bucket itself", query=[("list-type", "2")])
    yield case("list", query=[("list-type", "2"), ("prefix", "runs/a b/"), ("delimiter", "/"), ("encoding-type", "url")])
    yield case("list on", query=[("list-type", "2"), ("prefix", ""), ("continuation-token", "1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=+~")])
    yield case("query order", query=[("b", "2"), ("a", "2"), ("a", "1"), ("B", "0"), ("a-", ""), ("a.b", "x"), ("é", "ü&=")])
    yield case("query without a value", "POST", "big", query=[("uploads", "")])
    yield case("part", "PUT", "big", query=[("partNumber", "10000"), ("uploadId", "VXBsb2FkIElE/+=&~.x")], payload="p" * 100)
    yield case("complete", "POST", "big", query=[("uploadId", "2~abc")], payload="<CompleteMultipartUpload/>", headers=[("content-type", "application/xml")])
    yield case("delete many", "POST", query=[("delete", "")], payload="<Delete/>", headers=[("content-type", "application/xml"), ("content-md5", "AAAA==")])
    yield case("header spaces", key="a", headers=[("x-amz-meta-a", "  two  spaces   inside "), ("x-amz-meta-b", "")])
    yield case("header order", key="a", headers=[("x-amz-meta-z", "1"), ("range", "bytes=0-1"), ("x-amz-meta-a", "2"), ("content-type", "text/plain")])
    yield case("path style with a port", key="a/b c", **local)
    yield case("path style bucket", query=[("list-type", "2"), ("prefix", "a/")], **local)
    yield case("path style put", "PUT", "a+b", payload="12345", token=TOKEN, **local)
    yield case("path below an endpoint", key="a b", host="store.example", base="/s3%20api/bucket", region="de-1")
    yield case("far future", key="a", epoch=EPOCHS[4], region="cn-north-1", host="bucket.s3.cn-north-1.amazonaws.com.cn")


if __name__ == "__main__":
    recorded = {"botocore": botocore.__version__, "access_key_id": ID, "secret_access_key": SECRET, "cases": list(cases())}
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(recorded, file, indent=1)
        file.write("\n")
    print(len(recorded["cases"]), "cases")
