"""Holds rendered user data against the parsers of its formats that are not ours.

    check.py scripts DIRECTORY    MIME by `email`, TOML by `tomllib`, bash by `bash -n`, PowerShell
                                  by structure
    check.py yaml DIRECTORY       YAML by PyYAML; exits with 3 where that is not installed
    check.py cloud-init DIRECTORY archives, scripts and cloud-config by cloud-init's own reader, plain
                                  and with gzip; exits with 3 where that is not installed

Each file of the directory is one user data; its ending says what it is: `mime`, `toml`, `sh`, `ps1`,
`yaml`. Prints `ok NAME` for each, and exits with 1 on the first that is not accepted.
"""

import email
import email.policy
import gzip
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

# A file within a script, as src/bootstrap/join_script.rs writes it.
WITHIN = re.compile(r"<<'OUTRIGGER'\n(.*?)^OUTRIGGER$", re.DOTALL | re.MULTILINE)


def bash(text: str) -> None:
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
    assert done.returncode == 0 and not done.stderr, done.stderr


def parts(data: bytes) -> list[tuple[str, str]]:
    """The parts of an archive by type. No reader may find anything odd in it."""
    assert b"\r" not in data
    whole = email.message_from_bytes(data, policy=email.policy.default)
    assert not whole.defects, whole.defects
    assert whole.get_content_type() == "multipart/mixed", whole.get_content_type()
    found = list(whole.iter_parts())
    for part in found:
        assert not part.defects, part.defects
    return [(part.get_content_type(), part.get_payload(decode=True).decode()) for part in found]


def powershell(text: str) -> None:
    assert text.startswith("<powershell>\n") and text.endswith("\n</powershell>\n"), text
    assert text.count("<powershell>") == text.count("</powershell>") == 1
    inside = text.removeprefix("<powershell>").removesuffix("</powershell>\n")
    # Literals away: what is left has its brackets in pairs and no quote.
    bare = re.sub(r"'(?:[^']|'')*'|\"[^\"]*\"", "", inside)
    assert "'" not in bare and '"' not in bare, bare
    for left, right in ("()", "[]", "{}"):
        assert bare.count(left) == bare.count(right), bare
    assert "Start-EKSBootstrap.ps1" in inside


def check_script(path: Path, data: bytes) -> None:
    match path.suffix:
        case ".mime":
            for kind, body in parts(data):
                if kind == "text/x-shellscript":
                    bash(body)
        case ".toml":
            assert "settings" in tomllib.loads(data.decode())
        case ".sh":
            bash(data.decode())
        case ".ps1":
            powershell(data.decode())


def check_yaml(path: Path, data: bytes) -> None:
    import yaml

    texts = []
    match path.suffix:
        case ".mime":
            found = parts(data)
            texts += [body for kind, body in found if kind == "application/node.eks.aws"]
            texts += WITHIN.findall("\n".join(body for _, body in found))
        case ".sh":
            texts += WITHIN.findall(data.decode())
        case ".yaml":
            texts.append(data.decode())
    for text in texts:
        for document in yaml.safe_load_all(text):
            assert isinstance(document, dict), document


def check_cloud_init(path: Path, data: bytes) -> None:
    import yaml
    from cloudinit import helpers, user_data
    from cloudinit.config import schema

    if path.suffix not in (".mime", ".sh"):
        return
    for form in (data, gzip.compress(data)):
        read = user_data.UserDataProcessor(helpers.Paths({})).process(form)
        found = [part for part in read.walk() if not part.is_multipart()]
        kinds = [part.get_content_type() for part in found]
        expected = [kind for kind, _ in parts(data)] if path.suffix == ".mime" else None
        assert kinds == (expected or ["text/x-shellscript"]), kinds
        for part in found:
            if part.get_content_type() == "text/cloud-config":
                own = yaml.safe_load(part.get_payload(decode=True))
                schema.validate_cloudconfig_schema(own, schema.get_schema(), strict=True)


def main(what: str, directory: Path) -> int:
    needs = {"scripts": [], "yaml": ["yaml"], "cloud-init": ["yaml", "cloudinit"]}[what]
    if any(importlib.util.find_spec(module) is None for module in needs):
        return 3
    checks = {"scripts": check_script, "yaml": check_yaml, "cloud-init": check_cloud_init}
    check = checks[what]
    for path in sorted(directory.iterdir()):
        data = path.read_bytes()
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        try:
            check(path, data)
        except Exception as error:
            print(f"{path.name}: {error!r}")
            return 1
        print(f"ok {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
