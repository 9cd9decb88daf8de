"""A run whose checkpoints lie in a bucket of moto's server. Needs $INGOT_BINARY; runs with the Python of .deps/venv."""
import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "end_to_end")]
os.environ.setdefault("OBJECT_STORE_EXERCISE", "unused")

import boto3  # noqa: E402
from faulty_store import ID, REGION, SECRET, FaultyStore, answers, close, reset  # noqa: E402
from harness import INGOT, ingot, losses, run_chosen, wait_for_steps  # noqa: E402
from object_store_test import Moto  # noqa: E402


def account(server):
    return os.environ | {"AWS_ACCESS_KEY_ID": ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION, "AWS_ENDPOINT_URL": server.url, "NO_PROXY": "*"}


def steps_in(keys):
    return sorted({key.split("step_")[1].split("/")[0] for key in keys if key.endswith("/metadata.bin")})


def a_run_lives_in_a_bucket_and_goes_on_with_other_ranks(w):
    """moto: saved by one rank, resumed by two from the bucket alone; retention; and what lies there is a checkpoint when copied to disk."""
    config = w.config("bucket", **{"train.precision": "fp64", "checkpoint.folder": "s3://bucket/runs/a", "checkpoint.keep": 2})
    straight = w.config("straight", **{"train.precision": "fp64"})
    with Moto() as moto:
        client = boto3.client("s3", endpoint_url=moto.url, aws_access_key_id=ID, aws_secret_access_key=SECRET, region_name=REGION)
        ingot("train", config, "--no-forecast", "--run-dir", w.path / "a", "--set", "train.steps=6", "--set", "optimizer.schedule=constant", env=account(moto))
        ingot("launch", "-n", 2, "--", INGOT, "train", config, "--no-forecast", "--run-dir", w.path / "a", "--set", "optimizer.schedule=constant", env=account(moto))
        assert [step for step, *_ in losses(w.path / "a")] == list(range(1, 13))
        keys = [o["Key"] for o in client.list_objects_v2(Bucket="bucket", Prefix="runs/a/")["Contents"]]
        assert steps_in(keys) == ["00000009", "00000012"], keys
        assert not (w.path / "a" / "checkpoints").exists()
        url = "s3://bucket/runs/a"
        assert json.loads(ingot("checkpoint", "verify", url, "--json", env=account(moto))[0])["sound"]
        shown = json.loads(ingot("checkpoint", "inspect", f"{url}/step_00000012", "--json", env=account(moto))[0])
        assert shown["step"] == 12, shown
        ingot("checkpoint", "diff", url, f"{url}/step_00000009", env=account(moto), status=3)
        copy = w.path / "copy" / "step_00000012"
        copy.mkdir(parents=True)
        for key in keys:
            if "/step_00000012/" in key:
                (copy / key.rsplit("/", 1)[1]).write_bytes(client.get_object(Bucket="bucket", Key=key)["Body"].read())
        ingot("checkpoint", "verify", copy)
        ingot("checkpoint", "diff", copy, url, env=account(moto))
        ingot("checkpoint", "prune", url, "--keep", 1, env=account(moto))
        keys = [o["Key"] for o in client.list_objects_v2(Bucket="bucket", Prefix="runs/a/")["Contents"]]
        assert steps_in(keys) == ["00000012"] and all("/step_00000012/" in key for key in keys), keys
        ingot("train", straight, "--no-forecast", "--run-dir", w.path / "constant", "--set", "optimizer.schedule=constant")
        ingot("checkpoint", "diff", copy, w.path / "constant", "--atol", 1e-9)


