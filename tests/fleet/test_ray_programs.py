"""Programs and commands of the documentation on a cluster, with and without TLS."""

import datetime
import ipaddress
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from bench.ray_nodes import HEAD, NETWORK, RayCluster, find_port, make_environment

from factories.fleet import NEEDS_RAY, is_running

ROOT = Path(__file__).parents[2]
NODES = 0
TIMEOUT = 240
pytestmark = NEEDS_RAY


def read_program(title):
    """Return a program of the how-to page."""
    page = (ROOT / "docs" / "how-to" / "many-machines.md").read_text()
    return re.search(rf'```python title="{title}"\n(.*?)```', page, re.S)[1]


def make_program_environment(address):
    own = {"RAY_ADDRESS": address, "STANDFAST_NODE_ADDRESS": HEAD, "PYTHONPATH": str(ROOT / "src")}
    return make_environment() | own


def run(command, folder, environment, timeout=TIMEOUT):
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


def run_command(folder, environment, *arguments):
    done = run([sys.executable, "-m", "standfast", *arguments], folder, environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_program_of_the_how_to_runs_on_a_cluster(cluster, tmp_path):
    (tmp_path / "analyst.py").write_text(read_program("analyst.py"))
    done = run([sys.executable, "analyst.py"], tmp_path, make_program_environment(cluster.address))
    assert done.stdout.strip() == "done 1", done.stderr


def test_ray_starts_processes_that_execute_runs_and_replaces_them(cluster, tmp_path):
    (tmp_path / "packing.py").write_text(read_program("packing.py"))
    environment = make_program_environment(cluster.address)
    store = f"sqlite:///{tmp_path}/app.db"
    start = (
        "import asyncio, sys; from packing import packer; from standfast import Agent, Runtime\n"
        "async def main():\n"
        f"    async with Runtime.open({store!r}, agents=[packer], max_runs=1) as runtime:\n"
        "        run = await runtime.start('packer', sys.argv[1], key=sys.argv[1])\n"
        "        return run.id\n"
        "print(asyncio.run(main()))"
    )
    assert run([sys.executable, "-c", start, "first"], tmp_path, environment).returncode == 0
    up = [
        "fleet",
        "up",
        str(tmp_path / "packing.py") + ":packer",
        "--replicas",
        "2",
        "--max-runs",
        "3",
        "--store",
        store,
    ]
    run_command(tmp_path, environment, *up)
    try:
        found = wait_for_runtimes(tmp_path, environment, store, set())
        assert {one["max_runs"] for one in found.values()} == {3}
        victim = next(iter(found))
        os.kill(victim, 9)
        replaced = wait_for_runtimes(tmp_path, environment, store, {victim})
        assert victim not in replaced
        orphan = next(iter(replaced))
        os.kill(find_parent(orphan), 9)  # the actor, as the kernel does when memory is short
        assert orphan not in wait_for_runtimes(tmp_path, environment, store, {victim, orphan})
        while is_running(orphan):
            continue
        assert run([sys.executable, "-c", start, "second"], tmp_path, environment).returncode == 0
        while '"queued"' in (
            listed := run_command(tmp_path, environment, "runs", "list", "--store", store, "--json")
        ) or ('"running"' in listed):
            continue
        assert listed.count('"completed"') == 2
    finally:
        stopped = run_command(tmp_path, environment, "fleet", "down", "--json")
    assert json.loads(stopped)["stopped"] == 2


def find_parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_ray_starts_servers_that_share_a_port_of_their_node(cluster, tmp_path):
    (tmp_path / "packing.py").write_text(read_program("packing.py"))
    environment, store = make_program_environment(cluster.address), f"sqlite:///{tmp_path}/app.db"
    port = str(find_port(HEAD))
    up = ["fleet", "up", str(tmp_path / "packing.py") + ":packer", "--replicas", "2", "--max-runs", "3"]
    refused = run(
        [sys.executable, "-m", "standfast", *up, "--port", port, "--host", "0.0.0.0", "--store", store],
        tmp_path, environment,
    )  # fmt: skip
    assert refused.returncode != 0
    assert "--allowed-host" in refused.stderr
    run_command(
        tmp_path, environment, *up, "--port", port, "--host", "0.0.0.0", "--allowed-host", HEAD, "--store", store
    )  # fmt: skip
    try:
        while not (tmp_path / "app.db").exists():
            continue
        assert len(wait_for_runtimes(tmp_path, environment, store, set())) == 2
        health = f"http://{HEAD}:{port}/healthz"
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(health, timeout=30) as answer:
            assert answer.status == 200
    finally:
        run_command(tmp_path, environment, "fleet", "down")


def wait_for_runtimes(folder, environment, store, without):
    """Return the two live runtimes by their process ids."""
    while True:
        status = json.loads(
            run_command(folder, environment, "fleet", "status", "--no-nodes", "--store", store, "--json")
        )
        found = {one["process"]: one for one in status["runtimes"] if one["is_alive"] and one["max_runs"] == 3}
        if len(found.keys() - without) == 2:
            return {pid: one for pid, one in found.items() if pid not in without}


@pytest.fixture
def certificates(tmp_path):
    """An authority, and a certificate for all nodes, which are on loopback."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def sign(name, issuer, key, signer, *extensions):
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1))
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(signer, hashes.SHA256())

    def make_name(text):
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    def write(file, *parts):
        (tmp_path / file).write_bytes(b"".join(parts))
        return str(tmp_path / file)

    pem = serialization.Encoding.PEM
    authority, node = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = sign(make_name("authority"), make_name("authority"), authority, authority, x509.BasicConstraints(True, None))
    addresses = [x509.IPAddress(ipaddress.ip_address(f"{NETWORK}.{number}")) for number in range(1, 20)]
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), *addresses])
    signed = sign(make_name("node"), make_name("authority"), node, authority, names)
    private = node.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": write("node.crt", signed.public_bytes(pem)),
        "RAY_TLS_SERVER_KEY": write("node.key", private),
        "RAY_TLS_CA_CERT": write("ca.crt", root.public_bytes(pem)),
    }


def test_a_cluster_with_tls_serves_programs_with_a_certificate_and_no_others(certificates, tmp_path):
    (tmp_path / "analyst.py").write_text(read_program("analyst.py"))
    started = RayCluster(0, head_options={"environment": certificates})
    try:
        environment = make_program_environment(started.address)
        done = run([sys.executable, "analyst.py"], tmp_path, environment | certificates)
        assert done.stdout.strip() == "done 1", done.stderr[-2000:]
        try:
            refused = run([sys.executable, "analyst.py"], tmp_path, environment, timeout=60)
        except subprocess.TimeoutExpired:
            return
        assert refused.returncode != 0
        assert "done" not in refused.stdout
    finally:
        started.close()


def test_the_manifest_for_kubernetes_has_the_structure_of_a_cluster():
    import yaml

    manifest = yaml.safe_load((ROOT / "deploy" / "kuberay.yaml").read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayCluster")
    groups = [manifest["spec"]["headGroupSpec"], *manifest["spec"]["workerGroupSpecs"]]
    for group in groups:
        pod = group["template"]["spec"]
        [container] = pod["containers"]
        variables = {one["name"]: one["value"] for one in container["env"]}
        assert variables["RAY_USE_TLS"] == "1"
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        folders = [mount["mountPath"] for mount in container["volumeMounts"]]
        files = [value for name, value in variables.items() if name.startswith("RAY_TLS")]
        assert all(os.path.dirname(file) in folders for file in files)
    [workers] = manifest["spec"]["workerGroupSpecs"]
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    assert json.loads(json.loads(workers["rayStartParams"]["resources"])) == {"standfast_workers": 40}
