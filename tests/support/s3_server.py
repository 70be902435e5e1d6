"""An S3 server on this machine (moto), and users of it."""

import json
import logging
import urllib.request

import pytest

BUCKET = "texts"


class S3Server:
    """Holds one bucket. Credentials are in the environment, as `monkeypatch` sets it."""

    def __init__(self, monkeypatch):
        pytest.importorskip("s3fs", reason="needs s3fs")
        pytest.importorskip("flask_cors", reason="moto's server needs flask and flask-cors")
        server = pytest.importorskip("moto.server", reason="needs moto[s3]")
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._environment = monkeypatch
        self._server = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        for name, value in {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",  # nothing but this machine is asked
            "AWS_CONFIG_FILE": "nowhere",
            "AWS_SHARED_CREDENTIALS_FILE": "nowhere",
            "AWS_MAX_ATTEMPTS": "1",
            "NO_PROXY": "127.0.0.1",
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("AWS_PROFILE", raising=False)
        self.become({"AccessKeyId": "tests", "SecretAccessKey": "tests"})
        self._client("s3").create_bucket(Bucket=BUCKET)

    def put(self, folder, prefix):
        """Uploads the files of a folder. Returns its address."""
        s3 = self._client("s3")
        for path in folder.iterdir():
            s3.upload_file(str(path), BUCKET, f"{prefix}/{path.name}")
        return f"s3://{BUCKET}/{prefix}"

    def objects(self, prefix):
        """The bytes of each object of a folder, by its path there, but for claims."""
        s3 = self._client("s3")
        entries = s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/").get("Contents", [])
        names = [entry["Key"] for entry in entries if ".locks" not in entry["Key"]]
        read = {name: s3.get_object(Bucket=BUCKET, Key=name)["Body"].read() for name in names}
        return {name.removeprefix(f"{prefix}/"): content for name, content in read.items()}

    def change(self, name, content):
        """Replaces an object, or deletes it (None)."""
        where = {"Bucket": BUCKET, "Key": name}
        if content is None:
            self._client("s3").delete_object(**where)
        else:
            self._client("s3").put_object(**where, Body=content)

    def lead_nowhere(self, url="http://127.0.0.1:9"):
        """Makes the server dead for clients to come, or (`url`) alive again."""
        self._environment.setenv("AWS_ENDPOINT_URL", url)
        self.become({"AccessKeyId": "tests", "SecretAccessKey": "tests"})

    def user(self, *actions):
        """The credentials of a new user who may do these (`s3:ListBucket`), and no more."""
        iam = self._client("iam")
        name = f"user-{len(iam.list_users()['Users'])}"
        iam.create_user(UserName=name)
        if actions:
            rule = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
            policy = json.dumps({"Version": "2012-10-17", "Statement": [rule]})
            iam.put_user_policy(UserName=name, PolicyName="rights", PolicyDocument=policy)
        return iam.create_access_key(UserName=name)["AccessKey"]

    def become(self, user):
        """Puts credentials into the environment, or removes them."""
        from s3fs import S3FileSystem

        S3FileSystem.clear_instance_cache()  # it keeps listings, and the credentials
        for name, key in (
            ("AWS_ACCESS_KEY_ID", "AccessKeyId"),
            ("AWS_SECRET_ACCESS_KEY", "SecretAccessKey"),
        ):
            if user is None:
                self._environment.delenv(name, raising=False)
            else:
                self._environment.setenv(name, user[key])

    def check_rights(self, *, on):
        """Whether requests are refused that their user has no rights for."""
        self._post("reset-auth", b"0" if on else b"inf")

    def _post(self, name, data=b""):
        request = urllib.request.Request(
            f"{self.url}/moto-api/{name}", data=data, headers={"Content-Type": "text/plain"}
        )
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).close()

    def stop(self):
        """Stops the server, unless it is stopped."""
        if self._server is not None:
            self.check_rights(on=False)
            self._post("reset")  # the next one in this process would have these objects
            self._server.stop()
            self._server = None

    def _client(self, service):
        import boto3

        return boto3.client(service)