def a_store_that_fails_costs_time_or_a_checkpoint_never_the_run(w):
    """Overload, broken connections: tried again. No right to write any more: that save fails by name, training goes on, the old one is resumed."""
    config = w.config("faulty", **{"train.precision": "fp64", "checkpoint.folder": "s3://bucket/runs/b", "checkpoint.keep": 2, "optimizer.schedule": "constant"})
    straight = w.config("straight-b", **{"train.precision": "fp64", "optimizer.schedule": "constant"})
    ingot("train", straight, "--no-forecast", "--run-dir", w.path / "straight-b")
    with FaultyStore() as store:
        for act in (answers(500, "InternalError"), answers(503, "SlowDown"), close, reset):
            store.fail(act, 1, lambda request: request.command == "PUT")
        ingot("train", config, "--no-forecast", "--run-dir", w.path / "b", "--set", "train.steps=6", env=account(store))
        assert not store.faults and steps_in(store.objects) == ["00000003", "00000006"], (store.faults, list(store.objects))
        # Run 2 may read, but not write, until its last save.
        forbidden = [True]
        store.fail(answers(403, "AccessDenied"), 1000, lambda request: forbidden[0] and request.command in ("PUT", "POST") and "delete" not in request.query)
        _, err = ingot("train", config, "--no-forecast", "--run-dir", w.path / "b", "--set", "train.steps=11", env=account(store), status=1)
        assert "resumed from s3://bucket/runs/b/step_00000006" in err, err
        assert "saving the checkpoint of step 9 failed" in err and "AccessDenied" in err and "training goes on" in err, err
        assert "the last checkpoint (step 11) could not be saved" in err and steps_in(store.objects) == ["00000003", "00000006"], err
        forbidden[0] = False
        ingot("train", config, "--no-forecast", "--run-dir", w.path / "b", env=account(store))
        assert steps_in(store.objects) == ["00000009", "00000012"], list(store.objects)
        assert losses(w.path / "b") == losses(w.path / "straight-b")


def a_second_job_on_a_folder_of_a_bucket_is_told_who_has_it(w):
    """From run directories of their own. When the first one was killed, the next may come at once: on this machine that is seen."""
    config = w.config("shared", **{"train.steps": 100000, "checkpoint.every": 50, "checkpoint.folder": "s3://bucket/runs/c", "resilience.run_lock_wait_s": 0.2})
    with FaultyStore() as store:
        first = subprocess.Popen([INGOT, "train", config, "--no-forecast", "--run-dir", w.path / "c1"], env=account(store), stderr=subprocess.DEVNULL)
        try:
            wait_for_steps(w.path / "c1", 2, first)
            _, err = ingot("train", config, "--no-forecast", "--run-dir", w.path / "c2", env=account(store), status=2)
            assert "s3://bucket/runs/c/.lock" in err and f"is in use by process {first.pid} on " in err, err
        finally:
            first.kill()
            first.wait(60)
        ingot("train", config, "--no-forecast", "--run-dir", w.path / "c2", "--stop-after", 2, env=account(store))
        assert "runs/c/.lock" not in store.objects, list(store.objects)


class Instance(http.server.BaseHTTPRequestHandler):
    """The metadata service of an EC2 instance with a role."""
    def answer(self, status, body=""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_PUT(self):
        self.answer(200 if self.path == "/latest/api/token" else 404, "session")

    def do_GET(self):
        roles = "/latest/meta-data/iam/security-credentials/"
        keys = {"Code": "Success", "AccessKeyId": ID, "SecretAccessKey": SECRET, "Token": "of/the+role=", "Expiration": "2099-01-01T00:00:00Z"}
        answers = {roles: "a-role", roles + "a-role": json.dumps(keys)}
        allowed = self.headers.get("X-aws-ec2-metadata-token") == "session"
        self.answer(401 if not allowed else 200 if self.path in answers else 404, answers.get(self.path, ""))

    def log_message(self, *_):
        pass


def a_run_on_an_instance_has_the_keys_of_its_role(w):
    """Without any in the environment or in files; and with the service switched off it says what it looked for."""
    config = w.config("role", **{"train.steps": 3, "checkpoint.folder": "s3://bucket/runs/d"})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Instance)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with FaultyStore() as store:
        store.accounts = {ID: (SECRET, "of/the+role=")}
        env = {k: v for k, v in account(store).items() if "ACCESS_KEY" not in k}
        env |= {"HOME": str(w.path), "AWS_EC2_METADATA_DISABLED": "false", "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}"}
        ingot("train", config, "--no-forecast", "--run-dir", w.path / "d", env=env)
        assert steps_in(store.objects) == ["00000003"], list(store.objects)
        _, err = ingot("checkpoint", "inspect", "s3://bucket/runs/d", env=env | {"AWS_EC2_METADATA_DISABLED": "true"}, status=2)
        assert "no keys for the object store" in err and "AWS_WEB_IDENTITY_TOKEN_FILE" in err, err
    server.shutdown()


TESTS = [a_run_on_an_instance_has_the_keys_of_its_role, a_second_job_on_a_folder_of_a_bucket_is_told_who_has_it, a_store_that_fails_costs_time_or_a_checkpoint_never_the_run, a_run_lives_in_a_bucket_and_goes_on_with_other_ranks]

if __name__ == "__main__":
    run_chosen(TESTS)
